"""Epochs written by `IcebergSink` into an embedded catalogue, without Spark, and read by other means."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import StringType

from outfall.iceberg import IcebergSink
from tests.integration.support.batch_driver import BatchDriver
from tests.integration.support.iceberg_catalogs import embedded, load
from tests.integration.support.iceberg_reader import SnapshotFiles, TableFiles

NAME = "db.flights"


class Lake:
    """A catalogue in SQLite with one table, and the queries that write to it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.properties = embedded(directory)
        self.catalog: Catalog = load(self.properties)
        self.catalog.create_namespace("db")

    def create(self, schema: Schema | pa.Schema, *partitioned_by: str, **properties: str) -> Table:
        """Make the table as its owner does, partitioned by columns' values or by `transform: column`."""
        table = self.catalog.create_table(NAME, schema, properties=properties)
        self.partition(*partitioned_by)
        return table.refresh()

    def make(self, columns: dict[str, Any], *partitioned_by: str) -> None:
        """Make the table as its owner does, with types by their names in Spark."""
        self.create(pa.schema([(name, _type(kind)) for name, kind in columns.items()]), *partitioned_by)

    def partition(self, *partitioned_by: str) -> None:
        """Partition the table by more columns."""
        if partitioned_by:
            with self.table.update_spec() as update:
                for term in partitioned_by:
                    transform, _, column = term.rpartition(": ")
                    update.add_field(column, transform or "identity", term.replace(": ", "_"))

    @property
    def table(self) -> Table:
        """The table as another writer has it, loaded anew."""
        return self.catalog.load_table(NAME)

    def append(self, *batches: pa.RecordBatch) -> None:
        """Append rows as another writer does."""
        self.table.append(pa.Table.from_batches(batches))

    def add_column(self, name: str) -> None:
        """Add a column of strings as another writer does."""
        with self.table.update_schema() as update:
            update.add_column(name, StringType())

    def remove_orphans(self) -> None:
        """Remove all data files that no snapshot has, as a careless owner does."""
        for path in self.data_files() - self._named():
            path.unlink()

    def sink(self, **options: Any) -> IcebergSink:
        return IcebergSink(NAME, catalog_options=self.properties, **options)

    def driver(self, recovery: str | None = None, **options: Any) -> BatchDriver:
        """A driver with recovery data of its own, or with those that are named."""
        return BatchDriver(self.sink(**options), str(self.directory / (recovery or f"log-{uuid.uuid4().hex}")))

    @property
    def files(self) -> TableFiles:
        """The table as its files describe it."""
        return TableFiles.of(self.directory / "catalog.db", NAME)

    def head(self, branch: str = "main") -> SnapshotFiles:
        return self.files.head(branch)

    def rows(self, *columns: str) -> list[Any]:
        """The table's rows, or a column's values, sorted."""
        found = self.files.rows()
        if len(columns) == 1:
            return sorted((row[columns[0]] for row in found), key=repr)
        return sorted(found, key=repr)

    @property
    def live(self) -> set[str]:
        """The data files that readers find."""
        return {str(path) for path in self.head().paths}

    @property
    def commits(self) -> int:
        """How often rows were committed."""
        return len(self.files.history())

    def left_over(self) -> set[Path]:
        """Files of ours that no snapshot has."""
        return {path for path in self.data_files() if "outfall" in path.parts} - self._named()

    def _named(self) -> set[Path]:
        return {path for snapshot in self.files.history() for path in snapshot.paths}

    @property
    def metadata_files(self) -> set[Path]:
        """All files below the table's metadata directory."""
        return set((self.directory / "warehouse").rglob("metadata/*"))

    def data_files(self) -> set[Path]:
        """All Parquet files below the table's data directory, whether it names them or not."""
        return set((self.directory / "warehouse").rglob("*.parquet"))


def _type(kind: Any) -> pa.DataType:
    """Return a table's type by its name in Spark, or by Delta's description of a struct."""
    if isinstance(kind, dict):
        return pa.struct([(each["name"], _type(each["type"])) for each in kind["fields"]])
    if kind.startswith("decimal"):
        precision, scale = kind.removeprefix("decimal(").rstrip(")").split(",")
        return pa.decimal128(int(precision), int(scale))
    return _TYPES[kind]


_TYPES = {
    "byte": pa.int32(), "long": pa.int64(), "string": pa.string(), "binary": pa.binary(), "boolean": pa.bool_(),
    "date": pa.date32(), "timestamp": pa.timestamp("us", "UTC"), "double": pa.float64(),
}  # fmt: skip
