"""Rows to writes, and the rank of a row among the rows of one key in an epoch.

A rank is the value of the ordering column in bytes that compare as the values do, and the hash of the row, both in
hexadecimal digits. It does not depend on the order, the batches and the tasks in which the rows of an epoch arrive,
because a replay may change them.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass
from decimal import Context
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from outfall.errors import ConfigurationError, ValueRefusedError
from outfall.formats.row_text import row_texts
from outfall.formats.strings import TEXT, concat
from outfall.part_ledger.row_hash import row_hashes
from outfall.tables.key_options import check_key_types
from outfall.values import require_columns, spark_type, without_values


@dataclass(slots=True, eq=False)
class KeyedRow:
    """One row on its way: an upsert or a delete by key."""

    key: Hashable
    """Different for rows of different keys."""
    write: Any
    """The row as a request contains it, encoded."""
    size: int
    """Of `write`, in bytes."""
    rank: str
    batch: pa.RecordBatch
    """The rows that it comes from; it is number `row`. Only dead letters and errors use them."""
    row: int

    def text(self) -> str:
        """Return the whole row as JSON, as it arrived."""
        return row_texts(self.batch.slice(self.row, 1))[0]


@dataclass(frozen=True)
class KeyedBatch:
    """The rows of a batch before they are encoded."""

    rows: pa.RecordBatch
    """Without the delete marker, which is not stored."""
    deleted: pa.Array | None
    """Whether each row is a delete; `None` if none is. It has no NULL."""
    ranks: pa.Array
    """The rank of each row; empty texts without versions."""

    def chosen(self, deletes: pa.Array | pa.Scalar, upserts: pa.Array | pa.Scalar) -> pa.Array | pa.Scalar:
        """Return for each row what stands for it: of a delete or of an upsert."""
        return upserts if self.deleted is None else pc.if_else(self.deleted, deletes, upserts)


def changes_of(
    batch: pa.RecordBatch, keys: Collection[str], marker: str | None, order: str | None, *, ranked: bool
) -> KeyedBatch:
    """Return the rows of a batch as changes. They are `ranked` if they have versions.

    Of a delete, only the columns `keys` have values: nothing else of it is written, so nothing else is converted.
    """
    # The marker is part of the hash: a delete and an upsert of one key differ.
    found = ranks(batch, order) if ranked else pa.repeat(pa.scalar("", TEXT), batch.num_rows)
    if marker is None:
        return KeyedBatch(batch, None, found)
    deleted = pc.fill_null(batch.column(marker), False)
    rows = without_values(batch.drop_columns([marker]), deleted, keys)
    return KeyedBatch(rows, deleted if pc.any(deleted).as_py() else None, found)


def ranks(batch: pa.RecordBatch, order: str | None) -> pa.Array:
    """Return the rank of each row as text."""
    hashes = _hexadecimal(row_hashes(batch), 16)
    return hashes if order is None else concat(_sortable(batch.column(order)), hashes)


def refuse_null_sequences(batch: pa.RecordBatch, name: str) -> None:
    """Raise `ValueRefusedError` if the sequence is NULL in a row."""
    if batch.column(name).null_count:
        raise ValueRefusedError(
            f"the sequence, in column {name!r}, is NULL in a row",
            why="nothing orders the row and others of its key",
            do="give each row a sequence; rows of a snapshot, which are older than all changes, get one below all"
            f" others in the query, such as coalesce({name}, 0)",
        )


def check_sequence_type(schema: pa.Schema, name: str) -> None:
    """Raise `ConfigurationError` for a sequence whose stored form would change with the type of another run."""
    kind = schema.field(name).type
    if pa.types.is_decimal(kind) and kind.scale:
        raise ConfigurationError(
            f"column {name!r} of type {spark_type(kind)} cannot be sequence_column",
            why="sequences are stored, and compare with those of later runs only if they have no fraction",
            do=f"multiply it, such as CAST({name} * {10**kind.scale} AS DECIMAL(38, 0))",
        )


def check_columns(
    schema: pa.Schema, keys: Sequence[str], order: str | None, marker: str | None, option: str = "order_column"
) -> None:
    """Raise `ConfigurationError` for columns that are missing, or whose type cannot serve.

    `option` is the one that names the column `order`.
    """
    require_columns(schema.names, {"the key": keys, option: order, "delete_marker": marker})
    check_key_types(schema, keys, order, option)
    if marker is not None and not pa.types.is_boolean(schema.field(marker).type):
        raise ConfigurationError(
            f"delete_marker is the column {marker!r} of type {schema.field(marker).type}",
            why="true marks the rows that are deletes",
            do="use a boolean column",
        )


def _sortable(column: pa.Array) -> pa.Array:
    """Return texts that compare as the values do, none of which is a prefix of another. NULL is the smallest."""
    kind = column.type
    if pa.types.is_temporal(kind):
        column = column.cast(pa.int32() if kind.bit_width == 32 else pa.int64())
    if pa.types.is_integer(column.type):
        return _sortable_integers(column)
    values = column.to_pylist()
    if pa.types.is_decimal(kind):
        values = [None if value is None else int(value.scaleb(kind.scale, _EXACT)) for value in values]
    return pa.array([_sortable_one(value).hex() for value in values], TEXT)


_EXACT = Context(prec=100)
"""The default one rounds to 28 digits."""


def _sortable_integers(column: pa.Array) -> pa.Array:
    """Return the texts of `_sortable_one`, many at once."""
    kind = np.dtype("<u8") if pa.types.is_unsigned_integer(column.type) else np.dtype("<i8")
    values = column.fill_null(0).to_numpy(zero_copy_only=False).astype(kind)
    head = np.where(values < 0, "017f" + "ff" * 8, "0180" + "00" * 8)
    found = concat(pa.array(head, TEXT), _hexadecimal(values, 16))
    return found if column.null_count == 0 else pc.if_else(column.is_valid(), found, pa.scalar("00", TEXT))


def _sortable_one(value: int | str | None) -> bytes:
    """Return bytes that compare as the values do, none of which is a prefix of another."""
    if value is None:
        return b"\x00"
    if isinstance(value, str):
        return b"\x01" + value.encode().replace(b"\x00", b"\x00\xff") + b"\x00\x00"
    return b"\x01" + (value + (1 << (_BITS - 1))).to_bytes(_BITS // 8)


_BITS = 136
"""Of an integer: 38 digits and a sign."""


def _hexadecimal(words: Any, digits: int) -> pa.Array:
    """Return 64-bit words, or the two's complement of such numbers, as hexadecimal digits."""
    text = words.astype(words.dtype.newbyteorder(">")).tobytes().hex()
    ends = np.arange(0, digits * len(words) + 1, digits, dtype=np.int64)
    return pa.Array.from_buffers(TEXT, len(words), [None, pa.py_buffer(ends), pa.py_buffer(text.encode())])
