"""Where a value is, and its refusal."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from outfall.errors import ValueRefusedError
from outfall.formats.strings import first_row


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

    def refuse_row(self, row: int, what: str, do: str) -> None:
        """Raise `ValueRefusedError` for the value with this number."""
        where = "" if self.nested else f", in row {row} of the batch"
        raise ValueRefusedError(f"column {self.path!r} {what}{where}", why="the schema does not allow it", do=do)
