"""The data files of a loaded Delta table, of any writer: which may hold given keys, and their rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from outfall.errors import ConfigurationError, TransientError
from outfall.tables.area import DataArea
from outfall.tables.stored_columns import as_stored

_is = pa.types

_BATCH_BYTES = 32 << 20
_BATCH_ROWS = 1 << 18
"""Rows are read in batches of at most this size."""

_OTHER_PLACE = ("://", "file:/")
"""In paths of a shallow clone, whose files belong to another table."""


@dataclass(frozen=True)
class StoredFile:
    """An active data file."""

    path: str
    """As in the log."""
    size: int
    partition: Mapping[str, Any]
    """The value of each partition column."""
    bounds: Mapping[str, tuple[Any, Any]]
    """The smallest and the largest value of columns, as far as they are known exactly."""

    def may_have(self, keys: pa.Table) -> pa.ChunkedArray | None:
        """Return, for each row of `keys`, whether the file may have it; `None` if it may have any of them."""
        found: Any = None
        for name in keys.column_names:
            column, these = keys.column(name), None
            if name in self.partition:
                value = pa.scalar(self.partition[name], column.type)
                these = pc.equal(column, value) if value.is_valid else pa.chunked_array([pa.repeat(False, len(column))])
            elif name in self.bounds:
                low, high = (pa.scalar(bound, column.type) for bound in self.bounds[name])
                these = pc.and_(pc.greater_equal(column, low), pc.less_equal(column, high))
            if these is not None:
                found = these if found is None else pc.and_(found, these)
        return None if found is None else pc.fill_null(found, False)


def stored_files(
    active: pa.Table, columns: pa.Schema, partitioned_by: Sequence[str], keys: Sequence[str]
) -> Iterator[StoredFile]:
    """Yield the files of deltalake's add actions in flat form. `ConfigurationError` names one of another table."""
    bounded = [name for name in keys if name not in partitioned_by and _is_exact(columns.field(name).type)]
    for file in active.to_pylist():
        if any(sign in file["path"] for sign in _OTHER_PLACE):
            raise ConfigurationError(
                f"the table has a file of another table: {file['path']!r}",
                why="it is a shallow clone, and the sink would have to replace that file",
                do="use a table of its own files, for example a deep clone",
            )
        found = {name: (file.get(f"min.{name}"), file.get(f"max.{name}")) for name in bounded}
        yield StoredFile(
            path=file["path"],
            size=file["size_bytes"],
            partition={name: file.get(f"partition.{name}") for name in partitioned_by},
            bounds={name: bounds for name, bounds in found.items() if None not in bounds},
        )


def _is_exact(kind: pa.DataType) -> bool:
    """Whether every writer's bounds hold for all values: times may be truncated, decimals and floats rounded."""
    return bool(_is.is_integer(kind) or _is.is_date(kind) or _is.is_string(kind))


class StoredRows:
    """The rows of one file as the table has them: columns that it lacks are NULL."""

    def __init__(self, area: DataArea, file: StoredFile, columns: pa.Schema) -> None:
        self._area = area
        self._file = file
        self._columns = columns

    @cached_property
    def _opened(self) -> pq.ParquetFile:
        filesystem, root = self._area.open()
        try:
            source = filesystem.open_input_file(f"{root}/{unquote(self._file.path)}")
        except OSError as error:
            raise self._unreadable(error) from error
        # Spark's older timestamps have nanoseconds, of which the years beyond 2262 need more than 64 bits.
        return pq.ParquetFile(source, coerce_int96_timestamp_unit="us")

    def batches(self, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the rows in order, with these columns of the table. `TransientError`: the file cannot be read."""
        try:
            opened = self._opened
            here = [name for name in names if name in opened.schema_arrow.names]
            metadata = opened.metadata
            width = sum(metadata.row_group(group).total_byte_size for group in range(metadata.num_row_groups))
            rows = max(1024, min(_BATCH_ROWS, _BATCH_BYTES * metadata.num_rows // max(width, 1)))
            # Without a column there would be no number of rows.
            for batch in opened.iter_batches(rows, columns=here or opened.schema_arrow.names[:1]):
                arrays = [self._column(batch, self._columns.field(name)) for name in names]
                yield pa.RecordBatch.from_arrays(
                    arrays, schema=pa.schema([self._columns.field(name) for name in names])
                )
        except OSError as error:
            raise self._unreadable(error) from error

    def _column(self, batch: pa.RecordBatch, field: pa.Field) -> pa.Array:
        if field.name in self._file.partition:
            return pa.repeat(pa.scalar(self._file.partition[field.name], field.type), batch.num_rows)
        if field.name not in batch.schema.names:
            return pa.nulls(batch.num_rows, field.type)
        return as_stored(batch.column(field.name), field.type)

    def close(self) -> None:
        """Release the file."""
        if "_opened" in self.__dict__:
            self._opened.close(force=True)

    def _unreadable(self, error: OSError) -> TransientError:
        return TransientError(
            f"the data file {self._file.path!r} of the table could not be read",
            why=f"{type(error).__name__}: {error}",
            do="check that the store is reachable from the driver, then start the query again: no rows are lost",
        )
