"""How much of a rejected row errors and log lines show: rows may hold personal data, and logs have many readers."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from pydantic import Field

from outfall.errors import printable
from outfall.redaction import Redaction
from outfall.serde import parse_json

LogRows: TypeAlias = Literal["none", "keys", "full"]

_EXCERPT = 200
"""Characters of a row."""
_KEY = 40
"""Characters of a key column's value."""
_SHORTEST = 4
"""Characters. Shorter values are not masked, because they occur in too many words."""


def log_rows_field() -> Any:
    """Return the field `log_rows` of the options of a sink that may reject rows."""
    return Field(
        default="keys",
        description="What errors and logs show of a rejected row. `none`: its position. `keys`: also its key columns,"
        " shortened. `full`: the beginning of the row, and the unmasked message of the destination. Dead letters always"
        " contain the whole row.",
    )


@dataclass(frozen=True)
class RowLog:
    """Writes about rejected rows in errors and log lines, as `log_rows` permits.

    `keys` are the columns that identify a row, as far as known.
    """

    log_rows: LogRows = "keys"
    keys: Sequence[str] = ()

    @property
    def full(self) -> bool:
        """Whether everything may be shown."""
        return self.log_rows == "full"

    def name(self, where: str, row: str) -> str:
        """Return how to call a row, given as JSON. `where` may always be shown, such as "row 7 of its task"."""
        if self.full:
            return printable(f"{where}, {_cut(row, _EXCERPT)}")
        found = _parsed(row) if self.log_rows == "keys" else None
        if not isinstance(found, Mapping):
            return where
        key = {name: _shortened(found[name]) for name in self.keys if name in found}
        return printable(f"the row with key {json.dumps(key, ensure_ascii=False)}") if key else where

    def described(self, where: str, row: str, reason: str) -> str:
        """Return how to call a row, with the reason of its rejection in the destination's words."""
        return f"{self.name(where, row)}: {self.quoted(reason[: 2 * _EXCERPT], [row])}"

    def quoted(self, text: str, rows: Iterable[str]) -> str:
        """Return what a destination said about rows, with `***` in place of their values, in any encoding.

        The rows that it may quote are JSON. Values of fewer than four characters are not found, nor those that the
        destination has changed or truncated.
        """
        if self.full or not text:
            return printable(text)
        kept = self.keys if self.log_rows == "keys" else ()
        values = {value for row in rows for value in _values(_parsed(row), kept) if len(value) >= _SHORTEST}
        return printable(Redaction(()).hide(text, values))


def _values(value: Any, kept: Sequence[str]) -> Iterator[str]:
    """Yield the strings and numbers in a JSON value, except those of the columns that may be shown."""
    if isinstance(value, Mapping):
        for name, item in value.items():
            yield from () if name in kept else _values(item, ())
    elif isinstance(value, list):
        for item in value:
            yield from _values(item, ())
    elif value is not None and not isinstance(value, bool):
        yield str(value)


def _parsed(row: str) -> Any:
    try:
        return parse_json(row)
    except ValueError:
        return row


def _shortened(value: Any) -> Any:
    if isinstance(value, list | dict):
        value = json.dumps(value, ensure_ascii=False)
    return _cut(value, _KEY) if isinstance(value, str) else value


def _cut(text: str, characters: int) -> str:
    return text if len(text) <= characters else f"{text[:characters]}…"
