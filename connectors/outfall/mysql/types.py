"""Type compatibility between Arrow and MySQL, the types of new columns, and the values that a column cannot hold.

| Spark | new column | existing columns |
| --- | --- | --- |
| boolean | tinyint | any integer, bit |
| byte, short | tinyint, smallint | any integer, bit, year, decimal, float, double |
| int | int | any integer, bit, year, decimal, double |
| long | bigint | any integer, bit, year, decimal |
| float | double | float, double |
| double | double | double |
| decimal(p,s) | decimal(p,s) | decimal, any integer |
| string | longtext; varchar(255) in a key | char, varchar, text, enum, set, json; uuid of MariaDB |
| binary | longblob; varbinary(255) in a key | binary, varbinary, blob |
| date | date | date |
| timestamp | datetime(6), in UTC | datetime in UTC, timestamp |
| timestamp_ntz | datetime(6) | datetime |
| time | time(6) | time |
| void | longtext | any |
| struct, map, array | json | json, longtext |

The server would round, truncate, pad or replace values that a column cannot hold, some of them without a warning. So
each value is compared with its column before it is sent, and staging has the column types of the table: publishing
converts nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from decimal import Decimal

import pyarrow as pa
import pyarrow.compute as pc

from outfall.errors import ConfigurationError
from outfall.formats.types import check_json_type, is_bytes
from outfall.mysql.columns import MySQLColumn
from outfall.mysql.json_text import changed_by_mysql
from outfall.mysql.names import quote
from outfall.values import spark_type

_INTEGERS = frozenset({"tinyint", "smallint", "mediumint", "int", "bigint"})
_TEXTS = {"tinytext": 255, "text": 65_535, "mediumtext": (1 << 24) - 1, "longtext": (1 << 32) - 1}
_BLOBS = {"tinyblob": 255, "blob": 65_535, "mediumblob": (1 << 24) - 1, "longblob": (1 << 32) - 1}
_WHOLE = _INTEGERS | {"bit", "year"}
_STRINGS = frozenset({"char", "varchar", "enum", "set", "json", "uuid", *_TEXTS})
_BINARIES = frozenset({"binary", "varbinary", *_BLOBS})
_JSON = frozenset({"json", "longtext"})
_YEARS = (1901, 2155)
"""A smaller number stands for another year, or for none."""
_UUID = "^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$"
"""The form in which MariaDB returns it."""
KEY_LENGTH = 255
"""Characters or bytes of a new key column. An index of InnoDB has at most 3072 bytes."""

_EPOCH = date(1970, 1, 1)
_DAYS = ((date(1, 1, 1) - _EPOCH).days, (date(9999, 12, 31) - _EPOCH).days)
_DAY = 86_400_000_000
_INSTANTS = {
    "datetime": (_DAYS[0] * _DAY, (_DAYS[1] + 1) * _DAY - 1, "the years 1 to 9999"),
    "timestamp": (1_000_000, 2**31 * 1_000_000 - 1, "1970-01-01 00:00:01 to 2038-01-19 03:14:07 UTC"),
}
"""The first and the last microsecond of a type."""
_OUTSIDE = {"utf8": r"[\x{10000}-\x{10FFFF}]", "utf8mb3": r"[\x{10000}-\x{10FFFF}]", "ascii": r"[^\x00-\x7F]"}
"""The characters that a character set does not have."""


@dataclass(frozen=True)
class _Rule:
    """The column types for one scalar Arrow type."""

    matches: Callable[[pa.DataType], bool]
    new: str
    into: frozenset[str]
    otherwise: str
    """The remedy for a column of another type."""


def is_text(kind: pa.DataType) -> bool:
    """Return whether a type is Spark's string type."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


