"""Rows as JSON text, for people and for dead letters: of any row, also one that no format takes."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from outfall.dead_letter import escape_surrogates
from outfall.errors import ConfigurationError, OutfallError, ValueRefusedError
from outfall.formats.jsonl import JsonlEncoder
from outfall.formats.options import FormatOptions
from outfall.formats.types import check_json_type
from outfall.values import rows_to_batch, spark_type


def row_text(row: Mapping[str, Any]) -> str:
    """Return a record as the JSON text of a dead letter; see `row_texts`."""
    try:
        return row_texts(rows_to_batch([dict(row)]))[0]
    except ValueRefusedError:
        return escape_surrogates(json.dumps(dict(row), ensure_ascii=False, default=str))


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
        return f"{'a value' if inner is None else inner} as {spark_type(value.type)}"
