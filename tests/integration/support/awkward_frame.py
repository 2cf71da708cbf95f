"""The awkward rows as a DataFrame, for tables whose files Spark's own writer encodes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from outfall.spark.version_check import pyspark_version
from tests.integration.support import awkward
from tests.integration.support.awkward import CASES, DELTA, ROWS, Filter

IN_CHUNKS = {"maxRecordsPerFile": ROWS}
TIMESTAMPS = "spark.sql.parquet.outputTimestampType"
_NEEDED = {TIMESTAMPS: "TIMESTAMP_MICROS", "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED"}
"""Spark 3.5 alone refuses dates before 1582 without the second one."""


@contextmanager
def with_timestamps(spark: SparkSession) -> Iterator[None]:
    """Set what a user must set for a table with timestamps, before Spark 4.3."""
    before = {name: str(spark.conf.get(name)) for name in _NEEDED}
    for name, value in _NEEDED.items() if pyspark_version() < (4, 3) else ():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            spark.conf.set(name, value)


def kept(given: pa.DataType, sink: str) -> bool:
    """Whether Spark's writer writes the type for a table of the format."""
    if pa.types.is_time(given) or (pa.types.is_fixed_size_binary(given) and not pa.types.is_decimal(given)):
        return False
    return sink == DELTA or not (pa.types.is_list(given) or pa.types.is_map(given))


def awkward_rows(spark: SparkSession, sink: str, directory: Path) -> tuple[DataFrame, set[str]]:
    """Rows of every type, and the names of their columns. With `IN_CHUNKS`, each chunk gets a file."""
    names = [case.name for case in CASES if sink in case.sinks and kept(case.kind, sink)]
    chunks = [chunk.select(names) for chunk in awkward.chunks(sink)]
    for number, chunk in enumerate(chunks):
        pq.write_table(pa.Table.from_batches([chunk]), directory / f"{number}.parquet", store_schema=False)
    # Spark 3.5 reads no dates before 1582 without it.
    return spark.read.option("datetimeRebaseMode", "CORRECTED").parquet(str(directory)), set(names)


def filters(sink: str, names: set[str]) -> list[Filter]:
    return [each for each in awkward.filters(sink, every=False) if each.path[0] in names]
