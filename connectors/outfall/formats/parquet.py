"""Parquet files with the layout of Spark's own writer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from math import isnan
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from outfall.errors import ConfigurationError
from outfall.formats.base import Encoder
from outfall.formats.options import Compression, FormatOptions
from outfall.formats.types import check_names, is_plain, refuse
from outfall.values import detached

_GROUP_ROWS = 1 << 20
_GROUP_BYTES = 64 << 20
"""A row group is written at either limit. It is all that an encoder keeps in memory."""

_SAMPLE = 1 << 14
"""Number of values of a column that decide about its dictionary."""

_LEVELS = {"zstd": 3, "gzip": 6}
"""The levels of Spark's writer. Arrow's are 1, with which files are a fifth larger, and 9, which takes much longer."""

_MAGIC = b"PAR1"
_NOTHING = memoryview(bytes(1 << 20))

_NAMES = {"none": "", "snappy": ".snappy", "gzip": ".gz", "zstd": ".zstd"}


class RowGroups:
    """Encodes one Parquet file. Rows are buffered until they fill a row group. Arrow columns are written unchanged.

    A column of a row group has no bounds if it holds NaN: Arrow's bounds ignore NaN, while Spark orders NaN above all
    numbers and would skip a row group of which only NaN satisfies a filter. Spark's writer does the same. Arrow selects
    the columns once per writer, so each run of row groups with the same columns has a writer. Their footers are merged.

    A column `a.b` and the field `b` of a column `a` have one path, by which Arrow selects columns, and by which Spark's
    reader takes the dictionary of one for that of the other (4.3, also in files of its own). Both have neither bounds
    nor a dictionary.

    The first row group decides which columns have a dictionary: Arrow would encode up to 1 MiB of values that do not
    repeat, and keep them, which makes files larger and takes longer.

    Metadata of the schema's fields, such as `PARQUET:field_id`, is written. `codec` is the compression, by pyarrow's
    name, and `level` its level; `None` is the level of Spark's writer.
    """

    def __init__(self, schema: pa.Schema, codec: str, level: int | None = None) -> None:
        self.schema = schema
        self._codec = codec
        self._level = _LEVELS.get(codec) if level is None else level
        self._bytes = _Bytes()
        self._footers: list[pq.FileMetaData] = []
        self._writer: pq.ParquetWriter | None = None
        self._with_nan: frozenset[int] = frozenset()
        self._unique: frozenset[int] | None = None
        self._paths = _paths(schema)
        self._shared = frozenset(path for path, number in Counter(self._paths).items() if number > 1)
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
        writer = self._writer_without(self._with_nan)
        if not self._footers:
            writer.close()
            return self._bytes.take(), self._footers[0]
        self._close_hidden(writer)
        footer, *others = self._footers
        for other in others:
            footer.append_row_groups(other)
        whole = pa.BufferOutputStream()
        footer.write_metadata_file(whole)
        # A file of metadata alone has the same end.
        self._bytes.write(whole.getvalue().to_pybytes()[len(_MAGIC) :])
        return self._bytes.take(), footer

    def _writer_without(self, with_nan: frozenset[int]) -> pq.ParquetWriter:
        """Return a writer that omits the statistics of these leaves, and continues the file."""
        if self._writer is not None and with_nan == self._with_nan:
            return self._writer
        if self._writer is not None:
            self._close_hidden(self._writer)
        self._with_nan = with_nan
        begin = self._bytes.tell()
        self._bytes.hidden = begin > 0
        # It counts the bytes that are written to it, and the offsets in the footer are such counts.
        file = pa.PythonFile(self._bytes, mode="w")
        self._writer = pq.ParquetWriter(
            file,
            self.schema,
            compression=self._codec,
            compression_level=self._level,
            metadata_collector=self._footers,
            write_statistics=self._all_but(with_nan),
            use_dictionary=self._all_but(self._unique),
            # Like Spark: small decimals as integers, and no Arrow schema in the footer.
            store_decimal_as_integer=True,
            store_schema=False,
        )
        if self._bytes.hidden:
            for done in range(len(_MAGIC), begin, len(_NOTHING)):
                file.write(_NOTHING[: begin - done])
        self._bytes.hidden = False
        return self._writer

    def _all_but(self, leaves: frozenset[int] | None) -> bool | list[str]:
        """Return the Parquet columns but these, as Arrow's writer takes them, and none of those that share a path."""
        if not leaves and not self._shared:
            return True
        out = {self._paths[number] for number in leaves or ()} | self._shared
        return [path for path in self._paths if path not in out]

    def _close_hidden(self, writer: pq.ParquetWriter) -> None:
        """Close a writer and keep its footer out of the file."""
        self._bytes.hidden = True
        writer.close()
        self._bytes.hidden = False

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
        leaves = [leaf for column in columns for leaf in _leaves(column.chunks, column.type)]
        with_nan = frozenset(number for number, leaf in enumerate(leaves) if any(map(_has_nan, leaf)))
        if self._unique is None:
            self._unique = frozenset(number for number, leaf in enumerate(leaves) if not _repeats(leaf))
        table = pa.Table.from_arrays(columns, schema=self.schema)
        self._writer_without(with_nan).write_table(table, row_group_size=_GROUP_ROWS)


