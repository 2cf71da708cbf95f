"""The rows that are written: five columns of the usual types."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

SCHEMA = "id long, x double, name string, ts timestamp, flag boolean"

_FILE_ROWS = 250_000
_NAMES = 1000
_FIRST = 1_700_000_000_000_000
_APART = 1_000_003
"""Microseconds between two rows; a prime, so that nearly all have microseconds of their own."""


def mixed_rows(start: int, rows: int) -> pa.Table:
    """Make rows `start` and following: an id, a double, one of a thousand names, a timestamp, a truth value."""
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
    """Write Parquet files, which Spark reads faster than any other format.

    Returns:
        The bytes of the rows as Arrow keeps them, which is how they come to a sink.
    """
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
