"""Rows to writes, and the rank of a row among the rows of one key in an epoch.

A rank is the value of the ordering column in bytes that compare as the values do, and the hash of the row. It does not
depend on the order, the batches and the tasks in which the rows of an epoch arrive, because a replay may change them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Context
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from outfall.errors import ConfigurationError, ValueRefusedError
from outfall.formats.row_text import row_texts
from outfall.part_ledger.row_hash import row_hashes
from outfall.tables.key_options import check_key_types


@dataclass(slots=True, eq=False)
class KeyedRow:
    """One row on its way: an upsert or a delete by key."""

    key: Any
    """What the server finds the row by."""
    body: Any
    """What is stored; `None` for a delete."""
    size: int
    """In bytes, of key and body."""
    rank: bytes
    batch: pa.RecordBatch
    """The rows that it comes from, of which it is number `row`. Only dead letters and errors look."""
    row: int

    def text(self) -> str:
        """Return the whole row as JSON, as it arrived."""
        return row_texts(self.batch.slice(self.row, 1))[0]


def ranks(batch: pa.RecordBatch, order: str | None) -> list[bytes]:
    """Return the rank of each row."""
    hashes = [int(word).to_bytes(8) for word in row_hashes(batch)]
    if order is None:
        return hashes
    return [_sortable(value) + row for value, row in zip(_comparable(batch.column(order)), hashes, strict=True)]


def deleted(batch: pa.RecordBatch, marker: str | None) -> list[bool]:
    """Return whether each row is a delete. A NULL in the marker is none."""
    if marker is None:
        return [False] * batch.num_rows
    return pc.fill_null(batch.column(marker), False).to_pylist()  # type: ignore[no-any-return]


def without(batch: pa.RecordBatch, marker: str | None) -> pa.RecordBatch:
    """Return the rows without the marker, which is not stored."""
    return batch if marker is None else batch.drop_columns([marker])


def refuse_null_keys(batch: pa.RecordBatch, names: Sequence[str]) -> None:
    """Raise `ValueRefusedError` if a column of the key is NULL in a row."""
    for name in names:
        if batch.column(name).null_count:
            raise ValueRefusedError(
                f"the key column {name!r} is NULL in a row",
                why="a row is found by its key",
                do="remove such rows, or replace the NULL",
            )


def check_columns(schema: pa.Schema, keys: Sequence[str], order: str | None, marker: str | None) -> None:
    """Raise `ConfigurationError` for columns that are missing, or whose type cannot serve."""
    named = [("the key", name) for name in keys] + [("order_column", order), ("delete_marker", marker)]
    for option, name in named:
        if name is not None and schema.names.count(name) != 1:
            raise ConfigurationError(
                f"{option} requires the column {name!r}, and the rows have {', '.join(schema.names)}",
                do="correct the option, or select the column",
            )
    check_key_types(schema, keys, order)
    if marker is not None and not pa.types.is_boolean(schema.field(marker).type):
        raise ConfigurationError(
            f"delete_marker is the column {marker!r} of type {schema.field(marker).type}",
            why="it says by true which rows are deletes",
            do="use a boolean column",
        )


def _comparable(column: pa.Array) -> list[int | str | None]:
    """Return the values as integers or strings that compare as the values do."""
    kind = column.type
    if pa.types.is_decimal(kind):
        return [None if value is None else int(value.scaleb(kind.scale, _EXACT)) for value in column.to_pylist()]
    if pa.types.is_temporal(kind):
        return column.cast(pa.int32() if kind.bit_width == 32 else pa.int64()).to_pylist()  # type: ignore[no-any-return]
    return column.to_pylist()  # type: ignore[no-any-return]


_EXACT = Context(prec=100)
"""The default one rounds to 28 digits."""


def _sortable(value: int | str | None) -> bytes:
    """Return bytes that compare as the values do, none of which begins with another one."""
    if value is None:
        return b"\x00"
    if isinstance(value, str):
        return b"\x01" + value.encode().replace(b"\x00", b"\x00\xff") + b"\x00\x00"
    return b"\x01" + (value + (1 << (_BITS - 1))).to_bytes(_BITS // 8)


_BITS = 136
"""Of an integer: 38 digits and a sign."""