_NUMBERS = "cast it to the column's type, which may lose digits"
_RULES = [
    _Rule(pa.types.is_boolean, "tinyint", _INTEGERS | {"bit"}, "cast it to the column's type"),
    _Rule(pa.types.is_int8, "tinyint", _WHOLE | {"decimal", "float", "double"}, _NUMBERS),
    _Rule(pa.types.is_int16, "smallint", _WHOLE | {"decimal", "float", "double"}, _NUMBERS),
    _Rule(pa.types.is_int32, "int", _WHOLE | {"decimal", "double"}, _NUMBERS),
    _Rule(pa.types.is_int64, "bigint", _WHOLE | {"decimal"}, _NUMBERS),
    # A reader gets 6 digits of a FLOAT.
    _Rule(pa.types.is_float32, "double", frozenset({"float", "double"}), _NUMBERS),
    _Rule(pa.types.is_float64, "double", frozenset({"double"}), _NUMBERS),
    _Rule(pa.types.is_decimal128, "decimal({0.precision},{0.scale})", _INTEGERS | {"decimal"}, _NUMBERS),
    _Rule(is_text, "longtext", _STRINGS, "cast it to the column's type"),
    _Rule(is_bytes, "longblob", _BINARIES, "decode it to a string"),
    _Rule(pa.types.is_date32, "date", frozenset({"date"}), "cast it to the column's type"),
    _Rule(
        lambda kind: _is_timestamp(kind) and kind.tz is not None,
        "datetime(6)",
        frozenset({"datetime", "timestamp"}),
        "cast it to the column's type",
    ),
    _Rule(
        lambda kind: _is_timestamp(kind) and kind.tz is None,
        "datetime(6)",
        frozenset({"datetime"}),
        "cast it to timestamp, which uses the session time zone",
    ),
    _Rule(pa.types.is_time64, "time(6)", frozenset({"time"}), "cast it to a string"),
]


def new_column_type(kind: pa.DataType, name: str) -> str:
    """Return the type of a new column, as SQL. Raises `ConfigurationError` if no type preserves the values."""
    if pa.types.is_null(kind):
        return "longtext"
    rule = _rule(kind)
    if rule is not None:
        return rule.new.format(kind)
    if pa.types.is_nested(kind):
        check_json_type(kind, name)
        return "json"
    raise ConfigurationError(
        f"MySQL does not support column {name!r} of type {spark_type(kind)}",
        why="no column type preserves its values",
        do="cast it to a string",
    )


def why_not(kind: pa.DataType, column: MySQLColumn) -> str | None:
    """Return why values of a type cannot be stored in a column, with the remedy; `None` if they can."""
    problem = _why_not(kind, column)
    return None if problem is None else f"{spark_type(kind)} cannot be stored in {column.type}: {problem}"


_ARROW = {
    "tinyint": pa.int8(), "smallint": pa.int16(), "mediumint": pa.int32(), "int": pa.int32(), "bigint": pa.int64(),
    "float": pa.float32(), "double": pa.float64(), "date": pa.date32(), "datetime": pa.timestamp("us", "UTC"),
    "timestamp": pa.timestamp("us", "UTC"), "time": pa.time64("us"), "year": pa.int16(),
}  # fmt: skip
_UNSIGNED = {
    "tinyint": pa.int16(), "smallint": pa.int32(), "mediumint": pa.int32(), "int": pa.int64(),
    "bigint": pa.decimal128(20, 0),
}  # fmt: skip


def arrow_type(column: MySQLColumn) -> pa.DataType:
    """Return a type whose values a column stores."""
    if column.kind == "decimal":
        return pa.decimal128(min(column.precision, 38), min(column.scale, 38))
    if column.kind == "bit":
        return {1: pa.bool_(), 64: pa.decimal128(20, 0)}.get(column.precision, pa.int64())
    if column.unsigned and column.kind in _UNSIGNED:
        return _UNSIGNED[column.kind]
    return pa.binary() if column.kind in _BINARIES else _ARROW.get(column.kind, pa.string())


def json_value(column: MySQLColumn) -> str:
    """Return a column's value for the server's JSON_OBJECT, as the sink writes it; for a statement with parameters.

    The server alone would write bytes as text, 6 digits of a FLOAT, and times without their zone.
    """
    name = quote(column.name)
    if column.kind in _BINARIES:
        return f"REPLACE(TO_BASE64({name}), '\\n', '')"
    if column.kind == "float":
        return f"{name} + 0e0"
    if column.kind == "bit":
        return f"{name} + 0"
    if column.kind in _INSTANTS:
        return f"DATE_FORMAT({name}, '%%Y-%%m-%%dT%%H:%%i:%%s.%%fZ')"
    return name


