"""`DeltaSink`: rows as a Delta table, each epoch in one version."""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence
from typing import Unpack

import pyarrow as pa
from deltalake import DeltaTable, Schema
from deltalake.exceptions import DeltaError

from outfall.delta.columns import new_schema
from outfall.delta.features import check_table_features
from outfall.delta.options import DeltaArguments, DeltaOptions, check_environment
from outfall.delta.partition_values import check_partitioning
from outfall.delta.table import LoadedDelta
from outfall.errors import ConfigurationError, TransientError
from outfall.location import masked
from outfall.options import make_options, names_arguments
from outfall.tables.sink import TableSink


class DeltaSink(TableSink):
    """Writes rows into a Delta table. Readers see an epoch's rows all at once: they are one version of the table.

    Item type: rows (dicts or Arrow batches).

    What must exist: the table, unless `create_table="if_missing"`, and the right to write, list and delete in its
    directory, for the driver and for all executors.

    Unit of parallelism: each Spark task writes Parquet files of its own, one for each partition. The driver adds those
    of an epoch to the table, in one commit.

    Guarantee: exactly once, whatever is retried, killed or woken late, and whatever answer is lost. Which epochs are in
    the table stands in the commits themselves, as transaction identifiers. Others may write to the table meanwhile;
    on S3 only those whose commits are conditional puts, as `requires()` says.

    Args:
        path: the table's directory, an absolute path or a URL.
        options: as `DeltaOptions` describes them: `write_mode`, `create_table`, `storage_options`, …

    Raises:
        ConfigurationError: naming every option that is wrong.
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
        return self.options.place.url

    def place(self) -> str:
        place = self.options.place
        if place.is_disk:
            return f"{os.path.realpath(place.location.path)}/"
        named = {name.lower().removeprefix("aws_"): value for name, value in place.options().items()}
        at = next((named[name] for name in ("endpoint_url", "endpoint") if name in named), "")
        return f"{masked(at)} {place.url}/".lstrip()

    def requires(self) -> Sequence[str]:
        return (
            "a store that honours conditional puts (If-None-Match on S3)",
            "no other writer that replaces log entries: on S3 none that commits without a conditional put",
            "no VACUUM with a retention below an epoch's time, or below how long the query may stand still in one",
        )

    def load(self) -> LoadedDelta | None:
        place = self.options.place
        check_environment(place)
        table = place.load()
        if table is None:
            return None
        check_table_features(place.url, table, overwrites=self.options.overwrites)
        # Its newest version may be another writer's, and ours is to stand on it.
        place.settle(table.version())
        return LoadedDelta(place, table)

    def check_new(self, rows: pa.Schema) -> None:
        check_partitioning(new_schema(rows), self.options.partition_by)

    def create(self, rows: pa.Schema) -> None:
        place = self.options.place
        place.make_durably()
        with place.explained("creating"):
            try:
                DeltaTable.create(
                    place.uri,
                    Schema.from_arrow(new_schema(rows)),
                    mode="error",
                    partition_by=list(self.options.partition_by),
                    # As Spark's own default: loading a table reads what was committed since its last checkpoint.
                    configuration={"delta.checkpointInterval": "10"} | self.options.properties,
                    storage_options=place.options(),
                )
            except DeltaError:
                if place.load() is None:  # else another driver has just made it
                    raise
        place.settle(0)

    def check_connection(self) -> Sequence[str]:
        table = self.load()
        if table is None:
            if self.options.create_table == "never":
                raise ConfigurationError(
                    f"{self.target()} does not exist", do='create it, or set create_table="if_missing"'
                )
            return (f"{self.target()} can be asked; there is no table yet, and it will be made",)
        self._try_to_write()
        return (f"{self.target()} is a table that can be written to", "files can be made and deleted in its directory")

    def _try_to_write(self) -> None:
        area = self.options.place.area
        directory, name = "outfall", f"check-{secrets.token_hex(8)}"
        try:
            file = area.create(directory, name)
            file.write(pa.py_buffer(b"check"))
            file.finish()
            area.delete(directory, [name])
        except OSError as error:
            raise TransientError(
                f"no file can be made in {self.target()}",
                why=self.options.place.told(error),
                do="give the right to write and delete there",
            ) from None
