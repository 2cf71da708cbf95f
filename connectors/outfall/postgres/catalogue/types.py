"""Type compatibility between Arrow and PostgreSQL, and the types of new columns.

| Spark | new column | existing columns |
| --- | --- | --- |
| boolean | boolean | boolean |
| byte, short | smallint | smallint, integer, bigint, numeric, real, double precision |
| int | integer | smallint, integer, bigint, numeric, double precision |
| long | bigint | smallint, integer, bigint, numeric |
| float | real | real, double precision, numeric |
| double | double precision | double precision, numeric |
| decimal(p,s) | numeric(p,s) | numeric, smallint, integer, bigint |
| string | text | any but bytea; the server parses the string as in SQL |
| binary | bytea | bytea |
| date | date | date |
| timestamp | timestamp with time zone | timestamp with time zone |
| timestamp_ntz | timestamp without time zone | timestamp without time zone |
| time | time without time zone | time without time zone |
| interval day to second | interval | interval |
| void | text | any |
| array of one of these | an array of the element type | an array of the element type, json, jsonb |
| struct, map, array of these or of arrays | jsonb | json, jsonb |

Map keys must be strings. Values in jsonb must not contain times or intervals, because JSON has no such types.

A domain is treated as its base type. Values that a column cannot hold are rejected before they are sent, and never
truncated or rounded. Strings are rejected for money and for intervals with restricted fields, whose input the server
rounds by its settings.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

from outfall.errors import ConfigurationError
from outfall.formats.types import check_json_type, is_bytes
from outfall.postgres.catalogue.columns import Kind, TableColumn
from outfall.values import spark_type

_INTEGERS = frozenset({"int2", "int4", "int8"})
_JSON = frozenset({"json", "jsonb"})
_AS_JSON = Kind("json", None)
_ROUNDED = frozenset({"numeric", "timestamp", "timestamptz", "time", "timetz", "interval"})
"""Types whose values the server rounds to their type modifier."""


@dataclass(frozen=True)
class _Rule:
    """The column types for one scalar Arrow type."""

    matches: Callable[[pa.DataType], bool]
    new: str
    into: frozenset[str]
    otherwise: str
    """The remedy for a column of another type."""


_RULES = [
    _Rule(pa.types.is_boolean, "boolean", frozenset({"bool"}), "cast it to the column's type"),
    _Rule(
        lambda kind: pa.types.is_int8(kind) or pa.types.is_int16(kind),
        "smallint",
        _INTEGERS | {"numeric", "float4", "float8"},
        "cast it to a string, which other types parse",
    ),
    _Rule(pa.types.is_int32, "integer", _INTEGERS | {"numeric", "float8"}, "cast it, which may lose digits"),
    _Rule(pa.types.is_int64, "bigint", _INTEGERS | {"numeric"}, "cast it, which may lose digits"),
    _Rule(pa.types.is_float32, "real", frozenset({"float4", "float8", "numeric"}), "cast it, which may lose digits"),
    _Rule(pa.types.is_float64, "double precision", frozenset({"float8", "numeric"}), "cast it, which may lose digits"),
    _Rule(pa.types.is_decimal128, "numeric({0.precision},{0.scale})", _INTEGERS | {"numeric"}, "cast it to a double"),
    _Rule(is_bytes, "bytea", frozenset({"bytea"}), "decode it to a string"),
    _Rule(pa.types.is_date32, "date", frozenset({"date"}), "cast it to the column's type"),
    _Rule(
        lambda kind: _is_timestamp(kind) and kind.tz is not None,
        "timestamp with time zone",
        frozenset({"timestamptz"}),
        "cast it to timestamp_ntz, which uses the session time zone",
    ),
    _Rule(
        lambda kind: _is_timestamp(kind) and kind.tz is None,
        "timestamp without time zone",
        frozenset({"timestamp"}),
        "cast it to timestamp, which uses the session time zone",
    ),
    _Rule(pa.types.is_time64, "time without time zone", frozenset({"time"}), "cast it to a string"),
    _Rule(
        lambda kind: pa.types.is_duration(kind) and kind.unit != "ns",
        "interval",
        frozenset({"interval"}),
        "cast it to a string",
    ),
]


def new_column_type(kind: pa.DataType, name: str) -> str:
    """Return the type of a new column, as SQL. Raises `ConfigurationError` if no type preserves the values."""
    if _is_text(kind) or pa.types.is_null(kind):
        return "text"
    rule = _rule(kind)
    if rule is not None:
        return rule.new.format(kind)
    if is_list(kind) and not pa.types.is_nested(kind.value_type):
        return f"{new_column_type(kind.value_type, f'{name}.element')}[]"
    if pa.types.is_nested(kind):
        check_json_type(kind, name)
        return "jsonb"
    raise ConfigurationError(
        f"PostgreSQL does not support column {name!r} of type {spark_type(kind)}",
        why="no column type preserves its values",
        do="cast it to a string",
    )


_ARROW = {
    "bool": pa.bool_(),
    "int2": pa.int16(),
    "int4": pa.int32(),
    "int8": pa.int64(),
    "float4": pa.float32(),
    "float8": pa.float64(),
    "bytea": pa.binary(),
}


def arrow_type(kind: Kind) -> pa.DataType:
    """Return a type whose values a column stores unchanged; a string if the server parses the values."""
    if kind.element is not None:
        return pa.list_(arrow_type(kind.element))
    return _ARROW.get(kind.name, pa.string())


def why_not(kind: pa.DataType, column: TableColumn, *, json: bool = False) -> str | None:
    """Return why values of a type cannot be stored in a column, with the remedy; `None` if they can.

    With `json` the values are written as JSON, even into a column of type text.
    """
    target = _AS_JSON if json and column.kind.name == "text" else column.kind
    problem = _why_not(kind, target, column.name)
    return None if problem is None else f"{spark_type(kind)} cannot be stored in {column.type}: {problem}"


_ORDERED = frozenset({"int2", "int4", "int8", "numeric", "date", "timestamp", "timestamptz", "bytea"})
_BY_BYTES = frozenset({'pg_catalog."C"', 'pg_catalog."POSIX"'})
"""The collations that order text by its bytes, on every system and in every release."""


def why_no_sequence(kind: pa.DataType, column: TableColumn | None) -> str | None:
    """Return why a column cannot store the sequence of changes, whose values have a type; `None` if it can.

    `column` is `None` for a column that the sink creates.
    """
    by_bytes = 'have a column of type text COLLATE "C" in the table, or cast it to a number or a timestamp'
    if not _is_text(kind):
        if column is None or column.kind.name in _ORDERED:
            return None
        return f"{column.type} has no order that is suitable for a sequence"
    if column is None:
        return f"a new column of type text has the collation of the database, which may change: {by_bytes}"
    if column.kind.name not in ("text", "varchar"):
        return f"the server parses a string into {column.type}, and may find NaN or infinity: cast it in the query"
    if column.collation not in _BY_BYTES:
        return f"{column.definition} is ordered by a collation, which may ignore differences and change: {by_bytes}"
    return None


def is_list(kind: pa.DataType) -> bool:
    """Return whether a type is Spark's array type."""
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def is_json(target: Kind) -> bool:
    """Return whether a column stores JSON."""
    return target.name in _JSON


