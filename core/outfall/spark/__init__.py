"""Outfall on Spark: two APIs over one engine.

Sink objects, on Spark 3.5 and later: `write_stream`, `for_each_batch`, `write`, `drain`, `CommitPolicy`.
Options only, on Spark 4.1 and later: `df.writeStream.format("outfall")`, found without registration.
For both, on Spark 3.5 and later: `EpochListener`, which adds Outfall's counts to the progress that Spark reports.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from outfall.spark.version_check import OLDEST_FOR_OPTIONS, check_pyspark

check_pyspark()

from outfall.protocol.commit_retry import CommitPolicy  # noqa: E402 - a missing or old pyspark gets its own error first
from outfall.spark.batch import write  # noqa: E402
from outfall.spark.epoch_listener import EpochListener, EpochProgress  # noqa: E402
from outfall.spark.stream import drain, for_each_batch, write_stream  # noqa: E402

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = [
    "CommitPolicy",
    "EpochListener",
    "EpochProgress",
    "drain",
    "for_each_batch",
    "register",
    "write",
    "write_stream",
]


def register(spark: SparkSession) -> None:
    """Make `format("outfall")` known to a session.

    Needed only where the Python that Spark starts does not see the installed package `pyspark_outfall`.

    Raises:
        ImportError: PySpark is older than 4.1.
    """
    check_pyspark(OLDEST_FOR_OPTIONS)
    from outfall.spark.data_source import OutfallDataSource

    spark.dataSource.register(OutfallDataSource)