class ParquetEncoder(Encoder):
    """Encodes row groups and the footer. Compression is inside the file, so that readers can skip columns."""

    one_schema: ClassVar[bool] = True
    codecs: ClassVar[tuple[Compression, ...]] = ("snappy", "none", "gzip", "zstd")
    compresses: ClassVar[bool] = True
    read_by: ClassVar[frozenset[str]] = frozenset()

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
        self.hidden = False
        """Whether bytes that are written do not belong to the file."""
        self._pieces: list[bytes] = []
        self._position = 0

    def write(self, data: bytes) -> int:
        if not self.hidden:
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


def _paths(schema: pa.Schema) -> list[str]:
    """Return the path of each Parquet column, as `write_statistics` takes it."""
    empty = pa.BufferOutputStream()
    pq.write_table(schema.empty_table(), empty, store_schema=False)
    leaves = pq.read_metadata(pa.BufferReader(empty.getvalue())).schema
    return [leaves.column(number).path for number in range(len(leaves))]


def _leaves(chunks: list[Any], kind: Any) -> Iterator[list[Any]]:
    """Yield the arrays of each Parquet column, in order. Rows that a NULL hides may be included."""
    if isinstance(kind, pa.ExtensionType):
        yield from _leaves([chunk.storage for chunk in chunks], kind.storage_type)
    elif pa.types.is_struct(kind):
        for number in range(kind.num_fields):
            yield from _leaves([chunk.field(number) for chunk in chunks], kind.field(number).type)
    elif pa.types.is_map(kind):
        yield from _leaves([chunk.keys for chunk in chunks], kind.key_type)
        yield from _leaves([chunk.items for chunk in chunks], kind.item_type)
    elif pa.types.is_nested(kind):
        yield from _leaves([chunk.flatten() for chunk in chunks], kind.value_type)
    else:
        yield chunks


def _has_nan(values: Any) -> bool:
    if not pa.types.is_floating(values.type):
        return False
    if pa.types.is_float16(values.type):
        values = values.cast(pa.float32())
    # A sum is several times faster, and NaN if a value is; opposite infinities make it NaN too.
    total = pc.sum(values).as_py()
    return total is not None and isnan(total) and bool(pc.any(pc.is_nan(values)).as_py())


def _repeats(chunks: list[Any]) -> bool:
    """Whether a dictionary with its indices is smaller than the values, judged by the first ones, as Spark does."""
    sample = pa.chunked_array(chunks).slice(0, _SAMPLE).drop_null()
    if len(sample) == 0:
        return True
    try:
        distinct = len(sample.unique())
    except pa.ArrowNotImplementedError:  # decimals of 32 and 64 bits
        return True
    # Parquet has no smaller integers, and 4 bytes for the length of a string, as Arrow has.
    width = max(sample.nbytes / len(sample), 4)
    indices = len(sample) * (distinct - 1).bit_length() / 8
    return bool(distinct * width + indices < len(sample) * width)


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
