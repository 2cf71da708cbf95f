"""Rows as JSON text, for users and for dead letters, including rows that no format accepts."""

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
    """Return each row of a batch as JSON text, in the format `jsonl` with NULL fields.

    A value that the format rejects is written as Python prints it, or as Arrow prints it if Python cannot represent it.
    This never fails, because a dead letter must not be rejected itself.
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
"""Errors of Python and Arrow for a value: a year beyond 9999, an unknown zone, bytes that are not text."""


def _texts(column: pa.Array, name: str) -> list[str]:
    """Return a column's values as JSON texts, in the format `jsonl` if it accepts all of them."""
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
    return json.dumps(_json_value(value), ensure_ascii=False)


def _json_value(value: pa.Scalar) -> Any:
    """Return a value of any type as a value that JSON can represent."""
    kind = value.type
    if value.is_valid and pa.types.is_struct(kind):
        return {kind.field(index).name: _json_value(value[index]) for index in range(kind.num_fields)}
    if value.is_valid and hasattr(value, "values"):
        # A list, or the key-value structs of a map.
        return [_json_value(child) for child in value.values]
    try:
        held = value.as_py()
    except (TypeError, *_NOT_SHOWN):
        return _of_arrow(value)
    if isinstance(held, float):
        return held if math.isfinite(held) else str(held)
    return held if held is None or isinstance(held, str | int) else str(held)


def _of_arrow(value: pa.Scalar) -> Any:
    """Return a JSON value for a value that Python cannot represent."""
    if hasattr(value, "as_buffer"):
        return str(value.as_buffer().to_pybytes())
    inner = getattr(value, "value", None)
    if isinstance(inner, pa.Scalar):
        return _json_value(inner)
    try:
        return str(value.cast(pa.string()).as_py())
    except (TypeError, *_NOT_SHOWN):
        return f"{'a value' if inner is None else inner} as {spark_type(value.type)}"
