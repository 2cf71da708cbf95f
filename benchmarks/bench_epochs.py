"""Seconds per epoch of a hundred rows: `FileSink`, the empty sink through the same API, and Spark's own file sink.

python -m benchmarks.bench_epochs --rows 1200 --pairs 5
"""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from benchmarks.common import Given, machine, main, seconds
from benchmarks.results import Result, now
from outfall.file import FileSink
from outfall.spark.version_check import OLDEST_FOR_OPTIONS, pyspark_version
from outfall.testing.benchmark import EmptySink
from outfall.testing.benchmark.apis import Api, FormatApi, PythonApi
from outfall.testing.benchmark.rows import Scratch, seconds_per_epoch, small_epochs
from outfall.testing.benchmark.runs import rounds

DEFAULT = Given(rows=1200, pairs=5)
EPOCH_ROWS = 100
EMPTY, SPARK = "empty sink", "Spark json"

Stream = Callable[[DataFrame, Scratch], DataStreamWriter]


def measure(spark: SparkSession, given: Given, scratch: Scratch) -> Result:
    """Run each stream to its end, in turn."""
    started = now()
    epochs = max(3, given.rows // EPOCH_ROWS)
    df = small_epochs(spark, scratch.rows / "epochs", epochs=epochs, rows=EPOCH_ROWS)
    streams = _streams()
    figures: dict[str, list[float]] = {name: [] for name in streams}
    for number, name in rounds(streams, 1 + given.pairs):
        figure = seconds_per_epoch(streams[name](df, scratch))
        scratch.clear()
        if number > 0:  # the first warms up
            figures[name].append(figure)
    group = f"epochs of {EPOCH_ROWS} rows, {epochs} a run"
    lines = [seconds(group, name, figures, _peers(name)) for name in streams]
    return Result(
        benchmark="epochs",
        title="Small epochs",
        unit="s per epoch",
        wanted={EMPTY: "≤ 1.2"},
        lines=lines,
        pairs=given.pairs,
        started=started,
        machine=machine(),
    )


def _peers(name: str) -> dict[str, str]:
    label, _, api = name.partition(", ")
    return {EMPTY: f"{EMPTY}, {api}", "Spark": SPARK} if label == "jsonl" else {}


def _streams() -> dict[str, Stream]:
    streams: dict[str, Stream] = {
        f"{EMPTY}, Python API": _empty(PythonApi()),
        "jsonl, Python API": _python_api,
        SPARK: _spark,
    }
    if pyspark_version() >= OLDEST_FOR_OPTIONS:
        streams |= {
            f'{EMPTY}, format("outfall")': _empty(FormatApi()),
            'jsonl, format("outfall")': _format_api,
        }
    return streams


def _empty(api: Api) -> Stream:
    return lambda df, scratch: api.stream(df, EmptySink(), scratch.new())


def _python_api(df: DataFrame, scratch: Scratch) -> DataStreamWriter:
    return PythonApi().stream(df, FileSink(scratch.new()), scratch.new())


def _format_api(df: DataFrame, scratch: Scratch) -> DataStreamWriter:
    options = {"sink": "file", "path": str(scratch.new()), "checkpointLocation": str(scratch.new())}
    return df.writeStream.format("outfall").options(**options)


def _spark(df: DataFrame, scratch: Scratch) -> DataStreamWriter:
    options = {"path": str(scratch.new()), "checkpointLocation": str(scratch.new())}
    return df.writeStream.format("json").options(**options)


if __name__ == "__main__":
    main(__doc__.splitlines()[0], DEFAULT, measure)
