"""A table that Spark's JVM made by Iceberg's own library, written by `IcebergSink` too, and counted by the JVM."""

from __future__ import annotations

import gzip
import json
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.catalog import Catalog, load_catalog
from pyspark.sql import DataFrame, SparkSession

from outfall.iceberg import IcebergSink
from tests.integration.support.batch_driver import BatchDriver, batch
from tests.integration.support.iceberg_reader import path_of

NAMESPACE = "ns"
CATALOG = "ice"
"""What Spark and pyiceberg both call the catalog: its rows in SQLite have the name."""
COLUMNS = "id BIGINT, name STRING"
LATER = "TIMESTAMP '2100-01-01 00:00:00'"


def rows(*ids: int) -> pa.RecordBatch:
    """Rows of `COLUMNS`."""
    return batch(id=pa.array(ids, pa.int64()), name=pa.array([f"n{each}" for each in ids]))


class JvmTable:
    """One table in a catalog that both engines have open. `create`, or a sink, makes it."""

    def __init__(self, spark: SparkSession, properties: Mapping[str, str], recovery: Path) -> None:
        self.spark = spark
        self.properties = dict(properties)
        self._recovery = recovery
        self.short = f"t{uuid.uuid4().hex[:10]}"
        self.name = f"{NAMESPACE}.{self.short}"
        self.jvm = f"{CATALOG}.{self.name}"
        self.catalog: Catalog = load_catalog(CATALOG, **self.properties)
        self.catalog.create_namespace_if_not_exists(NAMESPACE)

    # --- the JVM

    def sql(self, statement: str) -> DataFrame:
        """Run a statement, or plan a query; `{t}` in it is the table."""
        return self.spark.sql(statement.replace("{t}", self.jvm))

    def create(self, columns: str = COLUMNS, how: str = "", properties: Mapping[str, str] | None = None) -> JvmTable:
        """Make the table, with clauses such as `PARTITIONED BY`."""
        self.sql(f"CREATE TABLE {{t}} ({columns}) USING iceberg {how}")
        if properties:
            self.set(properties)
        return self

    def set(self, properties: Mapping[str, str]) -> None:
        """Set table properties."""
        listed = ", ".join(f"'{name}' = '{value}'" for name, value in properties.items())
        self.sql(f"ALTER TABLE {{t}} SET TBLPROPERTIES ({listed})")

    def insert(self, *ids: int, into: str = "{t}") -> None:
        """Append rows of `COLUMNS`."""
        values = ", ".join(f"({each}, 'n{each}')" for each in ids)
        self.sql(f"INSERT INTO {into} (id, name) VALUES {values}")

    def call(self, procedure: str, **arguments: Any) -> DataFrame:
        """Call one of Iceberg's procedures on the table."""
        given = ", ".join(f"{name} => {value}" for name, value in {"table": f"'{self.name}'", **arguments}.items())
        return self.sql(f"CALL {CATALOG}.system.{procedure}({given})")

    def expire(self) -> None:
        """Expire all snapshots but the heads, with their files."""
        self.call("expire_snapshots", older_than=LATER, retain_last=1)

    def read(self, what: str = "*", of: str = "{t}") -> list[Any]:
        """Return what the JVM reads now, sorted: rows, or the values of a single column."""
        found = [tuple(row) for row in self.sql(f"SELECT {what} FROM {of}").collect()]
        return sorted((row[0] if len(row) == 1 else row for row in found), key=repr)

    def ids(self, of: str = "{t}") -> list[int]:
        """Return the ids that the JVM reads, in ascending order."""
        return sorted(self.read("id", of))

    @property
    def java(self) -> Any:
        """Iceberg's own object of the table, loaded anew."""
        jvm: Any = self.spark._jvm
        return jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(self.spark._jsparkSession, self.jvm)

    # --- this project

    def sink(self, **options: Any) -> IcebergSink:
        return IcebergSink(self.name, catalog=CATALOG, catalog_options=self.properties, **options)

    def driver(self, step: str = "sink", **options: Any) -> BatchDriver:
        """A driver of a step; of the same step, it takes over what the one before has recorded."""
        return BatchDriver(self.sink(**options), str(self._recovery / step), step_id=step)

    # --- files

    @property
    def metadata(self) -> dict[str, Any]:
        """The content of the newest metadata file."""
        content = path_of(self.catalog.load_table(self.name).metadata_location).read_bytes()
        return dict(json.loads(gzip.decompress(content) if content.startswith(b"\x1f\x8b") else content))

    @property
    def snapshots(self) -> list[int]:
        """The ids of all snapshots, the oldest first."""
        found = sorted(self.metadata.get("snapshots", []), key=lambda each: each["sequence-number"])
        return [each["snapshot-id"] for each in found]
