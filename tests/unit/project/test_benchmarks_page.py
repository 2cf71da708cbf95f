"""The table and the plot that begin docs/benchmarks.md say what the results below them say."""

from __future__ import annotations

import tomllib
from datetime import UTC, datetime

import pytest

from benchmarks.overview import COMPARISONS, NOT_MEASURED, overview, plot
from benchmarks.render import DOCS, rendered
from benchmarks.results import Figure, Line, Machine, Result
from tests.documents import ROOT

PAGE = (DOCS / "benchmarks.md").read_text()


def test_the_overview_and_the_plot_are_those_of_the_results() -> None:
    assert rendered(PAGE, []) == PAGE, "run python -m benchmarks.render"
    assert plot(PAGE) == (DOCS / "benchmarks.svg").read_text(), "run python -m benchmarks.render"


def test_the_overview_has_every_sink() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["outfall.sinks"]
    assert {line.page for line in COMPARISONS} == declared.keys() - {"fanout"}
    assert f"| {NOT_MEASURED} | {NOT_MEASURED} |  |" in overview(PAGE)


def test_a_new_result_replaces_that_of_its_benchmark_only() -> None:
    machine = Machine(cores=1, processor="p", memory_gib=1, system="s", python="3", java="17", packages={})
    found = Figure(median=1.05, low=1, high=1.1)
    labels = ("S3Sink's upload", "S3Sink, text of 1 kB a row")
    lines = [Line(group="500 MB", label=label, figure=found, ratios={"boto3": found}) for label in labels]
    result = Result(
        benchmark="s3", title="Uploads to S3", unit="MB/s", wanted={}, lines=lines, pairs=1,
        started=datetime(2027, 1, 2, tzinfo=UTC), machine=machine,
    )  # fmt: skip
    page = rendered(PAGE, [result])
    assert "| upload of 500 MB | boto3's `upload_fileobj` | 1.1 | not measured | 02 Jan 2027 |" in page
    assert page.count("\n### ") == PAGE.count("\n### ")


def test_a_result_that_the_overview_needs_is_missed() -> None:
    with pytest.raises(LookupError, match="S3Sink's upload"):
        rendered(PAGE.replace("| S3Sink's upload |", "| another |"), [])


def test_the_plot_has_no_background_of_its_own() -> None:
    assert "<rect x=" in plot(PAGE)
    assert "background" not in plot(PAGE)
    assert (ROOT / "docs" / "stylesheets" / "extra.css").read_text().count('img[src$="benchmarks.svg"]') == 2
