"""A table of the JVM for each test."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.peers.support.jvm_iceberg import JvmTable


@pytest.fixture
def new_table(spark: SparkSession, sqlite_catalog: dict[str, str], tmp_path: Path) -> Callable[[], JvmTable]:
    """Names tables that do not exist yet."""
    return lambda: JvmTable(spark, sqlite_catalog, tmp_path)


@pytest.fixture
def table(new_table: Callable[[], JvmTable]) -> JvmTable:
    """A table that does not exist yet."""
    return new_table()
