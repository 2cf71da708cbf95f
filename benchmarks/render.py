"""Renders the newest results: `python -m benchmarks.render` rewrites docs/benchmarks.md and .svg."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table

from benchmarks.results import Figure, Line, Result, newest

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DOCS = Path(__file__).parents[1] / "docs"
_MARKED = re.compile(r"(<!-- results -->\n).*?(<!-- end of results -->)", re.DOTALL)


def main() -> None:
    """Render the results in benchmarks/results."""
    results = newest()
    if not results:
        sys.exit("There are no results. What to do: run nox -s bench")
    page = DOCS / "benchmarks.md"
    page.write_text(_MARKED.sub(lambda found: f"{found[1]}{markdown(results)}\n{found[2]}", page.read_text()))
    plot(results, DOCS / "benchmarks.svg")


def tables(result: Result) -> list[Table]:
    """Return a result as terminal tables, one per group."""
    return [_table(result, lines) for lines in groups(result)]


def markdown(results: list[Result]) -> str:
    """Return results as Markdown, each with its date and machine."""
    return "".join(_section(result) for result in results)


def groups(result: Result) -> list[list[Line]]:
    """Return the lines by group, in order."""
    names = dict.fromkeys(line.group for line in result.lines)
    return [[line for line in result.lines if line.group == name] for name in names]


def conditions(result: Result) -> str:
    """Describe the date and the machine of a result."""
    machine = result.machine
    packages = ", ".join(f"{name} {version}" for name, version in machine.packages.items())
    return (
        f"{result.started:%d %B %Y}, {machine.cores} cores of {machine.processor}, {machine.memory_gib} GiB,"
        f" {machine.system}, Python {machine.python}, Java {machine.java}, {packages}; {result.pairs} pairs."
    )


def _table(result: Result, lines: list[Line]) -> Table:
    head, *rows = _cells(result, lines)
    found = Table(*head, title=f"{result.title}: {lines[0].group}, {result.pairs} pairs")
    for row in rows:
        found.add_row(*row)
    return found


def _section(result: Result) -> str:
    targets = "; ".join(f"{peer} {text}" for peer, text in result.wanted.items())
    # A result without peers has its target in the heading of the lines.
    text = f"\n### {result.title}\n\n{conditions(result)}{f' Target ratios: {targets}.' if targets else ''}\n"
    for lines in groups(result):
        head, *rows = _cells(result, lines)
        rows = [[lines[0].group, *head[1:]], ["---"] * len(head), *rows]
        text += "\n" + "".join(f"| {' | '.join(row)} |\n" for row in rows)
    if result.notes:
        text += "\n" + "".join(f"- {note}\n" for note in result.notes)
    return text


def _cells(result: Result, lines: list[Line]) -> list[list[str]]:
    peers = list(dict.fromkeys(peer for line in lines for peer in line.ratios))
    with_cpu = any(line.per_cpu_second for line in lines)
    head = ["", result.unit, *(["per CPU second"] if with_cpu else [])]
    for peer in peers:
        head += [f"vs. {peer}", *(["by CPU"] if with_cpu else [])]
    return [head, *(_row(line, peers, with_cpu=with_cpu) for line in lines)]


def _row(line: Line, peers: list[str], *, with_cpu: bool) -> list[str]:
    cells = [line.label, _range(line.figure)]
    if with_cpu:
        cells.append(_median(line.per_cpu_second))
    for peer in peers:
        cells.append(_range(line.ratios.get(peer)))
        if with_cpu:
            cells.append(_median(line.cpu_ratios.get(peer)))
    return cells


def _range(figure: Figure | None) -> str:
    """The median, with minimum and maximum in parentheses."""
    return "" if figure is None else f"{_short(figure.median)} ({_short(figure.low)} to {_short(figure.high)})"


def _median(figure: Figure | None) -> str:
    return "" if figure is None else _short(figure.median)


def _short(figure: float) -> str:
    if figure >= 1_000_000:
        return f"{figure / 1_000_000:.2f} M"
    if figure >= 10_000:
        return f"{figure / 1000:.0f} k"
    return f"{figure:,.0f}" if figure >= 1000 else f"{figure:.3g}"


def plot(results: list[Result], path: Path) -> None:
    """Draw each result as bars: medians with error bars from minimum to maximum."""
    import matplotlib as mpl
    from matplotlib.figure import Figure as Canvas

    # Reproducible output.
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "outfall", "font.size": 8}):
        shown = [(result, lines) for result in results for lines in groups(result)]
        heights = [len(lines) + 1.5 for _, lines in shown]
        canvas = Canvas(figsize=(7, 0.2 * sum(heights) + 0.3 * len(shown)), layout="constrained")
        axes = canvas.subplots(len(shown), 1, squeeze=False, height_ratios=heights)
        for (result, lines), (axis,) in zip(shown, axes, strict=True):
            _bars(axis, result, lines)
        canvas.savefig(path, metadata={"Date": None})


def _bars(axis: Axes, result: Result, lines: list[Line]) -> None:
    medians = [line.figure.median for line in lines]
    low = [line.figure.median - line.figure.low for line in lines]
    high = [line.figure.high - line.figure.median for line in lines]
    colors = ["#bbbbbb" if "empty" in line.label else "#e08030" if "Spark" in line.label else "#3070b0"
               for line in lines]  # fmt: skip
    axis.barh([line.label for line in lines], medians, xerr=[low, high], color=colors, height=0.7)
    axis.invert_yaxis()
    axis.set_title(f"{lines[0].group}: {result.unit}", loc="left", fontsize=8)
    axis.spines[["top", "right"]].set_visible(False)


if __name__ == "__main__":
    main()
