"""A table for each test, in a directory that Delta's own engine reads and writes too."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.integration.support.delta_epochs import Shore
from tests.peers.support.jvm_tables import JvmTable

_SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    # Tables of a few rows, whose metadata would be read by 50 tasks, each with code that is compiled for it.
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.files.openCostInBytes": "0",
    # VACUUM lists a directory by as many tasks.
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "1",
    # For VACUUM of everything that no version names.
    "spark.databricks.delta.retentionDurationCheck.enabled": "false",
}


@pytest.fixture
def delta(spark: SparkSession) -> Iterator[SparkSession]:
    """The session, with settings for small tables."""
    before = {name: spark.conf.get(name, None) for name in _SETTINGS}
    for name, value in _SETTINGS.items():
        spark.conf.set(name, value)
    yield spark
    for name, earlier in before.items():
        if earlier is None:
            spark.conf.unset(name)
        else:
            spark.conf.set(name, earlier)


@pytest.fixture
def shore(tmp_path: Path) -> Shore:
    return Shore(tmp_path)


@pytest.fixture
def jvm(delta: SparkSession, shore: Shore) -> JvmTable:
    """The table of `shore`, in the JVM."""
    return JvmTable(delta, f"delta.`{shore.path}`")