_ORDERED = _INTEGERS | _BINARIES | {"decimal", "date", "datetime", "timestamp"}


def why_no_sequence(kind: pa.DataType, column: MySQLColumn | None) -> str | None:
    """Return why a column cannot store the sequence of changes, whose values have a type; `None` if it can.

    `column` is `None` for a column that the sink creates.
    """
    by_bytes = "have a varchar column with a collation that ends with _bin, or cast it to a number or a timestamp"
    if not is_text(kind):
        if column is None or column.kind in _ORDERED:
            return None
        return f"{column.type} has no order that is suitable for a sequence"
    if column is None:
        return f"a new column of type longtext may have a collation that compares different texts as equal: {by_bytes}"
    if column.kind not in ("varchar", *_TEXTS):
        return f"{column.type} has no order that is suitable for a sequence: {by_bytes}"
    if not (column.collation or "").endswith("_bin"):
        return f"{column.definition} is ordered by a collation that may compare different texts as equal: {by_bytes}"
    return None


def mismatches(array: pa.Array, column: MySQLColumn) -> Iterator[tuple[pa.Array, str]]:
    """Yield masks of values that a column cannot hold unchanged, with the reason; NULL never is one of them."""
    kind = array.type
    if pa.types.is_null(kind):
        return
    if column.kind == "json":
        if (changed := changed_by_mysql(array, column.name)) is not None:
            yield changed, "json stores integers of at most 64 bits, doubles, and no duplicate names in an object"
    elif column.kind in _WHOLE or column.kind == "decimal":
        yield from _numbers(array, column)
    elif column.kind in ("float", "double"):
        if pa.types.is_floating(kind):
            yield pc.invert(pc.is_finite(array)), "the server cannot store NaN or infinity"
        if column.unsigned:
            yield pc.less(array, pa.scalar(0, kind)), "the column is unsigned"
    elif column.kind == "date":
        days = array.cast(pa.int32())
        yield _outside(days, *_DAYS), "a date must be in the years 1 to 9999"
    elif column.kind in _INSTANTS:
        first, last, years = _INSTANTS[column.kind]
        instants = array.cast(pa.timestamp("us", kind.tz)).cast(pa.int64())
        yield _outside(instants, first, last), f"the column holds {years}"
        yield from _fractions(instants, column)
    elif column.kind == "time":
        yield from _fractions(array.cast(pa.time64("us")).cast(pa.int64()), column)
    elif is_text(kind):
        yield from _strings(array, column)
    elif is_bytes(kind):
        yield from _lengths(pc.binary_length(array), column, "bytes")


def _numbers(array: pa.Array, column: MySQLColumn) -> Iterator[tuple[pa.Array, str]]:
    if pa.types.is_boolean(array.type):
        return
    if column.kind == "decimal":
        scale, most = column.scale, 10 ** (column.precision - column.scale) - Decimal(1).scaleb(-column.scale)
        low, high = Decimal(0) if column.unsigned else -most, most
    elif column.kind == "bit":
        scale, low, high = 0, Decimal(0), Decimal(2**column.precision - 1)
    elif column.kind == "year":
        scale, low, high = 0, *map(Decimal, _YEARS)
    else:
        scale, bits = 0, 8 * (3 if column.kind == "mediumint" else column.bytes)
        low, high = (
            (Decimal(0), Decimal(2**bits - 1))
            if column.unsigned
            else (Decimal(-(2 ** (bits - 1))), Decimal(2 ** (bits - 1) - 1))
        )
    why = f"{column.type} holds numbers from {low:f} to {high:f}"
    if pa.types.is_integer(array.type):
        first, last = max(int(low), -(2**63)), min(int(high), 2**63 - 1)
        yield _outside(array.cast(pa.int64()), first, last), why
        return
    # Arrow compares and casts decimals only within their precision, so Python compares those that may not fit.
    digits = array.type.precision - array.type.scale
    if not column.unsigned and array.type.scale <= scale and 10**digits <= high + 1:
        return
    values = array.to_pylist()
    unequal = (value is not None and (not low <= value <= high or value != round(value, scale)) for value in values)
    yield pa.array(list(unequal), pa.bool_()), f"{why} with {scale} digits after the point"


