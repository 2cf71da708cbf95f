"""Test data and directories: rows of common types, streams of small epochs, directories for one run."""

from __future__ import annotations

import shutil
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

SCHEMA = "id long, x double, name string, ts timestamp, flag boolean"

_FILE_ROWS = 250_000
_NAMES = 1000
_FIRST = 1_700_000_000_000_000
_APART = 1_000_003
"""Microseconds between two rows; a prime, so that almost all rows have nonzero microseconds."""


def mixed_rows(start: int, rows: int) -> pa.Table:
    """Return rows from number `start`: id, double, one of a thousand names, timestamp, boolean."""
    ids = pa.array(range(start, start + rows), pa.int64())
    index = pc.subtract(ids, pc.multiply(pc.divide(ids, _NAMES), _NAMES))
    moments = pc.add(pc.multiply(ids, _APART), _FIRST)
    return pa.table(
        {
            "id": ids,
            "x": pc.multiply(pc.random(rows, initializer=start), 1000.0),
            "name": pa.array([f"name-{number}" for number in range(_NAMES)]).take(index),
            "ts": moments.cast(pa.timestamp("us", "UTC")),
            "flag": pc.equal(pc.bit_wise_and(ids, 1), 0),
        }
    )


def write_rows(directory: Path, rows: int, *, per_file: int = _FILE_ROWS) -> int:
    """Write Parquet, the fastest format for Spark's reader. Return the bytes in Arrow, as a sink receives the rows."""
    directory.mkdir(parents=True)
    size = 0
    for start, count in _cut(rows, per_file):
        table = mixed_rows(start, count)
        size += table.nbytes
        pq.write_table(table, directory / f"rows-{start:012d}.parquet")
    return size


def _cut(rows: int, per_file: int) -> Iterator[tuple[int, int]]:
    for start in range(0, rows, per_file):
        yield start, min(per_file, rows - start)


def small_epochs(spark: SparkSession, directory: Path, *, epochs: int, rows: int) -> DataFrame:
    """Return a stream of `epochs` equal epochs from files, which are created if they are missing."""
    if not directory.exists():
        write_rows(directory, epochs * rows, per_file=rows)
    return spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(directory))


def seconds_per_epoch(writer: DataStreamWriter) -> float:
    """Run a stream to its end, and return the median duration of its epochs. See `epoch_durations`."""
    return float(statistics.median(epoch_durations(writer)))


def epoch_durations(writer: DataStreamWriter) -> list[float]:
    """Run a stream to its end, and return the seconds of each epoch with rows without the first, a warm-up.

    A duration covers the whole trigger: source, Spark's own log and write. See `epoch_reports`.
    """
    return [report["triggerExecution"] for report in epoch_reports(writer)]


def epoch_reports(writer: DataStreamWriter) -> list[dict[str, float]]:
    """Run a stream to its end, and return Spark's report of each epoch with rows without the first: name → seconds.

    `triggerExecution` is the whole of it, and `addBatch` the write. Spark keeps the reports of the last
    `spark.sql.streaming.numRecentProgressUpdates` epochs. Raises `StreamingQueryException` if the query failed, and
    `ValueError` if it had fewer than two epochs with rows.
    """
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    progress = [p for p in query.recentProgress if p["numInputRows"]]
    if len(progress) < 2:
        raise ValueError(f"the stream had {len(progress)} epochs with rows, and at least 2 are needed")
    return [{name: millis / 1000 for name, millis in p["durationMs"].items()} for p in progress[1:]]


class Scratch:
    """Creates and removes temporary directories. Use it as a context manager."""

    def __init__(self, below: str | None = None) -> None:
        """Create directories below the given one, or below the system's temporary directory."""
        self._root = Path(tempfile.mkdtemp(prefix="outfall-benchmark-", dir=below))
        self._count = 0

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Remove everything."""
        shutil.rmtree(self._root, ignore_errors=True)

    @property
    def rows(self) -> Path:
        """Directory for input rows. It is not created yet, and `clear` keeps it."""
        return self._root / "rows"

    def new(self) -> Path:
        """Make an empty directory."""
        self._count += 1
        path = self._root / "runs" / str(self._count)
        path.mkdir(parents=True)
        return path

    def clear(self) -> None:
        """Remove all directories of `new`, including data that is not yet on disk."""
        shutil.rmtree(self._root / "runs", ignore_errors=True)
