"""Shared by the benchmarks: command line, session and peers."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from rich.console import Console

from benchmarks.render import tables
from benchmarks.results import Figure, Line, Machine, Result
from outfall.testing.benchmark import Run, ratios
from outfall.testing.benchmark.rows import Scratch
from outfall.testing.benchmark.session import start_session

MASTER = "local[2]"


@dataclass(frozen=True)
class Given:
    """The arguments of the command line."""

    rows: int
    pairs: int


Measure = Callable[[SparkSession, Given, Scratch], Result]


def main(description: str, default: Given, measure: Measure, settings: Mapping[str, str] | None = None) -> None:
    """Run a benchmark in a new session with the given settings, print its tables and save its result."""
    given = parse(description, default, sys.argv[1:])
    spark = start_session(
        MASTER, {"spark.sql.shuffle.partitions": "2", "spark.driver.memory": "3g"} | dict(settings or {})
    )
    try:
        with Scratch() as scratch:
            finish(measure(spark, given, scratch))
    finally:
        spark.stop()


def parse(description: str, default: Given, arguments: list[str]) -> Given:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--rows", type=int, default=default.rows, help=f"(default: {default.rows:,})")
    parser.add_argument("--pairs", type=int, default=default.pairs, help=f"(default: {default.pairs})")
    given = parser.parse_args(arguments)
    return Given(given.rows, given.pairs)


def finish(result: Result) -> None:
    """Print a result and save it."""
    # Do not cut lines in a file to a default terminal width.
    console = Console(width=None if sys.stdout.isatty() else 160)
    for found in tables(result):
        console.print(found)
    for note in result.notes:
        console.print(note, highlight=False)
    console.print(f"Saved in {os.path.relpath(result.save())}", highlight=False)


def machine() -> Machine:
    return Machine.this()


def throughput(group: str, label: str, runs: Mapping[str, list[Run]], peers: Mapping[str, str]) -> Line:
    """Return a line in rows/s.

    Args:
        group: see `Line`.
        label: the job.
        runs: the runs of all jobs.
        peers: printed name → job to compare with.
    """
    own = runs[label]
    speed, lean = _speed(own), _lean(own)
    speeds = {name: Figure.of(ratios(speed, _speed(runs[job]))) for name, job in peers.items()}
    leans = {name: Figure.of(ratios(lean, _lean(runs[job]))) for name, job in peers.items()}
    return Line(
        group=group,
        label=label,
        figure=known(Figure.of(speed)),
        per_cpu_second=Figure.of([figure for figure in lean if figure is not None]),
        ratios=_known(speeds),
        cpu_ratios=_known(leans),
    )


def seconds(group: str, label: str, figures: Mapping[str, list[float]], peers: Mapping[str, str]) -> Line:
    """Return a line in seconds. Arguments: see `throughput`."""
    found = {name: Figure.of(ratios(figures[label], figures[job])) for name, job in peers.items()}
    return Line(group=group, label=label, figure=known(Figure.of(figures[label])), ratios=_known(found))


def known(figure: Figure | None) -> Figure:
    if figure is None:
        raise ValueError("nothing was measured")
    return figure


def spark_write(df: DataFrame, kind: str, path: Path) -> None:
    """Write with Spark's own writer: text without compression, Parquet with its default, snappy."""
    df.write.format(kind).mode("append").save(str(path))


def _speed(runs: list[Run]) -> list[float]:
    return [run.rows_per_second for run in runs]


def _lean(runs: list[Run]) -> list[float | None]:
    return [run.rows_per_cpu_second for run in runs]


def _known(figures: Mapping[str, Figure | None]) -> dict[str, Figure]:
    return {name: figure for name, figure in figures.items() if figure is not None}
