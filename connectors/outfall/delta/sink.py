"""`DeltaSink`: rows in a Delta table, one version per epoch."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Sequence
from typing import Self, Unpack

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Schema
from deltalake.exceptions import DeltaError

from outfall.delta.columns import new_schema
from outfall.delta.features import check_table_features
from outfall.delta.files import check_no_links
from outfall.delta.options import DeltaArguments, DeltaOptions, check_environment
from outfall.delta.partition_values import check_partitioning
from outfall.delta.table import LoadedDelta
from outfall.errors import ConfigurationError
from outfall.options import make_options, names_arguments
from outfall.store_errors import Operation, explained
from outfall.tables.keyed_sink import KeyedTableSink
from outfall.tables.many import TABLES_AT_ONCE
from outfall.urls import masked


class DeltaSink(KeyedTableSink):
    """Writes rows to a Delta table. Each epoch is one version, so readers see all its rows at once.

    Item type: rows (dicts or Arrow batches).

    What must exist: the table, unless `create_table="if_missing"`, and permission to write, list and delete in its
    directory, for the driver and for all executors.

    Unit of parallelism: each Spark task writes its own Parquet files, one per partition. The driver adds the files of
    an epoch to the table, in one commit. For `upsert` and `delete`, the driver also rewrites the files of the table
    that have the keys of the epoch.

    Guarantee: exactly once, with retries, killed processes, zombies and lost responses. The commits themselves record
    the epochs in the table, as transaction identifiers. Others may write to the table at the same time; on S3 only with
    conditional puts, see `requires()`.

    Args:
        path: the table's directory, an absolute path or a URL; with `table_column`, the directory of all tables.
        options: the options of `DeltaOptions`: `write_mode`, `create_table`, `storage_options`, …

    Raises:
        ConfigurationError: lists every wrong option.
    """

    options: DeltaOptions

    @names_arguments
    def __init__(self, path: str | os.PathLike[str], **options: Unpack[DeltaArguments]) -> None:
        self.options = make_options(DeltaOptions, {"path": os.fspath(path), **options})

    def __repr__(self) -> str:
        return f"DeltaSink({self.options.place.url!r}, write_mode={self.options.write_mode!r})"

    def kind(self) -> str:
        return "delta"

    def target(self) -> str:
        url = self.options.place.url
        return f"{url}, {self.options.described}" if self.options.are_many else url

    def place(self) -> str:
        place = self.options.place
        if place.is_disk:
            return f"{os.path.realpath(place.location.path)}/"
        named = {name.lower().removeprefix("aws_"): value for name, value in place.options().items()}
        at = next((named[name] for name in ("endpoint_url", "endpoint") if name in named), "")
        return f"{masked(at)} {place.url}/".lstrip()

    def requires(self) -> Sequence[str]:
        return (
            "a store with conditional puts (If-None-Match on S3)",
            "no other writer that overwrites log entries: on S3 none without conditional puts",
            (
                "no VACUUM with a retention below the duration of an epoch, or below the longest standstill of the"
                " query in one"
            ),
        )

    def newest(self) -> LoadedDelta | None:
        place = self.options.place
        table = place.load()
        return None if table is None else LoadedDelta(place, table)

    def load(self) -> LoadedDelta | None:
        place = self.options.place
        check_environment(place)
        table = place.load()
        if table is None:
            return None
        check_table_features(place.url, table, overwrites=self.options.overwrites)
        # Its newest version may be another writer's, and the next version depends on it.
        place.make_durable(table.version())
        return LoadedDelta(place, table)

    def check_new(self, rows: pa.Schema) -> None:
        check_partitioning(new_schema(rows), self.options.partition_by)

    def create(self, rows: pa.Schema) -> None:
        """Create the table, unless another driver has just created it.

        Raises:
            ConfigurationError: it is one of many, and its directory has another table.
        """
        place = self.options.place
        within = place.table_within() if self._name is not None else None
        if within is not None:
            raise ConfigurationError(
                f"{place.url} cannot become a table, because its directory has the table {within!r}",
                why="VACUUM of a table removes the files of tables in its directory",
                do="correct the row, or give each table a directory outside of the others",
            )
        place.make_durably()
        with place.translated_errors("creating"):
            try:
                DeltaTable.create(
                    place.uri,
                    Schema.from_arrow(new_schema(rows)),
                    mode="error",
                    partition_by=list(self.options.partition_by),
                    # Spark's default: loading a table reads the commits since its last checkpoint.
                    configuration={"delta.checkpointInterval": "10"} | self.options.properties,
                    storage_options=place.options(),
                    # A retry would replace the schema and the id of a table that another process has just created.
                    commit_properties=CommitProperties(max_commit_retries=0),
                )
            except DeltaError:
                if place.load() is None:  # otherwise another driver has just created it
                    raise
        place.make_durable(0)

    def of_table(self, name: str) -> Self:
        place = self.options.place
        check_no_links(place.location.path if place.is_disk else None, self.options.parts_of(name))
        return super().of_table(name)

    def calls_at_once(self) -> int:
        return TABLES_AT_ONCE

    def check_apart(self, name: str, checked: set[str]) -> None:
        above = ""
        for part in self.options.parts_of(name)[:-1]:
            above = f"{above}{part}/"
            if above not in checked and self.options.place.has_log(above):
                raise ConfigurationError(
                    f"{self.options.place.url}/{name} is within the table {self.options.place.url}/{above.rstrip('/')}",
                    why="VACUUM of that table removes the files of tables in its directory",
                    do="correct the row, or give each table a directory outside of the others",
                )
            checked.add(above)

    def reach(self) -> None:
        """Check the directory of the tables.

        Raises:
            ConfigurationError: it is a table itself.
        """
        place = self.options.place
        check_environment(place)
        if place.load() is not None:
            raise ConfigurationError(
                f"{place.url} is a table",
                why="its directory would contain those of other tables, whose files its VACUUM removes",
                do="give the directory above that of the tables, or leave out table_column",
            )

    def existing(self) -> Iterator[str]:
        for entry in self.options.allowed_parts:
            yield from self.options.place.directories(entry)

    def check_connection(self) -> Sequence[str]:
        if self.options.are_many:
            return self.check_tables(f"{self.options.place.url} can be reached")
        table = self.load()
        if table is None:
            if self.options.create_table == "never":
                raise ConfigurationError(
                    f"{self.target()} does not exist", do='create it, or set create_table="if_missing"'
                )
            return (f"{self.target()} is reachable; the table does not exist yet and will be created",)
        self._try_to_write()
        return (
            f"{self.target()} is a table with supported features",
            "files can be created and deleted in its directory",
        )

    def _try_to_write(self) -> None:
        area = self.options.place.area
        directory, name = "outfall", f"check-{secrets.token_hex(8)}"
        try:
            file = area.create(directory, name)
            file.write(pa.py_buffer(b"check"))
            file.finish()
            area.delete(directory, [name])
        except OSError as error:
            raise explained(
                error,
                f"cannot create a file in {self.target()}",
                url=self.options.place.url,
                operation=Operation.CREATE,
                why=self.options.place.summary(error),
                do="grant permission to write and delete there",
            ) from None
