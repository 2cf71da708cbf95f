"""`format("outfall")` where Spark does not find it by itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from outfall.spark.version_check import OLDEST_FOR_OPTIONS, check_pyspark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> None:
    """Make `format("outfall")` known to a session.

    Needed only where the Python that Spark starts does not see the installed package `pyspark_outfall`.

    Raises:
        ImportError: PySpark is older than 4.1.
    """
    check_pyspark(OLDEST_FOR_OPTIONS)
    from outfall.spark.data_source import OutfallDataSource

    spark.dataSource.register(OutfallDataSource)
