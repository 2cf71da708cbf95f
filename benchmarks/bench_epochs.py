"""Seconds per epoch of a hundred rows, P50 and P99: `FileSink`, and Spark's own sink of files and of nothing.

python -m benchmarks.bench_epochs --rows 20000 --pairs 3
"""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from benchmarks.common import Given, machine, main, seconds
from benchmarks.results import Result, now
from outfall.file import FileSink
from outfall.spark.version_check import OLDEST_FOR_OPTIONS, pyspark_version
from outfall.testing.benchmark.apis import PythonApi
from outfall.testing.benchmark.rows import Scratch, epoch_durations, small_epochs
from outfall.testing.benchmark.runs import rounds

DEFAULT = Given(rows=20_000, pairs=3)
EPOCH_ROWS = 100
NOOP, SPARK = "Spark noop", "Spark json"
GROWING = "growing files, 2 parts"
PERCENTILES = (50, 99)
KEPT = {"spark.sql.streaming.numRecentProgressUpdates": "10000"}
"""Spark's reports of all epochs of a run."""

Stream = Callable[[DataFrame, Scratch], DataStreamWriter]


def measure(spark: SparkSession, given: Given, scratch: Scratch) -> Result:
    """Run each stream to its end, in turn."""
    started = now()
    epochs = max(3, given.rows // EPOCH_ROWS)
    df = small_epochs(spark, scratch.rows / "epochs", epochs=epochs, rows=EPOCH_ROWS)
    streams = _streams()
    figures: dict[str, list[float]] = {_at(name, percent): [] for name in streams for percent in PERCENTILES}
    for number, name in rounds(streams, 1 + given.pairs):
        durations = epoch_durations(streams[name](df, scratch))
        scratch.clear()
        for percent in PERCENTILES:
            if number > 0:  # the first warms up
                figures[_at(name, percent)].append(percentile(durations, percent))
    group = f"epochs of {EPOCH_ROWS} rows, {epochs} a run"
    lines = [
        seconds(group, _at(name, percent), figures, {} if name in (NOOP, SPARK) else {"Spark": _at(SPARK, percent)})
        for name in streams
        for percent in PERCENTILES
    ]
    return Result(
        benchmark="epochs",
        title="Small epochs",
        unit="s per epoch",
        wanted={"Spark": f"≤ 1.1; ≤ 1.3 for {GROWING}"},
        lines=lines,
        pairs=given.pairs,
        started=started,
        machine=machine(),
    )


def _at(name: str, percent: int) -> str:
    return f"{name}, P{percent}"


def percentile(durations: list[float], percent: int) -> float:
    """Return the smallest duration that at least this percentage of all durations does not exceed."""
    return sorted(durations)[-(-percent * len(durations) // 100) - 1]


def _streams() -> dict[str, Stream]:
    streams: dict[str, Stream] = {
        NOOP: _noop,
        SPARK: _spark,
        "jsonl, Python API": _python_api,
        GROWING: _growing,
    }
    if pyspark_version() >= OLDEST_FOR_OPTIONS:
        streams['jsonl, format("outfall")'] = _format_api
    return streams


def _python_api(df: DataFrame, scratch: Scratch) -> DataStreamWriter:
    return PythonApi().stream(df, FileSink(scratch.new()), scratch.new())


def _growing(df: DataFrame, scratch: Scratch) -> DataStreamWriter:
    return PythonApi(key="id").stream(df, FileSink(scratch.new(), parts=2), scratch.new())


def _format_api(df: DataFrame, scratch: Scratch) -> DataStreamWriter:
    options = {"sink": "file", "path": str(scratch.new()), "checkpointLocation": str(scratch.new())}
    return df.writeStream.format("outfall").options(**options)


def _noop(df: DataFrame, scratch: Scratch) -> DataStreamWriter:
    return df.writeStream.format("noop").option("checkpointLocation", str(scratch.new()))


def _spark(df: DataFrame, scratch: Scratch) -> DataStreamWriter:
    options = {"path": str(scratch.new()), "checkpointLocation": str(scratch.new())}
    return df.writeStream.format("json").options(**options)


if __name__ == "__main__":
    main(__doc__.splitlines()[0], DEFAULT, measure, KEPT)
