"""What a refused record looks like, wherever it goes.

A record that its destination refuses for good is a dead letter: it is written somewhere else, with the reason, in the
same epoch as the rows that went through. The pattern is Hohpe and Woolf's Dead Letter Channel (Enterprise Integration
Patterns, 2003), https://www.enterpriseintegrationpatterns.com/patterns/messaging/DeadLetterChannel.html
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from outfall.errors import ConfigurationError, OutfallError, ValueRefusedError
from outfall.formats import FormatOptions, rows_to_batch
from outfall.formats.jsonl import JsonlEncoder
from outfall.formats.types import check_json_type

EXCERPT_CHARACTERS = 1000
"""How much of an answer is kept; a body may be a page of HTML."""

DEAD_LETTER_SCHEMA = pa.schema(
    [
        pa.field("row", pa.string(), nullable=False),
        pa.field("reason", pa.string(), nullable=False),
        pa.field("code", pa.string()),
        pa.field("excerpt", pa.string()),
        pa.field("step", pa.string(), nullable=False),
        pa.field("epoch", pa.int64()),
        pa.field("part", pa.string()),
        pa.field("time", pa.timestamp("us", tz="UTC"), nullable=False),
    ]
)
"""The columns of dead letters, in every sink that takes them."""


@dataclass(frozen=True)
class DeadLetter:
    """One refused record. `time` is when it was refused."""

    row: str
    """The record as JSON text; see `row_text`."""
    reason: str
    """Why it was refused, in the destination's words. Never a secret."""
    step: str
    epoch: int | None
    part: str | None = None
    """The part or the writer; `None` where the driver found out."""
    code: str | None = None
    """The destination's code for the reason: an SQLSTATE, an HTTP status, an AWS error code."""
    excerpt: str | None = None
    """The beginning of the destination's answer."""
    time: datetime = field(default_factory=lambda: datetime.now(UTC))

    def __post_init__(self) -> None:
        """Escape what no UTF-8 holds, as a lone surrogate in a client's text, and cut the excerpt to its bound.

        Raises:
            ValueError: the time has no zone.
        """
        if self.time.tzinfo is None:
            raise ValueError("the time of a dead letter needs a zone")
        for name in ("row", "reason", "code", "excerpt"):
            text = getattr(self, name)
            if text is not None:
                object.__setattr__(self, name, _encodable(text))
        if self.excerpt is not None and len(self.excerpt) > EXCERPT_CHARACTERS:
            object.__setattr__(self, "excerpt", self.excerpt[:EXCERPT_CHARACTERS])


def dead_letter_batch(letters: Sequence[DeadLetter]) -> pa.RecordBatch:
    """Return dead letters as rows of `DEAD_LETTER_SCHEMA`, for a sink to write."""
    columns = [[getattr(letter, name) for letter in letters] for name in DEAD_LETTER_SCHEMA.names]
    arrays = [pa.array(values, kind.type) for values, kind in zip(columns, DEAD_LETTER_SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=DEAD_LETTER_SCHEMA)


def row_text(row: Mapping[str, Any]) -> str:
    """Return a record as the JSON text of a dead letter; see `row_texts`."""
    try:
        return row_texts(rows_to_batch([dict(row)]))[0]
    except ValueRefusedError:
        return _encodable(json.dumps(dict(row), ensure_ascii=False, default=str))


def row_texts(batch: pa.RecordBatch) -> list[str]:
    """Return each row of a batch as JSON text: as the format `jsonl` writes it, with its NULL fields.

    A value that the format refuses is written as Python shows it, and as Arrow does where Python cannot hold it: this
    never fails, since a dead letter that is refused in turn helps nobody.
    """
    try:
        return bytes(JsonlEncoder(_JSONL, batch.schema).encode(batch)).decode().split("\n")[:-1]
    except (OutfallError, *_NOT_SHOWN):
        names = [json.dumps(name, ensure_ascii=False) for name in batch.schema.names]
        columns = [_texts(column, name) for column, name in zip(batch.columns, batch.schema.names, strict=True)]
        rows = zip(*columns, strict=True) if columns else [()] * batch.num_rows
        return ["{" + ", ".join(map(": ".join, zip(names, row, strict=True))) + "}" for row in rows]


_JSONL = FormatOptions(format="jsonl", ignore_null_fields=False)
_VALUES = JsonlEncoder(_JSONL, pa.schema([]))
_NOT_SHOWN = (ArithmeticError, LookupError, ValueError, pa.ArrowException)
"""How Python and Arrow refuse a value: a year beyond 9999, an unknown zone, bytes that are no text."""


def _texts(column: pa.Array, name: str) -> list[str]:
    """A column's values as JSON texts: as the format writes them where it takes their type and all of them."""
    try:
        check_json_type(column.type, name)
        return list(_VALUES.values(column, name).fill_null("null").to_pylist())
    except ConfigurationError:
        return [_text(value) for value in column]
    except (OutfallError, *_NOT_SHOWN):
        if len(column) == 1:
            return [_text(column[0])]
        return [text for row in range(len(column)) for text in _texts(column.slice(row, 1), name)]


def _text(value: pa.Scalar) -> str:
    return json.dumps(_shown(value), ensure_ascii=False)


def _shown(value: pa.Scalar) -> Any:
    """A value of any type as JSON can hold it."""
    kind = value.type
    if value.is_valid and pa.types.is_struct(kind):
        return {kind.field(index).name: _shown(value[index]) for index in range(kind.num_fields)}
    if value.is_valid and hasattr(value, "values"):
        # A list; of a map the structs of a key and its value.
        return [_shown(child) for child in value.values]
    try:
        held = value.as_py()
    except (TypeError, *_NOT_SHOWN):
        return _of_arrow(value)
    if isinstance(held, float):
        return held if math.isfinite(held) else str(held)
    return held if held is None or isinstance(held, str | int) else str(held)


def _of_arrow(value: pa.Scalar) -> Any:
    """A value that Python cannot hold."""
    if hasattr(value, "as_buffer"):
        return str(value.as_buffer().to_pybytes())
    inner = getattr(value, "value", None)
    if isinstance(inner, pa.Scalar):
        return _shown(inner)
    try:
        return str(value.cast(pa.string()).as_py())
    except (TypeError, *_NOT_SHOWN):
        return f"{'a value' if inner is None else inner} as {value.type}"


def _encodable(text: str) -> str:
    return text if text.isascii() else text.encode(errors="backslashreplace").decode()
