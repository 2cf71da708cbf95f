"""`IcebergSink`: rows in an Iceberg table, one snapshot per epoch."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Self, Unpack

import pyarrow as pa

from outfall.capabilities import changed
from outfall.errors import ConfigurationError, TargetError, TransientError
from outfall.iceberg.options import MAIN, IcebergArguments, IcebergOptions
from outfall.options import make_options, names_arguments
from outfall.possession.possession import check_same_name
from outfall.tables.keyed_sink import KeyedTableSink
from outfall.tables.many import TABLES_AT_ONCE

if TYPE_CHECKING:
    from outfall.capabilities import TargetContext
    from outfall.iceberg.catalog import Catalogue
    from outfall.iceberg.table import IcebergTable
    from outfall.target_record import TargetRecord

_CLOCKS_DIFFER = 60
"""Seconds by which Iceberg's Java library lets the time of a change be before the previous one."""


class IcebergSink(KeyedTableSink):
    """Writes rows to an Iceberg table: each epoch becomes one snapshot, which readers see completely or not at all.

    Item type: rows (dicts or Arrow batches), whose columns are matched by name.

    What must exist: the catalog; the table, unless `create_table="if_missing"`; and permission to change the table and
    to write below its data directory. The executors need the latter permission too, and get the driver's configuration
    of the files.

    Unit of parallelism: each Spark task writes its own Parquet files, one per partition, and returns their metadata.
    The driver commits the files of an epoch, with a record, as a compare-and-swap on the branch head. For `upsert` and
    `delete`, the driver also rewrites the files of the table that have the keys of the epoch.

    Guarantee: exactly once, with retries, killed processes, zombies and lost responses.

    Args:
        table: the table with its namespace, as `namespace.table`; omitted with `table_column`. See `IcebergOptions`,
            also for the other arguments.
        catalog: the name of the catalog in pyiceberg's configuration.
        catalog_options: pyiceberg properties: `uri`, `warehouse`, `credential`, `s3.endpoint`, …
        branch: the branch to commit to; `None` for `main`.
        max_snapshot_age: after each epoch, expire snapshots that are older than this.
        snapshot_properties: additional entries of the snapshot summary.
        options: the options of `KeyOptions`: `write_mode`, `create_table`, `partition_by`, …

    Raises:
        ConfigurationError: lists every wrong option.
    """

    options: IcebergOptions

    @names_arguments
    def __init__(
        self,
        table: str | None = None,
        *,
        catalog: str = "default",
        catalog_options: Mapping[str, Any] | None = None,
        branch: str | None = None,
        max_snapshot_age: timedelta | float | str | None = None,
        snapshot_properties: Mapping[str, str] | None = None,
        **options: Unpack[IcebergArguments],
    ) -> None:
        given: dict[str, Any] = {
            "table": table,
            "catalog": catalog,
            "catalog_options": catalog_options or {},
            "branch": branch,
            "max_snapshot_age": max_snapshot_age,
            "snapshot_properties": snapshot_properties or {},
        }
        self.options = make_options(IcebergOptions, given | options)
        self._catalogue: Catalogue | None = None

    def __repr__(self) -> str:
        return f"IcebergSink({self.options.identifier!r}, catalog={self.options.catalog!r}, branch={self.options.on!r})"

    def kind(self) -> str:
        return "iceberg"

    def target(self) -> str:
        branch = "" if self.options.on == MAIN else f", branch {self.options.branch}"
        # A named catalog may move to another server; without a name, only the server distinguishes catalogs.
        named = self.options.catalog != type(self.options).model_fields["catalog"].default
        catalog = self.options.catalog if named else self.catalogue.place
        return f"{catalog} {self.options.identifier}{branch}"

    def find_moved(self, context: TargetContext[Any], recorded: str) -> TargetRecord | None:
        # The record is one of the table, with all its branches.
        check_same_name(self.target().partition(", branch ")[2], recorded.partition(", branch ")[2], "the branch")
        return super().find_moved(context, recorded)

    def place(self) -> str:
        # Rows may name any table of the catalog, as far as it is known before they come.
        here = f"{self.catalogue.place} /"
        return here if self.options.are_many else f"{here} {self.options.table} {self.options.on}"

    def requires(self) -> Sequence[str]:
        return (
            *(("tasks reach the catalog, with the configuration of the driver",) if self.options.are_many else ()),
            "a catalog that changes a table only if its head is the expected one",
            "orphan removal that keeps files younger than the longest standstill of the query",
            "table properties that begin with outfall.step must not be removed",
        )

    @property
    def catalogue(self) -> Catalogue:
        """The catalog, opened on first use."""
        if self._catalogue is None:
            # Imported here: the import of pyiceberg takes a second, and tasks need no catalog.
            from outfall.iceberg.catalog import Catalogue

            self._catalogue = Catalogue(self.options.catalog, self.options.catalog_options)
        return self._catalogue

    def load(self) -> IcebergTable | None:
        loaded = self.catalogue.load(self.options.identifier)
        if loaded is None:
            return None
        version, refs, on = loaded.metadata.format_version, loaded.metadata.refs, self.options.on
        if version != 2:
            raise ConfigurationError(
                f"{self.target()} has format version {version}",
                why="version 1 has no sequence numbers, which are needed to detect a rollback" if version == 1
                else "pyiceberg does not write it yet",
                do="upgrade it to version 2" if version == 1 else "write it with Spark, or recreate it with version 2",
            )  # fmt: skip
        if on != MAIN and (on not in refs or refs[on].snapshot_ref_type != "branch"):
            raise TargetError(
                f"{self.options.identifier} has {'a tag' if on in refs else 'no branch'} {on!r}",
                why="the sink creates no branch, because readers would not find a misspelled one",
                do=f"create the branch (Spark: ALTER TABLE … CREATE BRANCH {on}), or set another one",
            )
        self._check_clock(loaded.metadata.last_updated_ms / 1000 - time.time())
        table = self._table(loaded)
        if self.options.write_mode == "overwrite_partitions":
            table.check_replaceable()
        elif self.options.has_keys:
            table.check_mergeable()
        return table

    def newest(self) -> IcebergTable | None:
        loaded = self.catalogue.load(self.options.identifier)
        return None if loaded is None else self._table(loaded)

    def _table(self, loaded: Any) -> IcebergTable:
        from outfall.iceberg.table import IcebergTable

        summary = dict(self.options.snapshot_properties)
        return IcebergTable(loaded, self.catalogue, self.options.on, summary, f"table {self.target()}")

    def _check_clock(self, ahead: float) -> None:
        """Reject a table whose last change is in the future, by the seconds in `ahead`. pyiceberg commits to it.

        Raises `TransientError`: the time passes.
        """
        if ahead > _CLOCKS_DIFFER:
            raise TransientError(
                f"{self.target()} was last changed {ahead:.0f} seconds after the current time of this driver",
                why="the times in a table must ascend, with a tolerance of one minute: after a commit with an earlier"
                " time, Iceberg's Java library rejects the whole table",
                do="set the clock of the driver, and those of the machines that change the table",
            )

    def check_new(self, rows: pa.Schema) -> None:
        self._described(rows)

    def create(self, rows: pa.Schema) -> None:
        from pyiceberg.exceptions import TableAlreadyExistsError

        schema, spec = self._described(rows)
        name = self.options.identifier
        namespace = tuple(name.split(".")[:-1])
        with self.catalogue.translated_errors(f"{self.target()} could not be created"):
            self.catalogue.opened.create_namespace_if_not_exists(namespace)
            try:
                self.catalogue.opened.create_table(name, schema, partition_spec=spec)
            except TableAlreadyExistsError:
                return
            self.catalogue.make_durable()

    def _described(self, rows: pa.Schema) -> tuple[Any, Any]:
        """Return the columns and the partition spec of a table for rows."""
        from outfall.iceberg.columns import new_schema
        from outfall.iceberg.partitions import new_spec

        schema = new_schema(rows)
        return schema, new_spec(schema, self.options.terms)

    def follow_up(self) -> None:
        """Expire old snapshots."""
        age = self.options.max_snapshot_age
        table = None if age is None else self.load()
        if table is None or age is None:
            return
        from outfall.iceberg.expire import expire

        with self.catalogue.translated_errors(f"snapshots of {self.target()} could not be expired"):
            if expire(table.loaded, age):
                self.catalogue.make_durable()

    def of_table(self, name: str) -> Self:
        _ = self.catalogue  # opened once for all tables
        return super().of_table(name)

    def calls_at_once(self) -> int:
        return TABLES_AT_ONCE if self.catalogue.is_shared_by_threads() else 1

    def reach(self) -> None:
        with self.catalogue.translated_errors(f"the catalog {self.options.catalog!r} cannot be reached"):
            _ = self.catalogue.opened

    def for_tasks(self) -> Self:
        return changed(self, _catalogue=self.catalogue.with_configuration())

    def existing(self) -> Iterator[str]:
        with self.catalogue.translated_errors(f"the tables of the catalog {self.options.catalog!r} cannot be listed"):
            for entry in self.options.allowed_tables:
                yield from self.catalogue.tables(entry.split("."))

    def check_connection(self) -> Sequence[str]:
        if self.options.are_many:
            return self.check_tables(f"the catalog {self.options.catalog!r} responds")
        table = self.load()
        found = [f"the catalog {self.options.catalog!r} responds"]
        if table is None:
            if self.options.create_table == "never":
                raise self._missing()
            return [*found, f"{self.options.identifier} does not exist and will be created"]
        area = table.files.area
        with self.catalogue.translated_errors(f"{area.root} cannot be listed"):
            area.names("outfall")
        return [
            *found,
            f"{self.options.identifier} exists, with branch {self.options.on!r}",
            f"{area.root} can be listed from here; write access was not tested",
        ]
