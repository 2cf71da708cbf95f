"""A Spark session in this process, so that its whole process tree can be measured."""

from __future__ import annotations

import os
import sys
import uuid
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from outfall.testing.benchmark.processes import peak_memory, worker_ids

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.log.level": "ERROR",
    "spark.sql.session.timeZone": "UTC",
    # The progress of every epoch of a measured stream.
    "spark.sql.streaming.numRecentProgressUpdates": "1000",
}


def start_session(master: str, settings: Mapping[str, str]) -> SparkSession:
    """Start Spark.

    Args:
        master: `local[…]`: what runs elsewhere would not be measured.
        settings: of Spark, in place of ours.

    Raises:
        ImportError: pyspark is not installed.
    """
    from outfall.spark.version_check import check_pyspark

    check_pyspark()
    # Workers are this Python, and find the module of the sink where this process has found it.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [os.getcwd(), os.environ.get("PYTHONPATH")]))
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(master).appName("outfall benchmark")
    for name, value in {**_SETTINGS, **settings}.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def worker_memory(spark: SparkSession, job: Callable[[], object]) -> int | None:
    """Run a job in Python workers of its own and return the peak memory of the largest, in bytes.

    Of its own, since a worker that is used again still holds what an earlier job has taken.
    """
    # Spark keeps workers per environment.
    spark.sparkContext.environment["OUTFALL_BENCHMARK_WORKERS"] = uuid.uuid4().hex
    before = worker_ids()
    job()
    return peak_memory(worker_ids() - before)
