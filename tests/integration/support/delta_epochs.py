"""Epochs written by `DeltaSink` into a table on a disk, without Spark, and read by its log and its files alone."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, Field, write_deltalake

from outfall.delta import DeltaSink
from tests.integration.support.batch_driver import BatchDriver
from tests.unit.support.delta_reader import Version, newest, versions, write_table


class Shore:
    """A directory with one table, and the queries that write to it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.path = directory / "table"

    def create(self, columns: dict[str, Any], *partitioned_by: str, **more: Any) -> None:
        """Make the table as its owner does, with types as Delta writes them."""
        write_table(self.path, columns, partitioned_by, **more)

    def make(self, columns: dict[str, Any], *partitioned_by: str) -> None:
        """Make the table as its owner does."""
        self.create(columns, *partitioned_by)

    @property
    def table(self) -> DeltaTable:
        """The table as another writer has it, loaded anew."""
        return DeltaTable(self.path)

    def append(self, *batches: pa.RecordBatch, **more: Any) -> None:
        """Append rows as another writer does."""
        write_deltalake(self.path, pa.Table.from_batches(batches), mode="append", **more)

    def add_column(self, name: str) -> None:
        """Add a column of strings as another writer does."""
        self.table.alter.add_columns([Field.from_arrow(pa.field(name, pa.string()))])

    def remove_orphans(self) -> None:
        """Remove all files that no version has, as a careless owner does."""
        self.table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False, full=True)

    def sink(self, **options: Any) -> DeltaSink:
        return DeltaSink(self.path, **options)

    def driver(self, recovery: str | None = None, **options: Any) -> BatchDriver:
        """A driver with recovery data of its own, or with those that are named."""
        log = str(self.directory / (recovery or f"log-{uuid.uuid4().hex}"))
        return BatchDriver(self.sink(**options), log)

    @property
    def newest(self) -> Version:
        """The table as readers find it."""
        return newest(self.path)

    @property
    def versions(self) -> list[Version]:
        """Each version of it that can be read."""
        return list(versions(self.path))

    def rows(self, *columns: str) -> list[Any]:
        """The table's rows, or a column's values, sorted."""
        found: Iterable[Any] = self.newest.rows()
        if len(columns) == 1:
            found = (row[columns[0]] for row in found)
        return sorted(found, key=repr)

    @property
    def live(self) -> set[str]:
        """The data files that readers find."""
        return set(self.newest.files)

    @property
    def commits(self) -> int:
        """How often rows were committed: without the creation of the table."""
        return len(self.versions) - 1

    def left_over(self) -> set[str]:
        """Files of ours that no version names."""
        named = {name for version in self.versions for name in version.files}
        return {str(path.relative_to(self.path)) for path in self.path.glob("outfall/**/*.parquet")} - named
