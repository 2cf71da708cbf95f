"""A value of an event as a column of the table, in SQL, and never one that only looks right.

Events in JSON have each value as text here, others with the types of their schema. What is no value of the column's
type is NULL, which the caller tells from a NULL of the source. A number in place of a timestamp has a unit that only
the connector's settings say.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

from outfall.errors import ConfigurationError
from outfall.spark.debezium.events import literal, quoted
from outfall.unavailable import UNAVAILABLE, UNAVAILABLE_NUMBERS, UNAVAILABLE_UUID

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, DecimalType, StructType

Unit = Literal["millis", "micros", "nanos"]
Times = Unit | Mapping[str, Unit] | None

_MICROS = {"millis": "{} * 1000", "micros": "{}", "nanos": "({0} - pmod({0}, 1000)) div 1000"}
"""Exact, unlike a division, of which Spark makes a double."""
_PER_SECOND = {"millis": 10**3, "micros": 10**6, "nanos": 10**9}
_SECONDS = -62135596800, 253402300800
_DAYS = -719162, 2932896
"""The years 1 to 9999. Debezium has numbers beyond them for PostgreSQL's infinity."""
_MOST = 2**63 - 1

_IS_DATE = "^[0-9]{4}-[0-9]{2}-[0-9]{2}"
"""A cast also takes the time of a day, which gets the date of today, and a part of a date."""
_TIME = "[T ][0-9]{2}:[0-9]{2}:[0-9]{2}([.][0-9]+)?"
_ZONE = "(Z|[+-][0-9]{2}(:?[0-9]{2})?)"


def unit_of(times: Times, name: str) -> Unit | None:
    """Return the unit of numbers in place of the timestamps of a column."""
    return times.get(name) if isinstance(times, Mapping) else times


def check_times(times: Times, columns: StructType) -> None:
    """Raise `ConfigurationError` if a unit is unknown, or a name is that of no column."""
    named = times if isinstance(times, Mapping) else {} if times is None else {columns.names[0]: times}
    for name, unit in named.items():
        if unit not in _MICROS:
            raise ConfigurationError(f"times is {unit!r}", do=f"pass one of {', '.join(_MICROS)}")
        if name not in columns.names:
            raise ConfigurationError(f"times names {name!r}, which is no column", do="correct the name")


def check_types(columns: StructType) -> None:
    """Raise `ConfigurationError` if a column, or a part of one, has a type that no value of an event becomes."""
    from pyspark.sql import types

    readable = (
        types.NumericType, types.BooleanType, types.StringType, types.BinaryType, types.DateType,
        types.TimestampType, types.TimestampNTZType,
    )  # fmt: skip

    def check(name: str, kind: DataType) -> None:
        if isinstance(kind, types.StructType):
            for field in kind:
                check(name, field.dataType)
        elif isinstance(kind, types.MapType):
            check(name, kind.keyType)
            check(name, kind.valueType)
        elif isinstance(kind, types.ArrayType):
            check(name, kind.elementType)
        elif not isinstance(kind, readable):
            raise ConfigurationError(
                f"the column {name} has the type {kind.simpleString()}, which no value of an event becomes",
                do="name it STRING in columns, or BIGINT for a number of milliseconds or microseconds, and cast it",
            )

    for field in columns:
        check(field.name, field.dataType)


def converted(value: str, given: DataType, wanted: DataType, unit: Unit | None) -> str:
    """Return a value as the type of its column; NULL if it is none of this type."""
    from pyspark.sql import types

    kind, text = wanted.simpleString(), isinstance(given, types.StringType)
    if isinstance(wanted, types.TimestampType | types.TimestampNTZType):
        return _timestamp(value, given, kind, unit)
    if given == wanted or given.simpleString() == kind:
        return value
    if isinstance(wanted, types.DateType):
        return _date(value, given)
    if not text:
        numbers = types.NumericType | types.BooleanType
        return _same_number(value, given, kind) if isinstance(given, numbers) else f"try_cast({value} AS {kind})"
    if isinstance(wanted, types.BinaryType):
        return f"try_to_binary({value}, 'base64')"
    if isinstance(wanted, types.DecimalType):
        return _decimal(value, wanted)
    if isinstance(wanted, types.FloatType | types.DoubleType):
        made = f"try_cast({value} AS {kind})"
        return f"CASE WHEN {value} RLIKE '[0-9]' AND abs({made}) = cast('Infinity' AS {kind}) THEN NULL ELSE {made} END"
    if isinstance(wanted, types.ArrayType | types.StructType | types.MapType):
        return _nested(value, wanted, unit)
    return f"try_cast({value} AS {kind})"