def _why_not(kind: pa.DataType, target: Kind, name: str) -> str | None:
    if pa.types.is_null(kind):
        return None
    if _is_text(kind):
        return _why_not_text(target)
    rule = _rule(kind)
    if rule is not None:
        return None if target.name in rule.into else rule.otherwise
    if is_list(kind) and target.element is not None and not pa.types.is_nested(kind.value_type):
        return _why_not(kind.value_type, target.element, f"{name}.element")
    if not pa.types.is_nested(kind):
        return "no column type preserves its values; cast it to a string"
    if not is_json(target):
        return "write it into a column of type jsonb, or as text with to_json()"
    try:
        check_json_type(kind, name)
    except ConfigurationError as error:
        return str(error)
    return None


def _why_not_text(target: Kind) -> str | None:
    """Return why the server must not parse strings into a column: it would silently round some."""
    if target.name == "bytea":
        return "cast it to binary"
    if target.name == "money":
        return "the server rounds strings to the digits of its currency; use a column of type numeric"
    if target.name == "interval" and target.typmod >= 0:
        return "the server drops fields that the column does not have; cast it to an interval, or use type interval"
    if target.element is not None and target.element.name in _ROUNDED and target.element.typmod >= 0:
        return "the server rounds the elements; write it as an array"
    return None


def _rule(kind: pa.DataType) -> _Rule | None:
    return next((rule for rule in _RULES if rule.matches(kind)), None)


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_timestamp(kind: pa.DataType) -> bool:
    # Spark has microseconds, and PostgreSQL would truncate nanoseconds.
    return bool(pa.types.is_timestamp(kind) and kind.unit != "ns")
