"""Rows that tasks stage for a merge: the form of their files, and their rows in write order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from outfall.errors import ConfigurationError, ValueRefusedError
from outfall.store_errors import Operation, explained
from outfall.tables.area import DataArea
from outfall.tables.changes import Keys
from outfall.tables.data_file import EpochFiles, Layout
from outfall.tables.key_options import KeyOptions, check_key_types, column_named, refuse_null_keys
from outfall.tables.keyed import KeyedLayout
from outfall.tables.table import FileLayout
from outfall.values import require_columns, without_values

_ROWS = 1 << 17


def rows_columns(options: KeyOptions, rows: pa.Schema) -> pa.Schema:
    """Return the columns of the rows that the table takes: for `delete` the keys, else all but the marker.

    Raises `ConfigurationError` if the rows lack a column that an option names.
    """
    named = (*options.key_columns, *options.update_columns, options.order_column, options.delete_marker)
    found = {name: column_named(name, rows.names) for name in named if name is not None}
    require_columns(rows.names, {"an option": [name for name, column in found.items() if column is None]})
    marker = None if options.delete_marker is None else found[options.delete_marker]
    if marker is not None and not pa.types.is_boolean(rows.field(marker).type):
        raise ConfigurationError(
            f"delete_marker {marker!r} is not a boolean column", do="use a boolean, such as op = 'd'"
        )
    if options.write_mode == "delete":
        return pa.schema([rows.field(found[name]) for name in options.key_columns])
    return pa.schema([field for field in rows if field.name != marker])


@dataclass(frozen=True)
class StagedLayout(FileLayout):
    """Files of rows as tasks got them, in their order: unpartitioned, with the marker. Picklable."""

    layout: Layout
    area: DataArea
    codec: str
    target_size: int
    table: KeyedLayout
    """The table's data files: their rules for values hold for each row that is not a removal."""
    options: KeyOptions

    @classmethod
    def of(cls, table: KeyedLayout, options: KeyOptions) -> Self:
        """Describe the staged files of a table."""
        return cls(table.of_staged, table.area, table.codec, table.target_size, table, options)

    def file_schema(self, rows: pa.Schema) -> pa.Schema:
        columns, options = rows_columns(self.options, rows), self.options
        if options.write_mode == "delete":
            here = [column_named(name, self.table.columns.names) for name in columns.names]
            found = self.table.only([name for name in here if name is not None]).file_schema(columns)
        else:
            found = self.table.file_schema(columns)
        named, order, _ = _named(options, found.names)
        check_key_types(self.table.columns, named, order)
        marker = None if options.delete_marker is None else column_named(options.delete_marker, rows.names)
        # A removal may have NULL in any column but its keys.
        fields = [field.with_nullable(True) for field in found]
        return pa.schema([*fields, *([pa.field(marker, pa.bool_())] if marker is not None else [])])

    def used(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        keys, order, marker = _named(self.options, batch.schema.names)
        if marker is None:
            return batch
        gone = pc.fill_null(batch.column(marker).cast(pa.bool_()), False)
        return without_values(batch, gone, [*keys, marker, *([] if order is None else [order])])

    def partition(self, batch: pa.RecordBatch) -> Sequence[pa.Array]:
        # Readers do not agree whether NULL equals NULL: one epoch would keep one row, and two would keep two.
        refuse_null_keys(batch, _named(self.options, batch.schema.names)[0])
        if self.options.write_mode == "upsert":
            self._check_values(batch)
        return ()

    def partition_text(self, values: Sequence[Any]) -> tuple[str | None, ...]:
        return ()

    def stored(self, schema: pa.Schema) -> pa.Schema:
        return schema

    def statistics(self, written: pq.FileMetaData, schema: pa.Schema) -> Mapping[str, Any]:
        return {}

    def _check_values(self, batch: pa.RecordBatch) -> None:
        """Raise `ValueRefusedError` for a row that its insert would refuse, once the epoch is recorded."""
        marker = _named(self.options, batch.schema.names)[2]
        deleted = None if marker is None else pc.fill_null(batch.column(marker), False)
        for name in batch.schema.names:
            if name != marker and not self.table.columns.field(name).nullable:
                bad = pc.is_null(batch.column(name))
                row = pc.index(bad if deleted is None else pc.and_not(bad, deleted), True).as_py()
                if row >= 0:
                    raise ValueRefusedError(
                        f"column {name!r} is NULL in row {row} of the batch",
                        why="the table requires a value",
                        do="set a value, or remove such rows",
                    )
        rows = batch.select([name for name in batch.schema.names if name != marker])
        self.table.check_values(rows, deleted)


def _named(options: KeyOptions, names: Sequence[str]) -> tuple[list[str], str | None, str | None]:
    """Return keys, ordering column and marker by their names in staged files."""
    keys = [column_named(name, names) or name for name in options.key_columns]
    more = [
        None if name is None else column_named(name, names) or name
        for name in (options.order_column, options.delete_marker)
    ]
    return keys, more[0], more[1]


class RowsToMerge:
    """The staged rows of an epoch."""

    def __init__(self, area: DataArea, files: EpochFiles) -> None:
        self._area = area
        self._files = files

    @cached_property
    def names(self) -> list[str]:
        """The columns of all files together: tasks may have had different ones."""
        found: dict[str, None] = {}
        for file in self._files.files:
            with self._opened(file.name) as opened:
                found.update(dict.fromkeys(opened.schema_arrow.names))
        return list(found)

    def keys(self, options: KeyOptions) -> Keys:
        """Return how the rows are compared."""
        keys, order, marker = _named(options, self.names)
        updated = None
        if options.update_columns:
            more = [column_named(name, self.names) or name for name in options.update_columns]
            updated = frozenset(more if order is None else [*more, order])
        return Keys(tuple(keys), order, marker, options.write_mode == "delete", updated)

    def read(self, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield these columns of all rows, in write order, each time in the same batches."""
        for file in self._files.files:
            with self._opened(file.name) as opened:
                for batch in opened.iter_batches(_ROWS, columns=list(names)):
                    here = set(batch.schema.names)
                    columns = [batch.column(name) if name in here else pa.nulls(batch.num_rows) for name in names]
                    yield pa.RecordBatch.from_arrays(columns, names=list(names))

    def _opened(self, name: str) -> pq.ParquetFile:
        filesystem, root = self._area.open()
        try:
            return pq.ParquetFile(filesystem.open_input_file(f"{root}/{self._files.directory}/{name}"))
        except OSError as error:
            raise explained(
                error,
                f"the staged file {name} of {self._files} could not be read",
                url=self._area.root,
                operation=Operation.READ,
                do="check that the store is reachable from the driver, then start the query again: no rows are lost",
            ) from error
