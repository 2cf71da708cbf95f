"""Where a value is, and its refusal."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from outfall.errors import ValueRefusedError
from outfall.formats.strings import RefusedRowError, first_failing, first_row


@dataclass(frozen=True)
class Place:
    """Where a value is, for texts."""

    path: str
    nested: bool = False

    def inside(self, name: str) -> Place:
        """Return the place of a field or an element."""
        return Place(f"{self.path}.{name}", True)

    def refuse(self, bad: pa.Array, what: str, do: str) -> None:
        """Raise `ValueRefusedError` if there is a bad value."""
        row = first_row(bad)
        if row >= 0:
            self.refuse_row(row, what, do)

    def cast(self, array: pa.Array, kind: pa.DataType, what: str) -> pa.Array:
        """Return values as another type. Raises `ValueRefusedError` with `what` for the first that does not fit."""
        if array.type == kind:
            return array
        try:
            return array.cast(kind)
        except pa.ArrowInvalid:
            row = first_failing(array, lambda some: some.cast(kind))
            self.refuse_row(row, what, "correct such rows, or change the type in the schema")
            raise

    def refuse_row(self, row: int, what: str, do: str) -> None:
        """Raise `ValueRefusedError` for the value with this number."""
        problem, why = f"column {self.path!r} {what}", "the schema does not allow it"
        if self.nested:
            raise ValueRefusedError(problem, why=why, do=do)
        raise RefusedRowError(problem, row, why=why, do=do)
