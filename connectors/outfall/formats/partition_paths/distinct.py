"""A column as its distinct values, so that work is done once for each of them and not for each row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import pyarrow as pa
import pyarrow.compute as pc

from outfall.formats.strings import first_row


@dataclass(frozen=True)
class Distinct:
    """Distinct values in the order in which rows first hold them.

    Args:
        values: one or more; NULL may be one of them.
        rows: for each row the number of its value; `None` when there is one value for all.
    """

    values: pa.Array
    rows: pa.Array | None

    @classmethod
    def of(cls, array: pa.Array) -> Self:
        """Find the distinct values of at least one row."""
        # A look at neighbours costs a fraction of the hashing, and most batches have one bucket.
        if _all_same(array):
            return cls(array.slice(0, 1), None)
        encoded = array.dictionary_encode(null_encoding="encode")
        return cls(encoded.dictionary, encoded.indices)

    def replaced(self, values: pa.Array) -> Distinct:
        """Put other values in the place of these; those that are the same now become one."""
        if self.rows is None:
            return Distinct(values, None)
        merged = Distinct.of(values)
        if merged.rows is None:
            return merged
        if len(merged.values) == len(values):
            return Distinct(values, self.rows)
        return Distinct(merged.values, merged.rows.take(self.rows))

    def first_row(self, number: int) -> int:
        """Return the first row that holds a value."""
        return 0 if self.rows is None else first_row(pc.equal(self.rows, number))

    def at(self, rows: pa.Array) -> pa.Array | pa.Scalar:
        """Return the values of some rows; one value for all as a scalar."""
        return self.values[0] if self.rows is None else self.values.take(self.rows.take(rows))


def combined(columns: list[Distinct]) -> pa.Array | None:
    """Number the distinct combinations of columns' values, in the order in which rows first hold them.

    Returns:
        For each row the number of its combination; `None` when there is one for all.
    """
    varying = [column for column in columns if column.rows is not None]
    if len(varying) < 2:
        return varying[0].rows if varying else None
    codes: Any = pa.scalar(0, pa.int64())
    size = 1
    for column in varying:
        count = len(column.values)
        if size * count >= 2**63:
            found = codes.dictionary_encode()
            codes, size = found.indices.cast(pa.int64()), len(found.dictionary)
        codes = pc.add(pc.multiply(codes, count), pc.cast(column.rows, pa.int64()))
        size *= count
    return codes.dictionary_encode().indices


def _all_same(array: pa.Array) -> bool:
    if array.null_count:
        return bool(array.null_count == len(array))
    last = len(array) - 1
    if array[0] != array[last]:
        return False
    return bool(pc.all(pc.equal(array.slice(1), array.slice(0, last)), min_count=0).as_py())
