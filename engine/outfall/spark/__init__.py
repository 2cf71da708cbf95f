"""Outfall on Spark: two APIs for one engine.

The Python API, on Spark 3.5 and later: `write_stream`, `for_each_batch`, `write`, `drain`, `CommitPolicy`.
`df.writeStream.format("outfall")`, on Spark 4.1 and later, which requires no registration.
The way in: `deserialize`, which reads messages of Kafka with the schemas of a registry, and the package
`debezium`, which makes rows of Debezium's events.
For both APIs: `EpochListener`, which adds Outfall's counters to the progress that Spark reports.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from outfall.spark.version_check import OLDEST_FOR_OPTIONS, check_pyspark

check_pyspark()

from outfall.protocol.commit_retry import CommitPolicy
from outfall.spark.batch import write
from outfall.spark.deserialize import deserialize
from outfall.spark.epoch_listener import EpochListener, EpochProgress
from outfall.spark.stream import drain, for_each_batch, write_stream

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = [
    "CommitPolicy",
    "EpochListener",
    "EpochProgress",
    "deserialize",
    "drain",
    "for_each_batch",
    "register",
    "write",
    "write_stream",
]


def register(spark: SparkSession) -> None:
    """Register `format("outfall")` in a session.

    Required only if the Python process that Spark starts does not find the installed package `pyspark_outfall`.

    Raises:
        ImportError: PySpark is older than 4.1.
    """
    check_pyspark(OLDEST_FOR_OPTIONS)
    from outfall.spark.data_source import OutfallDataSource

    spark.dataSource.register(OutfallDataSource)
