"""What the tests on peers share: Spark with the engines of the table formats, and what integration tests share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest
from pyspark.sql import SparkSession

from tests.integration.conftest import crash_order, postgres, s3, spark_environment
from tests.peers.support.jars import jars

__all__ = ["crash_order", "postgres", "s3"]

SPARK = "4.1.1"
"""The Spark that the jars of the profile `spark-4.1` are made for: Delta 4.2.0 fails on 4.1.4."""


@pytest.fixture(scope="session")
def sqlite_catalog(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The properties of a catalog in a file, for pyiceberg; Spark has the same one as `ice`."""
    folder = tmp_path_factory.mktemp("iceberg")
    return {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}/warehouse"}


@pytest.fixture(scope="session")
def spark(
    tmp_path_factory: pytest.TempPathFactory, crash_order: Path, sqlite_catalog: dict[str, str]
) -> Iterator[SparkSession]:
    """A classic session on two cores, with the engines of Iceberg (catalog `ice`) and Delta, and Spark's Kafka."""
    if pyspark.__version__ != SPARK:
        pytest.fail(f"needs pyspark {SPARK}, this is {pyspark.__version__}: nox -s peers installs it", pytrace=False)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in spark_environment().items():
            patch.setenv(name, value)
        patch.setenv("OUTFALL_TEST_CRASH_ORDER", str(crash_order))
        builder = SparkSession.builder.master("local[2]")
        for key, value in jvm_settings(sqlite_catalog, tmp_path_factory.mktemp("warehouse")).items():
            builder = builder.config(key, value)
        session = builder.getOrCreate()
        session.sparkContext.setLogLevel("ERROR")
        yield session
        session.stop()


def jvm_settings(catalog: dict[str, str], warehouse: Path) -> dict[str, str]:
    """Return the settings of a Spark session that has the engines of both table formats."""
    ice = "spark.sql.catalog.ice"
    return {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(warehouse),
        "spark.driver.extraClassPath": f"{jars('spark-4.1')}/*",
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions,"
        "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        ice: "org.apache.iceberg.spark.SparkCatalog",
        f"{ice}.type": "jdbc",
        f"{ice}.uri": f"jdbc:{catalog['uri'].replace('sqlite:///', 'sqlite:')}",
        f"{ice}.warehouse": catalog["warehouse"],
        # The name that pyiceberg gives the rows of its SqlCatalog, when it is loaded under this name.
        f"{ice}.jdbc.schema-version": "V1",
        # Others write the tables too.
        f"{ice}.cache-enabled": "false",
    }