def is_unavailable(value: str, kind: DataType) -> str | None:
    """Return whether a value of a column is Debezium's placeholder for one; `None` if its type can hold none."""
    from pyspark.sql import types

    text, data = literal(UNAVAILABLE), f"cast({literal(UNAVAILABLE)} AS binary)"
    if isinstance(kind, types.StringType):
        return f"{value} = {text}"
    if isinstance(kind, types.BinaryType):
        return f"{value} = {data}"
    if not isinstance(kind, types.ArrayType):
        return None
    if isinstance(kind.elementType, types.StringType):
        return f"{value} IN (array({text}), array({literal(UNAVAILABLE_UUID)}))"
    if isinstance(kind.elementType, types.BinaryType):
        return f"{value} = array({data})"
    if isinstance(kind.elementType, types.IntegralType):
        return f"{value} = cast(array({', '.join(map(str, UNAVAILABLE_NUMBERS))}) AS {kind.simpleString()})"
    return None


def why_not(name: str, wanted: DataType) -> str:
    """Return why a value could not be converted, with the remedy."""
    from pyspark.sql import types

    what = f"the value of {name} is not a {wanted.simpleString()}: "
    if isinstance(wanted, types.DecimalType):
        return f"{what}set the connector's decimal.handling.mode to string, and in columns the digits of the source"
    if isinstance(wanted, types.TimestampType | types.TimestampNTZType):
        return f"{what}set the connector's time.precision.mode to isostring, or name the unit of a number with times"
    if isinstance(wanted, types.BinaryType):
        return f"{what}set the connector's binary.handling.mode to bytes or base64"
    return f"{what}correct its type in columns"


def _timestamp(value: str, given: DataType, kind: str, unit: Unit | None) -> str:
    from pyspark.sql import types

    if given.simpleString() == kind:
        return value
    # Debezium's times without a zone are in UTC, and a cast would use the zone of the session.
    if isinstance(given, types.TimestampType):
        return _since_epoch(f"unix_micros({value})", "micros", kind)
    if isinstance(given, types.TimestampNTZType):
        # As text, since Spark's functions would go through a time that the zone of the session may skip.
        return f"try_cast(concat(cast({value} AS string), 'Z') AS timestamp)"
    number = f"try_cast({value} AS bigint)"
    since = f"cast(NULL AS {kind})" if unit is None else _since_epoch(number, unit, kind)
    if not isinstance(given, types.StringType):
        return since if isinstance(given, types.IntegralType) else f"cast(NULL AS {kind})"
    # A time without a zone would depend on the session.
    form = f"{_IS_DATE}{_TIME}{_ZONE}{'' if kind == 'timestamp' else '?'}$"
    return (
        f"CASE WHEN {_is_number(value)} THEN {since} WHEN {value} RLIKE '{form}' THEN try_cast({value} AS {kind}) END"
    )


def _since_epoch(number: str, unit: Unit, kind: str) -> str:
    per_second = _PER_SECOND[unit]
    least, end = (max(-_MOST, min(seconds * per_second, _MOST)) for seconds in _SECONDS)
    micros = _MICROS[unit].format(number)
    if kind == "timestamp":
        made = f"timestamp_micros({micros})"
    else:
        seconds = f"cast(cast({micros} AS decimal(20,0)) / cast(1000000 AS decimal(7,0)) AS decimal(18,6))"
        made = f"timestamp_ntz'1970-01-01 00:00:00' + make_dt_interval(0, 0, 0, {seconds})"
    return f"CASE WHEN {number} >= {least} AND {number} < {end} THEN {made} END"


