"""Renders the newest results: `python -m benchmarks.render` rewrites docs/benchmarks.md and its plot.

Results stay on the page until their benchmark ran again. The overview is made from the results on the page.
"""

from __future__ import annotations

import re
from pathlib import Path

from rich.table import Table

from benchmarks.overview import overview, plot
from benchmarks.results import Figure, Line, Result, newest

DOCS = Path(__file__).parents[1] / "docs"
_MARKED = re.compile(r"(?<=<!-- results -->\n).*?(?=\n<!-- end of results -->)", re.DOTALL)
_OVERVIEW = re.compile(r"(?<=<!-- overview -->\n).*?(?=<!-- end of overview -->)", re.DOTALL)


def main() -> None:
    """Render the results in benchmarks/results, and the overview of all results on the page."""
    page = DOCS / "benchmarks.md"
    text = rendered(page.read_text(), newest())
    page.write_text(text)
    (DOCS / "benchmarks.svg").write_text(plot(text))


def rendered(page: str, results: list[Result]) -> str:
    """Return the page with these results in place of older ones of the same benchmarks, and with their overview.

    Raises:
        LookupError: if the results lack a line that the overview needs.
    """
    (there,) = _MARKED.findall(page)
    sections = {text.partition("\n")[0]: f"### {text.rstrip()}\n" for text in re.split(r"^### ", there, flags=re.M)[1:]}
    sections |= {result.title: _section(result).strip("\n") + "\n" for result in results}
    page = _MARKED.sub(lambda _: "".join(f"\n{text}" for text in sections.values()), page)
    return _OVERVIEW.sub(lambda _: overview(page), page)


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


if __name__ == "__main__":
    main()
