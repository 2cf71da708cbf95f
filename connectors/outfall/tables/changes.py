"""The changes of an epoch, at most one per key: what its rows come to if each had arrived alone.

The rows of a key are taken in the order of the ordering column, NULL first, then in write order. The last removal among
them removes the row of the table, unless that row is newer. The first row after it inserts; the last one updates.

Only keys, ordering column and markers of all rows are in memory, and whole rows of those that win. PostgreSQL's sink
has the same rules (`outfall.sql.statements`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from outfall.tables.stored_columns import as_stored

Numbers: TypeAlias = NDArray[np.int64]
Flags: TypeAlias = NDArray[np.bool_]

Read: TypeAlias = Callable[[Sequence[str]], Iterator[pa.RecordBatch]]
"""Reads the given columns of all rows of an epoch, in write order, each time in the same batches."""
Spend: TypeAlias = Callable[[int], None]
"""Called with the bytes of memory that are needed in addition; raises if that is too much."""

_PLACE = "_outfall_place"


@dataclass(frozen=True)
class Keys:
    """How the rows of an epoch are compared. Columns by their names in the rows."""

    names: tuple[str, ...]
    order: str | None = None
    marker: str | None = None
    """The boolean column that marks removals."""
    all_gone: bool = False
    """Whether every row is a removal."""
    updated: frozenset[str] | None = None
    """The columns that an existing row gets; `None` for all. An inserted row gets the others from the first row."""


@dataclass(frozen=True)
class Changes:
    """One change per key, by number from 0."""

    last: pa.Table
    """The last row of each key: its columns update."""
    first: pa.Table
    """The row that inserts, with the updated columns of the last one."""
    deleted: Flags
    """Whether the last row is a removal: then nothing is inserted."""
    removes: Flags
    """Whether any row is a removal."""
    removal_order: pa.Array | None
    """The ordering value of the last removal, for keys that have one."""

    def __len__(self) -> int:
        return int(self.last.num_rows)


def changes_of(read: Read, columns: pa.Schema, keys: Keys, spend: Spend) -> Changes:
    """Reduce the rows of an epoch to one change per key.

    `columns` are the columns of the rows that the table takes, with its types.
    """
    compared = _compared(read, columns, keys, spend)
    order = _in_time(compared, keys)
    starts = _starts(compared.select(list(keys.names)).take(order))
    places = order.to_numpy().astype(np.int64)
    ends = np.append(starts, len(places))[1:] - 1
    removal = _last_removals(_gone(compared, keys)[places], starts)
    last, deleted = places[ends], removal == ends
    first = last if keys.updated is None else places[np.minimum(np.where(removal < 0, starts, removal + 1), ends)]
    removal_order = None
    if keys.order is not None and (removal >= 0).any():
        taken = pa.array(np.where(removal < 0, 0, places[removal]), mask=removal < 0)
        removal_order = compared.column(keys.order).take(taken).combine_chunks()
    del compared, order
    wanted = np.unique(np.append(last, first))
    rows = _rows(read, columns, wanted, spend)
    newest, oldest = (rows.take(pa.array(np.searchsorted(wanted, each))) for each in (last, first))
    return Changes(newest, _merged(newest, oldest, keys), deleted, removal >= 0, removal_order)


def _compared(read: Read, columns: pa.Schema, keys: Keys, spend: Spend) -> pa.Table:
    """Return keys, ordering column, place and marker of all rows."""
    names = [*dict.fromkeys([*keys.names, *([keys.order] if keys.order else [])])]
    kinds = [columns.field(name) for name in names]
    schema = pa.schema([*kinds, pa.field(_PLACE, pa.int64())])
    if keys.marker is not None:
        schema = schema.append(pa.field(keys.marker, pa.bool_()))
    batches, place = [], 0
    for batch in read([*names, *([keys.marker] if keys.marker is not None else [])]):
        arrays = [as_stored(batch.column(field.name), field.type) for field in kinds]
        arrays.append(pa.array(np.arange(place, place + batch.num_rows)))
        if keys.marker is not None:
            arrays.append(as_stored(batch.column(keys.marker), pa.bool_()))
        place += batch.num_rows
        batches.append(pa.RecordBatch.from_arrays(arrays, schema=schema))
        spend(batches[-1].nbytes)
    return pa.Table.from_batches(batches, schema)


def _in_time(compared: pa.Table, keys: Keys) -> pa.Array:
    """Return the rows sorted by key, and those of a key in time: NULL in the ordering column comes first."""
    newest_first = [(keys.order, "descending")] if keys.order is not None else []
    by = [*((name, "ascending") for name in keys.names), *newest_first, (_PLACE, "descending")]
    # Arrow puts NULL last.
    return pa.array(pc.sort_indices(compared, by).to_numpy()[::-1])


def _gone(compared: pa.Table, keys: Keys) -> Flags:
    if keys.all_gone or keys.marker is None:
        return np.full(compared.num_rows, keys.all_gone)
    return _flags(compared.column(keys.marker))


def _flags(values: Any) -> Flags:
    """Return booleans, with NULL as false."""
    found: Flags = pc.fill_null(values, False).to_numpy(zero_copy_only=False).astype(np.bool_)
    return found


def _starts(keys: pa.Table) -> Numbers:
    """Return where the rows of a key begin, in sorted rows. NULL is a key like others."""
    differs = np.zeros(max(keys.num_rows - 1, 0), np.bool_)
    for column in keys.columns:
        before, after = column.slice(0, max(keys.num_rows - 1, 0)), column.slice(1)
        differs |= _flags(pc.not_equal(before, after))
        differs |= _flags(pc.xor(pc.is_null(before), pc.is_null(after)))
    return np.flatnonzero(np.append(keys.num_rows > 0, differs)).astype(np.int64)


def _last_removals(deleted: Flags, starts: Numbers) -> Numbers:
    """Return the position of the last removal of each key; -1 if it has none."""
    found = np.where(deleted, np.arange(len(deleted)), -1)
    return np.maximum.reduceat(found, starts) if len(starts) else starts


def _rows(read: Read, columns: pa.Schema, wanted: Numbers, spend: Spend) -> pa.Table:
    """Return the rows at these places, in this order."""
    batches, place = [], 0
    for batch in read(columns.names):
        low, high = np.searchsorted(wanted, (place, place + batch.num_rows))
        if high > low:
            taken = batch.take(pa.array(wanted[low:high] - place))
            arrays = [as_stored(taken.column(field.name), field.type) for field in columns]
            batches.append(pa.RecordBatch.from_arrays(arrays, schema=columns))
            spend(batches[-1].nbytes)
        place += batch.num_rows
    return pa.Table.from_batches(batches, columns).combine_chunks()


def _merged(newest: pa.Table, oldest: pa.Table, keys: Keys) -> pa.Table:
    """Return the rows that insert."""
    if keys.updated is None:
        return newest
    return pa.table(
        [(newest if name in keys.updated else oldest).column(name) for name in newest.column_names],
        schema=newest.schema,
    )