def _fractions(microseconds: pa.Array, column: MySQLColumn) -> Iterator[tuple[pa.Array, str]]:
    if column.fraction < 6:
        unit = 10 ** (6 - column.fraction)
        rest = pc.subtract(microseconds, pc.multiply(pc.divide(microseconds, unit), unit))
        yield pc.not_equal(rest, 0), f"{column.type} keeps {column.fraction} digits of fractions of a second"


def _strings(array: pa.Array, column: MySQLColumn) -> Iterator[tuple[pa.Array, str]]:
    if column.kind == "enum":
        words = pa.array(column.words, array.type)
        yield pc.and_(array.is_valid(), pc.invert(pc.is_in(array, words))), "it is not a member of the enum"
        return
    if column.kind == "set":
        values = (value is not None and value != _of_set(value, column.words) for value in array.to_pylist())
        why = "it is not a list of members of the set, each once and in the order of the set, separated by commas"
        yield pa.array(list(values), pa.bool_()), why
        return
    if column.kind == "uuid":
        yield pc.invert(pc.match_substring_regex(array, _UUID)), "it is no UUID of lower-case digits with hyphens"
        return
    if column.kind in ("char", "varchar"):
        yield from _lengths(pc.utf8_length(array), column, "characters")
    elif column.kind in _TEXTS:
        yield from _lengths(pc.binary_length(array), column, "bytes")
    if column.kind == "char":
        yield pc.ends_with(array, " "), f"{column.type} does not keep spaces at the end"
    if (outside := _OUTSIDE.get(column.charset or "")) is not None:
        yield pc.match_substring_regex(array, outside), f"the character set {column.charset} lacks a character of it"


def _of_set(value: str, words: Sequence[str]) -> str:
    """Return a value of a set as the server stores it, without what is no member."""
    given = set(value.split(","))
    return ",".join(word for word in words if word in given)


def _lengths(lengths: pa.Array, column: MySQLColumn, unit: str) -> Iterator[tuple[pa.Array, str]]:
    if column.kind == "binary":
        yield pc.not_equal(lengths, column.length), f"{column.type} pads values shorter than {column.length} bytes"
        return
    most = {**_TEXTS, **_BLOBS}.get(column.kind, column.length)
    yield pc.greater(lengths, min(most, 2**31 - 1)), f"{column.type} holds {most} {unit}"


def _outside(array: pa.Array, low: int, high: int) -> pa.Array:
    kind = array.type
    return pc.or_(pc.less(array, pa.scalar(low, kind)), pc.greater(array, pa.scalar(high, kind)))


def _why_not(kind: pa.DataType, column: MySQLColumn) -> str | None:
    if pa.types.is_null(kind):
        return None
    if column.kind in ("float", "double") and "(" in column.type:
        return "the server rounds to the digits of the column"
    if not any(column.kind in rule.into for rule in _RULES):
        return (
            "no type of Spark has its values; change the column to a string or binary type, or leave it out of the rows"
            " and let a generated column or a trigger of the table fill it from another column"
        )
    rule = _rule(kind)
    if rule is not None:
        return None if column.kind in rule.into else rule.otherwise
    if not pa.types.is_nested(kind):
        return "no column type preserves its values; cast it to a string"
    if column.kind not in _JSON:
        return "write it into a column of type json, or as text with to_json()"
    try:
        check_json_type(kind, column.name)
    except ConfigurationError as error:
        return str(error)
    return None


def _rule(kind: pa.DataType) -> _Rule | None:
    return next((rule for rule in _RULES if rule.matches(kind)), None)


def _is_timestamp(kind: pa.DataType) -> bool:
    # Spark has microseconds, and the server would truncate nanoseconds.
    return bool(pa.types.is_timestamp(kind) and kind.unit != "ns")
