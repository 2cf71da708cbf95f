"""Arrow string arrays: joining them, and checking their bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from outfall.errors import ValueRefusedError

TEXT = pa.large_string()
"""The type of all intermediate arrays. It has 64-bit offsets, because escapes can lengthen a batch sixfold."""


class RefusedRowError(ValueRefusedError):
    """A value of one row of a batch cannot be written."""

    def __init__(self, problem: str, row: int, *, why: str, do: str) -> None:
        """Create the error of the row with this index in its batch. `problem` does not name the row."""
        super().__init__(f"{problem}, in row {row} of the batch", why=why, do=do)
        self.row, self.problem = row, problem
        self.do = do

    @property
    def reason(self) -> str:
        """The problem and the reason, without the row."""
        return f"{self.problem}: {self.why}"

    def in_row(self, row: int) -> RefusedRowError:
        """Return the same error for another row: of the batch that its batch is a part of."""
        return RefusedRowError(self.problem, row, why=self.why or "", do=self.do or "")


def literal(text: str) -> pa.Scalar:
    """Return a string scalar that can be joined with arrays of `TEXT`."""
    return pa.scalar(text, TEXT)


def concat(*pieces: pa.Array | pa.Scalar, skip_null: bool = False) -> pa.Array:
    """Join arrays and scalars row by row. The result of a NULL is NULL, or with `skip_null` NULL counts as empty."""
    nulls = {"null_handling": "replace", "null_replacement": ""} if skip_null else {}
    return pc.binary_join_element_wise(*pieces, literal(""), **nulls)


def data_of(array: pa.Array) -> pa.Buffer:
    """Return the bytes of all strings in a `TEXT` array, one after the other, without copying them."""
    _, offsets, data = array.buffers()
    if data is None or len(array) == 0:
        return pa.py_buffer(b"")
    ends = memoryview(offsets).cast("q")
    start, end = ends[array.offset], ends[array.offset + len(array)]
    return data.slice(start, end - start)


def first_row(mask: pa.Array) -> int:
    """Return the index of the first true row, -1 if there is none."""
    return int(pc.index(mask, True).as_py())


def refuse_rows(mask: pa.Array, what: str, why: str, do: str) -> None:
    """Raise `ValueRefusedError` for the first row where the mask is true, if there is one."""
    row = first_row(mask)
    if row >= 0:
        raise RefusedRowError(what, row, why=why, do=do)


def refuse_breaks(array: pa.Array, data: bytes, column: str, why: str) -> None:
    """Raise `ValueRefusedError` for strings with line breaks, for formats with one record per line.

    `data` has the bytes of all strings, because one scan of them is much cheaper than a check of each string. `why`
    tells how readers would interpret a line break.
    """
    for name, character in (("newline", "\n"), ("carriage return", "\r")):
        if character.encode() in data:
            refuse_rows(
                pc.match_substring(array, character),
                f"column {column!r} contains a {name}",
                why,
                'replace it before writing, or use format="jsonl", which escapes it',
            )


def check_utf8(array: pa.Array, column: str) -> None:
    """Raise `ValueRefusedError` for strings that are not UTF-8.

    A cast from binary can create them, and no text format can write them.
    """
    try:
        array.validate(full=True)
    except pa.ArrowInvalid as error:
        row = first_failing(array, lambda some: some.validate(full=True))
        raise RefusedRowError(
            f"column {column!r} contains a string that is not UTF-8",
            row,
            why="text files are UTF-8, and readers would not return the bytes",
            do="decode the column with its encoding, or write it with Base64 encoding",
        ) from error


def first_failing(
    array: pa.Array, change: Callable[[pa.Array], Any], refusal: type[Exception] = pa.ArrowInvalid
) -> int:
    """Return the index of the first value for which a call fails that does not say for which."""
    low, high = 0, len(array)
    while high - low > 1:
        middle = (low + high) // 2
        try:
            change(array.slice(low, middle - low))
            low = middle
        except refusal:
            high = middle
    return low
