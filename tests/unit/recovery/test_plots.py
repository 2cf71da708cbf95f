"""Bar plots: what an SVG holds, for eyes and for those who cannot see it."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from outfall.recovery.plots import BarSeries, bar_plot, compact

SVG = "{http://www.w3.org/2000/svg}"


def drawn(
    values: list[float], *more: list[float], title: str = "Throughput", unit: str = "rows"
) -> ElementTree.Element:
    series = [BarSeries(f"series {number}", each) for number, each in enumerate([values, *more])]
    html = bar_plot("Throughput", "rows", "epoch", [str(7 + index) for index in range(len(values))], series)
    return ElementTree.fromstring(re.search("<svg viewBox.*</svg>", html)[0])  # type: ignore[index]


def bars(plot: ElementTree.Element) -> list[list[tuple[float, float]]]:
    """Of each bar its pieces, from below: where they begin, and how high they are."""
    return [
        [(float(rect.attrib["y"]), float(rect.attrib["height"])) for rect in group.findall(f"{SVG}rect")[:-1]]
        for group in plot.findall(f"{SVG}g")
    ]


def test_heights_are_in_proportion_and_series_stand_on_each_other() -> None:
    plot = drawn([30.0, 0.0], [10.0, 20.0])
    ((lower, upper), (alone,)) = bars(plot)
    assert lower[1] == pytest.approx(3 * upper[1], abs=0.2)
    assert upper[0] + upper[1] == pytest.approx(lower[0], abs=0.2)
    assert alone[1] == pytest.approx(2 * upper[1], abs=0.2)


def test_it_says_in_words_what_it_shows() -> None:
    plot = drawn([30.0, 12_345.0])
    assert plot.attrib["role"] == "img"
    assert plot.findtext(f"{SVG}title") == "Throughput"
    assert plot.findtext(f"{SVG}desc") == "2 bars, from 0 to 12.3k rows; 8 has 12.3k."
    assert [group.findtext(f"{SVG}title") for group in plot.findall(f"{SVG}g")] == [
        "epoch 7: 30 rows", "epoch 8: 12.3k rows",
    ]  # fmt: skip
    assert [text.text for text in plot.findall(f"{SVG}text")] == ["0", "10k", "20k", "epoch 7", "8"]


@pytest.mark.parametrize(
    ("values", "ticks"),
    [([0.7], ["0", "0.4", "0.8"]), ([656.0], ["0", "400", "800"]), ([4], ["0", "2", "4"]), ([1], ["0", "1", "2"]),
     ([0], ["0", "1", "2"]), ([], ["0", "1", "2"])],
)  # fmt: skip
def test_an_axis_ends_at_a_round_number_and_counts_have_no_halves(values: list[float], ticks: list[str]) -> None:
    assert [text.text for text in drawn(values).findall(f"{SVG}text")][:3] == ticks


def test_texts_inject_no_markup() -> None:
    html = bar_plot("<b>", '"><script>', "<i>", ["<u>"], [BarSeries("<s>", [1.0]), BarSeries("<q>", [1.0])])
    assert not re.search("<(b|script|i|u|s|q)>", html)
    assert '"><' not in html.replace('""', "").replace('"/><', "").split("aria-label")[1].split("xmlns")[0]


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0"), (0.04, "0.04"), (7, "7"), (999, "999"), (999.6, "1k"), (12_345, "12.3k"), (2e9, "2G")],
)
def test_numbers_are_short(number: float, text: str) -> None:
    assert compact(number) == text
