"""A sink against the empty one: throughput, epochs and memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from outfall.testing.benchmark.doors import Door
from outfall.testing.benchmark.empty import EmptySink
from outfall.testing.benchmark.epochs import seconds_per_epoch, small_epochs
from outfall.testing.benchmark.factory import SinkFactory
from outfall.testing.benchmark.processes import cpu_seconds
from outfall.testing.benchmark.rows import SCHEMA, write_rows
from outfall.testing.benchmark.runs import Job, Run, in_turn, rounds
from outfall.testing.benchmark.scratch import Scratch
from outfall.testing.benchmark.session import worker_memory

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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
    """What was measured, by `EMPTY` and `SINK`; the n-th figures of both belong together."""

    runs: dict[str, list[Run]]
    row_bytes: float
    """Of a row as Arrow keeps it."""
    epoch_seconds: dict[str, list[float]]
    """Empty where no epochs were asked for."""
    memory: dict[str, int | None]
    """Peak of the largest Python worker, in bytes."""


def compare(spark: SparkSession, make_sink: SinkFactory, door: Door, size: Size, scratch: Scratch) -> Comparison:
    """Measure a sink and the empty one in turn.

    Args:
        spark: a session in this process.
        make_sink: called once for each run.
        door: how the rows come to the sink.
        size: how much to measure.
        scratch: for rows, targets and logs.
    """
    factories: dict[str, SinkFactory] = {EMPTY: lambda _: EmptySink(), SINK: make_sink}
    arrow_bytes = write_rows(scratch.rows / "many", size.rows)
    df = spark.read.schema(SCHEMA).parquet(str(scratch.rows / "many"))

    def job(make: SinkFactory) -> Job:
        return lambda: door.write(df, make(scratch.new()), scratch.new())

    jobs = {name: job(make) for name, make in factories.items()}
    runs = in_turn(jobs, size.rows, pairs=size.pairs, cpu_seconds=cpu_seconds, between=scratch.clear)
    epochs = _epochs(spark, factories, door, size, scratch) if size.epochs else {}
    memory = {name: worker_memory(spark, job) for name, job in jobs.items()}
    return Comparison(runs, arrow_bytes / size.rows, epochs, memory)


def _epochs(
    spark: SparkSession, factories: dict[str, SinkFactory], door: Door, size: Size, scratch: Scratch
) -> dict[str, list[float]]:
    df = small_epochs(spark, scratch.rows / "epochs", epochs=size.epochs, rows=size.epoch_rows)

    def seconds(sink: Any) -> float:
        return seconds_per_epoch(door.stream(df, sink, scratch.new()))

    figures: dict[str, list[float]] = {name: [] for name in factories}
    for number, name in rounds(factories, 1 + size.pairs):
        figure = seconds(factories[name](scratch.new()))
        scratch.clear()
        if number > 0:  # the first warms up
            figures[name].append(figure)
    return figures