def _date(value: str, given: DataType) -> str:
    from pyspark.sql import types

    number = f"try_cast({value} AS int)"
    days = f"CASE WHEN {number} BETWEEN {_DAYS[0]} AND {_DAYS[1]} THEN date_add(date'1970-01-01', {number}) END"
    if not isinstance(given, types.StringType):
        return days if isinstance(given, types.IntegralType) else "cast(NULL AS date)"
    # Debezium writes dates in ISO's form with a zone.
    in_iso = f"WHEN {value} RLIKE '{_IS_DATE}Z?$' THEN try_cast(rtrim('Z', {value}) AS date)"
    return f"CASE WHEN {_is_number(value)} THEN {days} {in_iso} END"


def _same_number(value: str, given: DataType, kind: str) -> str:
    """Return a number in another type; NULL if that type cannot hold it."""
    made = f"try_cast({value} AS {kind})"
    return f"CASE WHEN try_cast({made} AS {given.simpleString()}) = {value} THEN {made} END"


def _decimal(value: str, wanted: DecimalType) -> str:
    """Return a decimal; NULL if the text has more digits behind the point than the column."""
    made = f"try_cast({value} AS {wanted.simpleString()})"
    plain = f"{value} RLIKE '^[-+]?[0-9]*([.][0-9]{{0,{wanted.scale}}}0*)?$'"
    # Doubles have at most 17 digits.
    double = f"{value} RLIKE '^[-+]?[0-9.]{{1,18}}[eE]' AND cast({made} AS double) = try_cast({value} AS double)"
    return f"CASE WHEN {plain} OR ({double}) THEN {made} END"


def _nested(value: str, wanted: DataType, unit: Unit | None, depth: int = 0) -> str:
    """Return JSON as an array, struct or map, whose parts follow the rules for columns; NULL if one of them is none."""
    from pyspark.sql import types

    read, part, text = f"read{depth}", f"part{depth}", types.StringType()
    whole = f"{read}.whole"

    def made(value: str, wanted: DataType) -> str:
        if isinstance(wanted, types.ArrayType | types.StructType | types.MapType):
            return _nested(value, wanted, unit, depth + 1)
        return converted(value, text, wanted, unit)

    def each(parts: str, wanted: DataType) -> tuple[str, str]:
        of_one = made(part, wanted)
        wrong = f"exists({parts}, {part} -> {part} IS NOT NULL AND {of_one} IS NULL)"
        return f"transform({parts}, {part} -> {of_one})", f"NOT {wrong}"

    if isinstance(wanted, types.ArrayType):
        form = "ARRAY<STRING>"
        result, right = each(whole, wanted.elementType)
    elif isinstance(wanted, types.MapType):
        form = "MAP<STRING, STRING>"
        keys, keys_right = each(f"map_keys({whole})", wanted.keyType)
        values, values_right = each(f"map_values({whole})", wanted.valueType)
        result, right = f"map_from_arrays({keys}, {values})", f"{keys_right} AND {values_right}"
    elif isinstance(wanted, types.StructType):
        form = f"STRUCT<{', '.join(f'{quoted(name)}: STRING' for name in wanted.names)}>"
        fields = {field.name: (f"{whole}.{quoted(field.name)}", field.dataType) for field in wanted}
        of = {name: made(*field) for name, field in fields.items()}
        result = f"named_struct({', '.join(f'{literal(name)}, {value}' for name, value in of.items())})"
        right = " AND ".join(f"({fields[name][0]} IS NULL OR {of[name]} IS NOT NULL)" for name in of)
    # Inside of a struct, since only a struct tells that its text is damaged.
    schema = literal(f"STRUCT<whole: {form}, damaged: STRING>")
    options = "map('mode', 'PERMISSIVE', 'columnNameOfCorruptRecord', 'damaged')"
    parsed = f"from_json(concat('{{\"whole\":', {value}, '}}'), {schema}, {options})"
    result = f"CASE WHEN {whole} IS NOT NULL AND {read}.damaged IS NULL AND {right} THEN {result} END"
    return f"cast(transform(array({parsed}), {read} -> {result})[0] AS {wanted.simpleString()})"


def _is_number(value: str) -> str:
    return f"{value} RLIKE '^-?[0-9]+$'"
