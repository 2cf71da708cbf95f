"""Parquet files with the layout of Spark's own writer."""

from __future__ import annotations

from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.parquet as pq

from outfall.errors import ConfigurationError
from outfall.formats.base import Encoder
from outfall.formats.options import FormatOptions
from outfall.formats.types import check_names, is_plain, refuse
from outfall.values import detached

_GROUP_ROWS = 1 << 20
_GROUP_BYTES = 64 << 20
"""A row group is written at either limit. It is all that an encoder keeps in memory."""

_NAMES = {"none": "", "snappy": ".snappy", "gzip": ".gz", "zstd": ".zstd"}


class RowGroups:
    """Encodes one Parquet file. Rows are buffered until they fill a row group. Arrow columns are written unchanged.

    Args:
        schema: the columns of the file. Metadata of fields, such as `PARQUET:field_id`, is written.
        codec: the compression, by pyarrow's name.
    """

    def __init__(self, schema: pa.Schema, codec: str) -> None:
        self.schema = schema
        self._bytes = _Bytes()
        self._footers: list[pq.FileMetaData] = []
        self._writer = pq.ParquetWriter(
            pa.PythonFile(self._bytes, mode="w"),
            schema,
            compression=codec,
            metadata_collector=self._footers,
            # Like Spark: small decimals as integers, and no Arrow schema in the footer.
            store_decimal_as_integer=True,
            store_schema=False,
        )
        self._batches: list[pa.RecordBatch] = []
        self._rows = 0
        self._size = 0
        self._encoded = 0

    def write(self, batch: pa.RecordBatch) -> pa.Buffer:
        """Add the rows of a batch, and return the bytes that are ready."""
        self._batches.append(detached(batch))
        self._rows += batch.num_rows
        self._size += batch.nbytes
        if self._rows >= _GROUP_ROWS or self._size >= _GROUP_BYTES:
            self._write_group()
        return self._bytes.take()

    @property
    def kept(self) -> int:
        """The memory of buffered rows, in bytes."""
        return self._size

    @property
    def expected(self) -> int:
        """The estimated size of buffered rows in the file, from the compression ratio of earlier row groups."""
        return int(self._size * self._bytes.tell() / self._encoded) if self._encoded else self._size

    def spill(self) -> pa.Buffer:
        """Write the buffered rows as a row group now, although a larger one would be more efficient."""
        self._write_group()
        return self._bytes.take()

    def finish(self) -> tuple[pa.Buffer, pq.FileMetaData]:
        """Return the rest of the file, and its footer."""
        self._write_group()
        self._writer.close()
        return self._bytes.take(), self._footers[0]

    def _write_group(self) -> None:
        if not self._batches:
            return
        table = pa.Table.from_batches(self._batches, self._batches[0].schema)
        self._encoded += self._size
        self._batches, self._rows, self._size = [], 0, 0
        # Cast only columns whose type differs: Arrow cannot cast some nested types even to themselves.
        columns = [
            column if column.type == field.type else column.cast(field.type)
            for field, column in zip(self.schema, table.columns, strict=True)
        ]
        self._writer.write_table(pa.Table.from_arrays(columns, schema=self.schema), row_group_size=_GROUP_ROWS)


class ParquetEncoder(Encoder):
    """Encodes row groups and the footer. Compression is inside the file, so that readers can skip columns."""

    one_schema: ClassVar[bool] = True
    growing: ClassVar[bool] = False

    def __init__(self, options: FormatOptions, schema: pa.Schema, *, start: bool = True) -> None:
        super().__init__(options, schema, start=start)
        self._groups = RowGroups(pa.schema([_nullable(field) for field in schema]), options.codec)

    @classmethod
    def suffix(cls, options: FormatOptions) -> str:
        return f"{_NAMES[options.codec]}.parquet"

    @classmethod
    def check_schema(cls, schema: pa.Schema) -> None:
        if len(schema) == 0:
            raise ConfigurationError(
                "Parquet does not support rows without columns", do='select a column, or use format="jsonl"'
            )
        check_names(schema, "", "Parquet readers find columns by name")
        for field in schema:
            _check_type(field, field.name)

    def encode(self, batch: pa.RecordBatch) -> pa.Buffer:
        return self._groups.write(batch)

    @property
    def kept(self) -> int:
        return self._groups.kept

    @property
    def expected(self) -> int:
        return self._groups.expected

    def spill(self) -> pa.Buffer:
        return self._groups.spill()

    def finish(self) -> pa.Buffer:
        return self._groups.finish()[0]


class _Bytes:
    """A file object that returns its bytes instead of storing them."""

    closed = False

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._position = 0

    def write(self, data: bytes) -> int:
        self._pieces.append(bytes(data))
        self._position += len(data)
        return len(data)

    def tell(self) -> int:
        return self._position

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass

    def take(self) -> pa.Buffer:
        pieces, self._pieces = self._pieces, []
        return pa.py_buffer(pieces[0] if len(pieces) == 1 else b"".join(pieces))


def _stored(kind: Any) -> Any:
    """Return the type to write: Spark stores an interval as an integer in microseconds."""
    types = pa.types
    if types.is_duration(kind):
        return pa.int64()
    if types.is_struct(kind):
        return pa.struct([_nullable(kind.field(index)) for index in range(kind.num_fields)])
    if types.is_map(kind):
        return pa.map_(_stored(kind.key_type), _nullable(kind.item_field))
    if types.is_large_list(kind):
        return pa.large_list(_nullable(kind.value_field))
    return pa.list_(_nullable(kind.value_field)) if types.is_list(kind) else kind


def _nullable(field: Any) -> Any:
    # Spark writes every field as nullable, and Arrow cannot write a required field below a NULL struct.
    return pa.field(field.name, _stored(field.type), True)


def _check_type(field: Any, path: str) -> None:
    kind, types = field.type, pa.types
    if types.is_struct(kind):
        children = [kind.field(index) for index in range(kind.num_fields)]
        if not children:
            refuse("Parquet", kind, path, "a struct without fields cannot be stored", "leave it out")
        check_names(children, path, "Parquet readers find columns by name")
        for child in children:
            _check_type(child, f"{path}.{child.name}")
    elif types.is_map(kind):
        _check_type(kind.key_field, f"{path}.key")
        _check_type(kind.item_field, f"{path}.value")
    elif types.is_list(kind) or types.is_large_list(kind):
        _check_type(kind.value_field, f"{path}.element")
    elif types.is_null(kind):
        refuse("Parquet", kind, path, "it has no values that could be stored", "cast it to a type or leave it out")
    elif types.is_timestamp(kind) and kind.unit == "ns":
        refuse("Parquet", kind, path, "it has nanoseconds, which Spark would truncate", "cast it to microseconds")
    elif not _is_plain(kind):
        refuse("Parquet", kind, path, "Spark's reader does not support the type", "cast it to a string")


def _is_plain(kind: Any) -> bool:
    """Return whether a type is supported by text formats, or only by Parquet."""
    types = pa.types
    binary = types.is_binary(kind) or types.is_large_binary(kind)
    return bool(is_plain(kind) or binary or (types.is_duration(kind) and kind.unit == "us"))
