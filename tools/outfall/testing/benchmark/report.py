"""What was measured, as a table."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from outfall.errors import missing_extra
from outfall.testing.benchmark.comparison import EMPTY, SINK, Comparison
from outfall.testing.benchmark.ratios import Spread, ratios, spread

try:
    from rich.table import Table
except ImportError as error:
    raise missing_extra("rich", "benchmark") from error

_UNKNOWN = "-"


def table(comparison: Comparison, title: str) -> Table:
    """Lay out one line per figure: the medians of both sinks, and the median of the pairs' ratios with its range."""
    result = Table("", "empty sink", "sink", "sink / empty", "range", title=title)
    for column in result.columns[1:]:
        column.justify = "right"
    runs, row_bytes = comparison.runs, comparison.row_bytes

    def line(label: str, of: Callable[[str], Sequence[float | None]], text: Callable[[float], str]) -> None:
        figures = {name: of(name) for name in (EMPTY, SINK)}
        medians = [_text(spread(figures[name]), text) for name in (EMPTY, SINK)]
        result.add_row(label, *medians, *_ratio(spread(ratios(figures[SINK], figures[EMPTY]))))

    line("rows/s", lambda name: [run.rows_per_second for run in runs[name]], _count)
    line("rows per CPU second", lambda name: [run.rows_per_cpu_second for run in runs[name]], _count)
    line("bytes/s taken, as Arrow", lambda name: [run.rows_per_second * row_bytes for run in runs[name]], size)
    line("bytes/s written, as counted", lambda name: [run.bytes_per_second for run in runs[name]], size)
    if comparison.epoch_seconds:
        line("seconds per epoch", lambda name: comparison.epoch_seconds[name], _seconds)
    line("peak memory of a worker", lambda name: [comparison.memory[name]], size)
    return result


def size(count: float) -> str:
    """Write bytes in a unit that fits."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} GB"


def _text(figures: Spread | None, text: Callable[[float], str]) -> str:
    return _UNKNOWN if figures is None else text(figures.median)


def _ratio(figures: Spread | None) -> tuple[str, str]:
    if figures is None:
        return _UNKNOWN, _UNKNOWN
    return f"{figures.median:.2f}", f"{figures.low:.2f} to {figures.high:.2f}"


def _count(figure: float) -> str:
    return f"{figure:,.0f}"


def _seconds(figure: float) -> str:
    return f"{figure:.3f}"
