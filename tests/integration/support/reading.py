"""Reads what file sinks wrote, independently of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter


def visible(directory: Path) -> list[Path]:
    """The files that a reader like Spark looks at."""
    if not directory.is_dir():
        return []
    return sorted(path for path in directory.iterdir() if path.is_file() and path.name[0] not in "._")


def found(directory: Path) -> list[dict[str, Any]]:
    """All rows of all visible files: JSON lines or Parquet."""
    return [row for path in visible(directory) for row in rows_of(path.name, path.read_bytes())]


def rows_of(name: str, data: bytes) -> list[dict[str, Any]]:
    """The rows of a file of this name."""
    if name.endswith(".parquet"):
        return list(pq.read_table(pa.BufferReader(data)).to_pylist())
    return [json.loads(line) for line in data.splitlines()]


def found_ids(directory: Path) -> list[int]:
    """The ids of all rows, sorted."""
    return sorted(row["id"] for row in found(directory))


def write_source(directory: Path, files: int = 2, rows: int = 10, start: int = 0) -> Path:
    """Add one file per micro-batch: ids 0 to 9, 10 to 19, …, each with a key `k`."""
    directory.mkdir(exist_ok=True)
    for file in range(start, start + files):
        lines = [json.dumps({"id": i, "k": f"key-{i % 5}"}) for i in range(file * rows, (file + 1) * rows)]
        (directory / f"{file:05d}.json").write_text("\n".join(lines))
    return directory


def read_stream(spark: SparkSession, source: Path) -> DataFrame:
    """One file per micro-batch."""
    return spark.readStream.schema("id int, k string").option("maxFilesPerTrigger", 1).json(str(source))


def run(writer: DataStreamWriter) -> StreamingQuery:
    """Run a stream over all that its source has, and return the query when it has ended."""
    query = writer.trigger(availableNow=True).start()
    assert query.awaitTermination(600), "the stream did not come to an end"
    return query


def forget_commit(checkpoint: Path, epoch: int) -> None:
    """Take Spark's own commit entry away, so that it brings the epoch again."""
    for name in (f"{epoch}", f".{epoch}.crc"):
        (checkpoint / "commits" / name).unlink(missing_ok=True)


def edit_files(directory: Path, change: Callable[[Path], None]) -> None:
    """Apply a change to each visible file."""
    for path in visible(directory):
        change(path)
