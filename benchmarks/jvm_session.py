"""The session of the benchmarks beside Spark's own sinks: the Spark that the peers' jars are made for."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pyspark
import pytest
from pyspark.sql import SparkSession

from benchmarks.common import Given, main
from benchmarks.results import Result
from outfall.testing.benchmark.rows import Scratch
from tests.peers.conftest import SPARK, jvm_settings

BATCH_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
LIMITS = {"": None, ", Spark's limit of bytes": "64m"}
"""Suffix of a job's name → the setting: without one, Outfall decides, and with one, Spark ends batches by bytes."""

Catalog = dict[str, str]
MeasureBeside = Callable[[SparkSession, Given, Scratch, Catalog], Result]


def main_beside(description: str, default: Given, measure: MeasureBeside) -> None:
    """Run a benchmark in a session with the engines of Iceberg (catalog `ice`) and Delta, and Spark's Kafka sink.

    Exits with an error if this is another Spark, or if the jars can not be fetched.
    """
    if pyspark.__version__ != SPARK:
        sys.exit(f"This needs pyspark {SPARK}, and finds {pyspark.__version__}. What to do: nox -s peers_bench")
    with tempfile.TemporaryDirectory(prefix="outfall-benchmark-") as lake:
        catalog = {"type": "sql", "uri": f"sqlite:///{lake}/catalog.db", "warehouse": f"file://{lake}/warehouse"}
        try:
            settings = jvm_settings(catalog, Path(lake, "spark"))
        except (pytest.fail.Exception, pytest.skip.Exception) as failure:
            sys.exit(f"The jars of the peers are missing: {failure}")
        main(description, default, lambda spark, given, scratch: measure(spark, given, scratch, catalog), settings)


def limited(spark: SparkSession, limit: str | None, job: Callable[[], int | None]) -> Callable[[], int | None]:
    """Return a job that runs with a limit on the bytes of the batches that Spark sends to Python."""

    def run() -> int | None:
        if limit is None:
            spark.conf.unset(BATCH_BYTES)
        else:
            spark.conf.set(BATCH_BYTES, limit)
        return job()

    return run
