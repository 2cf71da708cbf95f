"""Small bar plots as SVG in HTML, without scripts, fonts or external resources.

Text and lines have the color of the surrounding text. The colors of bars contrast with white and with black, so a plot
is readable on light and dark pages. A page may set other colors with the variables `--bar-1` and `--bar-2`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

BAR_COLOURS = ("#3d7fb8", "#c9741a")
"""For the first and the second series; contrast of at least 3:1 to white and to black."""

_WIDTH, _HEIGHT = 360, 132
_LEFT, _RIGHT, _TOP, _BOTTOM = 40, 4, 8, 20
_ACROSS, _DOWN = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM
_WIDEST_BAR = 24.0


@dataclass(frozen=True)
class BarSeries:
    """Numbers in one color, with one value per bar."""

    name: str
    values: Sequence[float]


def bar_plot(title: str, unit: str, axis: str, bars: Sequence[str], series: Sequence[BarSeries]) -> str:
    """Return a bar plot as an HTML `figure`, with one stacked bar per name.

    It has one or two series, with a value of at least 0 per bar. `axis` is the label of the bars, such as `epoch`,
    shown with the first and the last name.
    """
    sums = [sum(values) for values in zip(*(each.values for each in series), strict=True)]
    counted = all(isinstance(value, int) for each in series for value in each.values)
    top = max(_round_up(max(sums, default=0.0)), 2.0 if counted else 0.0)
    step = min(_WIDEST_BAR, _ACROSS / max(1, len(bars)))
    drawn = [
        _bar(
            index * step,
            step,
            [each.values[index] / top for each in series],
            _said(bars[index], axis, unit, series, index),
        )
        for index in range(len(bars))
    ]
    last = f" {bars[-1]} has {compact(sums[-1])}" if bars else ""
    summary = f"{len(bars)} bars, from 0 to {compact(max(sums, default=0.0))} {unit};{last or ' none'}."
    label = escape(f"{title}, {unit}. {summary}")
    heading = f"{escape(title)} <small>{escape(unit)}</small>{_legend(series)}"
    return (
        f'<figure style="margin:0"><figcaption>{heading}</figcaption>'
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" width="100%" role="img" aria-label="{label}"'
        ' xmlns="http://www.w3.org/2000/svg" font-family="inherit" font-size="11" style="display:block">'
        f"<title>{escape(title)}</title><desc>{escape(summary)}</desc>"
        f"{_axes(top, axis, bars, step)}{''.join(drawn)}</svg></figure>"
    )


def compact(number: float) -> str:
    """Return a number in at most five characters, such as `12.3k`."""
    units = ["", "k", "M", "G", "T", "P"]
    while abs(number) >= 999.5 and len(units) > 1:
        number /= 1000
        units.pop(0)
    return f"{number:.3g}{units[0]}"


def _round_up(value: float) -> float:
    """Return the next larger number that suits an axis, whose half is a simple number too."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(power * digit for digit in (1, 2, 4, 6, 8, 10) if value <= power * digit * (1 + 1e-9))


def _bar(left: float, step: float, shares: Sequence[float], said: str) -> str:
    gap = min(2.0, step / 4)
    pieces, below = [], 0.0
    for number, share in enumerate(shares, 1):
        if share > 0:
            pieces.append(
                f'<rect x="{_LEFT + left + gap / 2:.1f}" y="{_TOP + _DOWN * (1 - below - share):.1f}"'
                f' width="{step - gap:.1f}" height="{_DOWN * share:.1f}" fill="{_colour(number)}"/>'
            )
            below += share
    # Over the whole height, so that a pointer finds a low bar too.
    pieces.append(f'<rect x="{_LEFT + left:.1f}" y="{_TOP}" width="{step:.1f}" height="{_DOWN}" fill="transparent"/>')
    return f"<g><title>{escape(said)}</title>{''.join(pieces)}</g>"


def _said(bar: str, axis: str, unit: str, series: Sequence[BarSeries], index: int) -> str:
    values = [
        f"{each.name} {compact(each.values[index])}" if len(series) > 1 else compact(each.values[index])
        for each in series
    ]
    return f"{axis} {bar}: {', '.join(values)} {unit}"


def _axes(top: float, axis: str, bars: Sequence[str], step: float) -> str:
    lines = []
    for share in (0.0, 0.5, 1.0):
        y = _TOP + _DOWN * (1 - share)
        lines.append(
            f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="currentColor"'
            f' stroke-opacity="{0.45 if share == 0 else 0.15}"/>'
            f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end" fill="currentColor" fill-opacity="0.75">'
            f"{escape(compact(top * share))}</text>"
        )
    if bars:
        end = _LEFT + step * len(bars)
        names = [(float(_LEFT), "start", f"{axis} {bars[0]}")]
        if len(bars) > 1:
            # Few bars leave too little space between the first and the last name.
            names.append((max(end, _LEFT + 110), "end", bars[-1]))
        lines += [
            f'<text x="{x:.1f}" y="{_HEIGHT - 5}" text-anchor="{anchor}" fill="currentColor" fill-opacity="0.75">'
            f"{escape(text)}</text>"
            for x, anchor, text in names
        ]
    return "".join(lines)


def _legend(series: Sequence[BarSeries]) -> str:
    if len(series) == 1:
        return ""
    return "".join(
        f' <small style="white-space:nowrap"><svg width="10" height="10" aria-hidden="true">'
        f'<rect width="10" height="10" fill="{_colour(number)}"/></svg> {escape(each.name)}</small>'
        for number, each in enumerate(series, 1)
    )


def _colour(number: int) -> str:
    return f"var(--bar-{number}, {BAR_COLOURS[number - 1]})"
