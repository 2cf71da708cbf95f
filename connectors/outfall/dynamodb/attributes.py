"""Rows to DynamoDB's attribute values, without the loss of a digit, and their size as DynamoDB counts it.

Types and limits: "Supported data types and naming rules", "Item sizes and formats" and "Quotas" in the Developer Guide.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa

from outfall.errors import ConfigurationError, ValueRefusedError
from outfall.formats import FormatOptions
from outfall.formats.jsonl import JsonlEncoder
from outfall.formats.types import is_bytes
from outfall.values import require_columns, spark_type

Attribute = dict[str, Any]
"""A value with its type: `{"S": "text"}`."""
Item = dict[str, Attribute]

_DIGITS = 38
_LEAST, _GREATEST = -130, 125
"""The exponents of a number with one digit before the point."""
_TEXTS = JsonlEncoder(FormatOptions(format="jsonl"), pa.schema([]))


def items_of(batch: pa.RecordBatch, sets: Sequence[str]) -> list[Item]:
    """Return each row as an item; NULL has no attribute, and an empty set has none either.

    Raises `ValueRefusedError` for a number that DynamoDB cannot represent.
    """
    items: list[Item] = [{} for _ in range(batch.num_rows)]
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        convert = _set_converter(column.type) if name in sets else converter(column.type)
        for item, value in zip(items, _values(column, name), strict=True):
            if value is not None and (found := convert(value)) is not None:
                item[name] = found
    return items


def check_types(schema: pa.Schema, sets: Sequence[str]) -> None:
    """Raise `ConfigurationError` for columns that cannot be stored."""
    require_columns(schema.names, {"set_columns": sets})
    for field in schema:
        if field.name in sets:
            _set_converter(field.type)
        else:
            converter(field.type)


def converter(kind: pa.DataType) -> Callable[[Any], Attribute | None]:
    """Return a function from a value that is not NULL to its attribute. Raises `ConfigurationError` for other types."""
    types = pa.types
    if types.is_boolean(kind):
        return lambda value: {"BOOL": value}
    if types.is_integer(kind):
        return lambda value: {"N": str(value)}
    if types.is_floating(kind):
        return _float
    if types.is_decimal(kind):
        return lambda value: {"N": number(value)}
    if is_bytes(kind):
        return lambda value: {"B": value}
    if types.is_string(kind) or types.is_large_string(kind) or types.is_temporal(kind):
        return lambda value: {"S": value}
    if types.is_list(kind) or types.is_large_list(kind):
        element = converter(kind.value_type)
        return lambda values: {"L": [_nested(element, value) for value in values]}
    if types.is_struct(kind):
        fields = {field.name: converter(field.type) for field in kind}
        return lambda row: {"M": {name: _nested(fields[name], value) for name, value in row.items()}}
    if types.is_map(kind) and (types.is_string(kind.key_type) or types.is_large_string(kind.key_type)):
        entry = converter(kind.item_type)
        return lambda pairs: {"M": {name: _nested(entry, value) for name, value in pairs}}
    if types.is_null(kind):
        return lambda value: None
    raise ConfigurationError(
        f"DynamoDB has no type for {spark_type(kind)}", do="cast the column, for example to a string"
    )


def number(value: Decimal) -> str:
    """Return a number as text. Raises `ValueRefusedError` if it has more than 38 digits, or is too large or small."""
    # Not `normalize` and `abs`, which round to the digits of the context.
    digits = len("".join(map(str, value.as_tuple().digits)).strip("0"))
    if digits > _DIGITS or (value and not _LEAST <= value.adjusted() <= _GREATEST):
        raise ValueRefusedError(
            f"a number has {digits} digits and the exponent {value.adjusted()}, and DynamoDB stores 38 digits and"
            " magnitudes from 1E-130 to 9.99E+125",
            do="round it, or cast the column to a string",
        )
    return str(value)


def size_of(item: Item) -> int:
    """Return the size of an item in bytes. Numbers are counted as their longest form, so it may be a little less."""
    return sum(len(name.encode()) + _size(value) for name, value in item.items())


def _size(attribute: Attribute) -> int:
    ((kind, value),) = attribute.items()
    if kind == "S":
        return len(value.encode())
    if kind == "N":
        return _number_size(value)
    if kind == "B":
        return len(value)
    if kind == "SS":
        return sum(len(each.encode()) for each in value)
    if kind == "NS":
        return sum(map(_number_size, value))
    if kind == "BS":
        return sum(map(len, value))
    if kind == "L":
        return 3 + sum(1 + _size(each) for each in value)
    if kind == "M":
        return 3 + sum(1 + len(name.encode()) + _size(each) for name, each in value.items())
    return 1  # BOOL, NULL


def _number_size(text: str) -> int:
    return min(21, (sum(character.isdigit() for character in text) + 1) // 2 + 2)


def _values(column: pa.Array, name: str) -> list[Any]:
    if not pa.types.is_temporal(column.type):
        return column.to_pylist()  # type: ignore[no-any-return]
    # In the form of JSON, without its quotes.
    texts = _TEXTS.values(column, name).to_pylist()
    return [None if text is None else text.strip('"') for text in texts]


def _nested(convert: Callable[[Any], Attribute | None], value: Any) -> Attribute:
    found = None if value is None else convert(_plain(value))
    return {"NULL": True} if found is None else found


def _plain(value: Any) -> Any:
    """Return dates and times inside other values as text in ISO 8601."""
    return value.isoformat() if hasattr(value, "isoformat") else value


def _float(value: float) -> Attribute:
    if not math.isfinite(value):
        raise ValueRefusedError(
            f"a number is {value}, and DynamoDB has neither NaN nor infinity", do="replace it, or cast it to a string"
        )
    return {"N": number(Decimal(repr(value)))}


def _set_converter(kind: pa.DataType) -> Callable[[Any], Attribute | None]:
    types = pa.types
    inner = kind.value_type if types.is_list(kind) or types.is_large_list(kind) else None
    if inner is not None and (types.is_string(inner) or types.is_large_string(inner)):
        return lambda values: _set("SS", values)
    if inner is not None and is_bytes(inner):
        return lambda values: _set("BS", values)
    if inner is not None and (types.is_integer(inner) or types.is_decimal(inner) or types.is_floating(inner)):
        convert = converter(inner)
        return lambda values: _set("NS", [None if value is None else (convert(value) or {})["N"] for value in values])
    raise ConfigurationError(
        f"a column of type {spark_type(kind)} cannot be a set",
        why="DynamoDB has sets of strings, numbers and binary values",
        do="remove it from set_columns",
    )


def _set(kind: str, values: Sequence[Any]) -> Attribute | None:
    if None in values:
        raise ValueRefusedError("a set contains NULL", do="remove the NULL, or store the column as a list")
    return {kind: sorted(set(values))} if values else None
