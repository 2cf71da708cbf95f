"""How long an epoch takes, from what Spark says of each micro-batch."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import TYPE_CHECKING

from outfall.testing.benchmark.rows import SCHEMA, write_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter


def small_epochs(spark: SparkSession, directory: Path, *, epochs: int, rows: int) -> DataFrame:
    """Make a stream of `epochs` epochs with as many rows each, from files that are written if they are not there."""
    if not directory.exists():
        write_rows(directory, epochs * rows, per_file=rows)
    return spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(directory))


def seconds_per_epoch(writer: DataStreamWriter) -> float:
    """Run a stream to its end and return the median time of its epochs without the first, which starts things.

    The time is that of the whole trigger: the source, Spark's own log and the write.

    Raises:
        StreamingQueryException: the query failed.
        ValueError: it had fewer than two epochs with rows.
    """
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    progress = [p for p in query.recentProgress if p["numInputRows"]]
    if len(progress) < 2:
        raise ValueError(f"the stream had {len(progress)} epochs with rows, and at least 2 are needed")
    return float(statistics.median(p["durationMs"]["triggerExecution"] for p in progress[1:])) / 1000
