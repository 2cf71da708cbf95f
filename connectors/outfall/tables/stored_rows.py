"""The rows of one data file, of any writer, as the table has them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from outfall.errors import OutfallError
from outfall.store_errors import Operation, explained
from outfall.tables.stored_columns import as_stored, identity_in

_BATCH_BYTES = 32 << 20
_BATCH_ROWS = 1 << 18
"""Rows are read in batches of at most this size."""


class StoredRows:
    """The rows of one Parquet file; columns that it lacks are NULL.

    `locate` returns filesystem and path, `path` names the file in errors, and `constants` has the values of columns
    that the file does not store.
    """

    def __init__(
        self,
        locate: Callable[[], tuple[pafs.FileSystem, str]],
        path: str,
        columns: pa.Schema,
        constants: Mapping[str, Any],
    ) -> None:
        self.path = path
        self._locate = locate
        self._columns = columns
        self._constants = constants

    @cached_property
    def opened(self) -> pq.ParquetFile:
        """The open file. Raises `TransientError` if it cannot be read."""
        try:
            filesystem, path = self._locate()
            source = filesystem.open_input_file(path)
        except OSError as error:
            raise self._unreadable(error) from error
        # Spark's older timestamps have nanoseconds, whose years beyond 2262 need more than 64 bits.
        return pq.ParquetFile(source, coerce_int96_timestamp_unit="us")

    def batches(self, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the rows in order, with these columns of the table. `TransientError`: the file cannot be read."""
        fields = [self._columns.field(name) for name in names]
        try:
            stored = self.opened.schema_arrow
            known = {identity_in(self._columns, field): field.name for field in stored}
            here = {field.name: known.get(identity_in(self._columns, field)) for field in fields}
            metadata = self.opened.metadata
            width = sum(metadata.row_group(group).total_byte_size for group in range(metadata.num_row_groups))
            rows = max(1024, min(_BATCH_ROWS, _BATCH_BYTES * metadata.num_rows // max(width, 1)))
            # Without a column there would be no number of rows.
            read = [name for name in here.values() if name is not None] or stored.names[:1]
            for batch in self.opened.iter_batches(rows, columns=read):
                arrays = [self._column(batch, field, here[field.name]) for field in fields]
                yield pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))
        except OSError as error:
            raise self._unreadable(error) from error

    def _column(self, batch: pa.RecordBatch, field: pa.Field, stored: str | None) -> pa.Array:
        if field.name in self._constants:
            return pa.repeat(pa.scalar(self._constants[field.name], field.type), batch.num_rows)
        if stored is None:
            return pa.nulls(batch.num_rows, field.type)
        return as_stored(batch.column(stored), field.type)

    def close(self) -> None:
        """Release the file."""
        if "opened" in self.__dict__:
            self.opened.close(force=True)

    def _unreadable(self, error: OSError) -> OutfallError:
        return explained(
            error,
            f"the data file {self.path!r} of the table could not be read",
            url=self.path,
            operation=Operation.READ,
            do="check that the store is reachable from the driver, then start the query again: no rows are lost",
        )
