"""Compares a sink with the empty sink: throughput, epochs and memory."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outfall.errors import ConfigurationError, require_extra
from outfall.testing.benchmark.apis import Api, FormatApi, PythonApi
from outfall.testing.benchmark.rows import SCHEMA, Scratch, seconds_per_epoch, small_epochs, write_rows
from outfall.testing.benchmark.runs import EmptySink, Job, Run, Spread, in_turn, ratios, rounds, spread
from outfall.testing.benchmark.session import cpu_seconds, start_session, worker_memory

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

require_extra("benchmark", "rich")

from rich.console import Console
from rich.table import Table

SinkFactory = Callable[[Path], Any]
"""Creates a sink for one run in an empty directory."""


def load_factory(name: str) -> SinkFactory:
    """Find a function by `package.module:function`.

    Raises `ConfigurationError` if the function does not exist, and `ImportError` if the module or one of its imports is
    missing.
    """
    module_name, _, function_name = name.partition(":")
    if not module_name or not function_name.isidentifier():
        raise ConfigurationError(
            f"{name!r} does not name a function",
            do="write package.module:make_sink, with a function that takes a directory and returns a sink",
        )
    factory = getattr(importlib.import_module(module_name), function_name, None)
    if not callable(factory):
        raise ConfigurationError(
            f"the module {module_name} has no function {function_name!r}", do="give a function that takes a directory"
        )
    return factory  # type: ignore[no-any-return]


EMPTY, SINK = "empty sink", "sink"


@dataclass(frozen=True)
class Size:
    """How much is measured."""

    rows: int
    pairs: int
    epochs: int
    epoch_rows: int


@dataclass(frozen=True)
class Comparison:
    """Results for `EMPTY` and `SINK`. The n-th figures of both form a pair."""

    runs: dict[str, list[Run]]
    row_bytes: float
    """Bytes of a row in Arrow."""
    epoch_seconds: dict[str, list[float]]
    """Empty without epochs."""
    memory: dict[str, int | None]
    """Peak memory of the largest Python worker, in bytes."""


def compare(spark: SparkSession, make_sink: SinkFactory, api: Api, size: Size, scratch: Scratch) -> Comparison:
    """Measure a sink and the empty sink alternately, in this process's session. `make_sink` is called once per run."""
    factories: dict[str, SinkFactory] = {EMPTY: lambda _: EmptySink(), SINK: make_sink}
    arrow_bytes = write_rows(scratch.rows / "many", size.rows)
    df = spark.read.schema(SCHEMA).parquet(str(scratch.rows / "many"))

    def job(make: SinkFactory) -> Job:
        return lambda: api.write(df, make(scratch.new()), scratch.new())

    jobs = {name: job(make) for name, make in factories.items()}
    runs = in_turn(jobs, size.rows, pairs=size.pairs, cpu_seconds=cpu_seconds, between=scratch.clear)
    epochs = _epochs(spark, factories, api, size, scratch) if size.epochs else {}
    memory = {name: worker_memory(spark, job) for name, job in jobs.items()}
    return Comparison(runs, arrow_bytes / size.rows, epochs, memory)


def _epochs(
    spark: SparkSession, factories: dict[str, SinkFactory], api: Api, size: Size, scratch: Scratch
) -> dict[str, list[float]]:
    df = small_epochs(spark, scratch.rows / "epochs", epochs=size.epochs, rows=size.epoch_rows)

    def seconds(sink: Any) -> float:
        return seconds_per_epoch(api.stream(df, sink, scratch.new()))

    figures: dict[str, list[float]] = {name: [] for name in factories}
    for number, name in rounds(factories, 1 + size.pairs):
        figure = seconds(factories[name](scratch.new()))
        scratch.clear()
        if number > 0:  # the first warms up
            figures[name].append(figure)
    return figures


_UNKNOWN = "-"


def table(comparison: Comparison, title: str) -> Table:
    """Return a table with one line per figure: medians of both sinks, and median and range of the ratios of pairs."""
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
    line("bytes/s taken, as Arrow", lambda name: [run.rows_per_second * row_bytes for run in runs[name]], _bytes)
    line("bytes/s written, as counted", lambda name: [run.bytes_per_second for run in runs[name]], _bytes)
    if comparison.epoch_seconds:
        line("seconds per epoch", lambda name: comparison.epoch_seconds[name], _seconds)
    line("peak memory of a worker", lambda name: [comparison.memory[name]], _bytes)
    return result


def _bytes(count: float) -> str:
    """Format bytes in a suitable unit."""
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


def run(given: argparse.Namespace) -> Comparison:
    """Measure and print.

    Raises `ConfigurationError` if the arguments contradict each other, and `ImportError` if the sink's module or an
    extra is missing.
    """
    make_sink = load_factory(given.sink)
    api = _api(given.api, given.key)
    settings = dict(_setting(text) for text in given.conf)
    if not given.master.startswith("local"):
        raise ConfigurationError(
            f"Spark would run on {given.master}",
            why="CPU time and memory cover only this process and its children",
            do="use a local master, such as local[2]",
        )
    size = Size(given.rows, given.pairs, given.epochs, given.epoch_rows)
    spark = start_session(given.master, settings)
    try:
        with Scratch(given.directory) as scratch:
            comparison = compare(spark, make_sink, api, size, scratch)
    finally:
        spark.stop()
    title = f"{given.sink}: {size.rows:,} rows, {size.pairs} pairs, api {given.api}, {given.master}"
    Console().print(table(comparison, title))
    return comparison


def _api(name: str, key: str | None) -> Api:
    if name == "python":
        return PythonApi(key)
    if key is not None:
        raise ConfigurationError(
            'format("outfall") takes no key', do="remove the key, because this API cannot route rows"
        )
    return FormatApi()


def _setting(text: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not name or not sign:
        raise ConfigurationError(f"the setting {text!r} has no value", do="write it as name=value")
    return name, value
