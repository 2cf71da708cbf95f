"""Converts the text of a dead letter to a row with the types of the target columns."""

from __future__ import annotations

import base64
import binascii
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time
from decimal import Decimal, InvalidOperation
from typing import Any

import pyarrow as pa

from outfall.errors import ConfigurationError, ValueRefusedError
from outfall.serde import parse_json
from outfall.values import rows_to_batch, spark_type

AS_JSON = "json"
"""Instead of columns: each value has its JSON type."""


@dataclass(frozen=True)
class RowMaker:
    """Converts texts of dead letters to rows.

    `schema` has the allowed columns; `None` for the columns of the text with JSON's own types. `column` is for the
    whole text, if that is not a row; else `None`.
    """

    schema: pa.Schema | None
    column: str | None = None

    def row(self, text: str) -> dict[str, Any]:
        """Return the row, with values for Arrow. If the text does not match, raises `ValueError` with the reason."""
        row = {self.column: text} if self.column is not None else self._parsed(text)
        if self.schema is None:
            return row
        unknown = [name for name in row if name not in self.schema.names]
        if unknown:
            raise ValueError(f"the target has no column {unknown[0]!r}")
        made = {}
        for name, value in row.items():
            kind = self.schema.field(name).type
            try:
                made[name] = _value(value, kind)
                if made[name] is not None and (pa.types.is_decimal(kind) or pa.types.is_nested(kind)):
                    pa.scalar(made[name], kind)  # checks precision, also of nested values
            except (ValueError, TypeError, OverflowError, InvalidOperation, pa.ArrowException) as error:
                raise ValueError(
                    f"column {name!r} cannot store {_excerpt(value)} as {spark_type(kind)}: {error}"
                ) from None
        return made

    def batch(self, rows: Sequence[dict[str, Any]]) -> pa.RecordBatch:
        """Return a batch of rows with the same columns.

        Raises `ConfigurationError` if a column has values of several types, without a schema.
        """
        if self.schema is None:
            try:
                return rows_to_batch(rows)
            except ValueRefusedError as error:
                raise ConfigurationError.because_of(error, "the rows have no common schema") from error
        names = list(rows[0])
        schema = pa.schema([self.schema.field(name).with_nullable(True) for name in names])
        arrays = [pa.array([row[name] for row in rows], field.type) for name, field in zip(names, schema, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def _parsed(self, text: str) -> dict[str, Any]:
        try:
            # A float would lose digits of a decimal. Without a schema, JSON's own types apply.
            found = parse_json(text) if self.schema is None else parse_json(text, parse_float=Decimal)
        except ValueError as error:
            raise ValueError(f"the text is not valid JSON ({error})") from None
        if not isinstance(found, dict):
            raise ValueError("the text is not a JSON object")
        return found


def _value(value: Any, kind: pa.DataType) -> Any:
    """Convert a JSON value to a value for an Arrow type."""
    if value is None:
        return None
    types = pa.types
    if types.is_string(kind) or types.is_large_string(kind):
        return value if isinstance(value, str) else _json_text(value)
    if types.is_boolean(kind):
        return _of(_from_text(value, _boolean, "true or false"), bool)
    if types.is_integer(kind):
        return _integer(value, kind.bit_width)
    if types.is_floating(kind):
        return _float(value)
    if types.is_decimal(kind):
        return Decimal(str(_of(value, int, Decimal, str)))
    if types.is_binary(kind) or types.is_large_binary(kind):
        return _bytes(_of(value, str))
    if types.is_date(kind):
        return date.fromisoformat(_of(value, str))
    if types.is_timestamp(kind):
        return _timestamp(_of(value, str), kind)
    if types.is_time(kind):
        return time.fromisoformat(_of(value, str))
    return _nested(value, kind)


def _nested(value: Any, kind: pa.DataType) -> Any:
    types = pa.types
    if types.is_list(kind) or types.is_large_list(kind):
        return [_value(item, kind.value_type) for item in _of(value, list)]
    if types.is_struct(kind):
        fields = {kind.field(index).name: kind.field(index).type for index in range(kind.num_fields)}
        unknown = [name for name in _of(value, dict) if name not in fields]
        if unknown:
            raise ValueError(f"the struct has no field {unknown[0]!r}")
        return {name: _value(value.get(name), inner) for name, inner in fields.items()}
    if types.is_map(kind):
        pairs = value.items() if isinstance(value, dict) else [(pair["key"], pair["value"]) for pair in value]
        return [(_value(key, kind.key_type), _value(item, kind.item_type)) for key, item in pairs]
    raise ValueError("dead letters do not support this type")


def _of(value: Any, *kinds: type) -> Any:
    # In Python, True is an integer.
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        raise ValueError("the value has another type")
    return value


def _from_text(value: Any, parse: Callable[[str], Any], kind: str) -> Any:
    """Parse a string. A stream may have a string for a column of another type, if the target parses it."""
    if not isinstance(value, str):
        return value
    try:
        if "_" in value or not value.isascii():  # which only Python accepts
            raise ValueError
        return parse(value)
    except (ValueError, InvalidOperation):
        raise ValueError(
            f"the text is not {kind}; if the target accepts it, give all columns with --schema, and this one as string"
        ) from None


def _boolean(text: str) -> bool:
    found = {"true": True, "t": True, "false": False, "f": False}.get(text.strip().lower())
    if found is None:
        raise ValueError
    return found


def _integer(value: Any, bits: int) -> int:
    value = _from_text(value, int, "an integer")
    if isinstance(value, bool) and bits == 8:  # a boolean of a database that has no such type
        return int(value)
    whole = isinstance(value, Decimal) and value == value.to_integral_value()
    made = int(value) if whole else int(_of(value, int))
    if not -(1 << bits - 1) <= made < 1 << bits - 1:
        raise ValueError("the value is too large")
    return made


def _float(value: Any) -> float:
    if isinstance(value, str) and value in ("NaN", "Infinity", "-Infinity", "nan", "inf", "-inf"):
        return float(value)
    made = float(_of(_from_text(value, Decimal, "a number"), int, Decimal))
    if math.isinf(made):
        raise ValueError("the value is too large")
    return made


def _bytes(text: str) -> bytes:
    # PostgreSQL writes bytes as \\x…, the format jsonl as Base64, which has no backslash.
    if text.startswith("\\x"):
        return bytes.fromhex(text[2:])
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ValueError(f"invalid Base64: {error}") from None


def _timestamp(text: str, kind: Any) -> datetime:
    made = datetime.fromisoformat(text)
    if (made.tzinfo is None) != (kind.tz is None):
        raise ValueError("the value has no time zone" if kind.tz is not None else "the value has a time zone")
    return made


def _json_text(value: Any) -> str:
    """Format a value as JSON with unchanged numbers."""
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)}: {_json_text(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_json_text, value)) + "]"
    return json.dumps(value, ensure_ascii=False)


def _excerpt(value: Any) -> str:
    text = _json_text(value)
    return text if len(text) <= 100 else f"{text[:100]}…"
