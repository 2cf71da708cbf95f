"""A value of an event as a column of the table, in SQL, and never one that only looks right.

Events in JSON have each value as text here, others with the types of their schema. What is no value of the column's
type is NULL, which the caller tells from a NULL of the source. A number in place of a timestamp has a unit that only
the connector's settings say.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

from outfall.errors import ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, DecimalType, StructType

Unit = Literal["millis", "micros", "nanos"]
Times = Unit | Mapping[str, Unit] | None

_MICROS = {"millis": "{} * 1000", "micros": "{}", "nanos": "floor({} / 1000)"}
_DIGITS = 38


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


def converted(value: str, given: DataType, wanted: DataType, unit: Unit | None) -> str:
    """Return a value as the type of its column; NULL if it is none of this type."""
    from pyspark.sql import types

    kind, text = wanted.simpleString(), isinstance(given, types.StringType)
    if isinstance(wanted, types.TimestampType | types.TimestampNTZType):
        return _timestamp(value, given, kind, unit)
    if given == wanted:
        return value
    if isinstance(wanted, types.DateType):
        days = f"date_add(date'1970-01-01', try_cast({value} AS int))"
        if not text:
            return days
        # Debezium writes dates in ISO's form with a zone.
        return f"CASE WHEN {_is_number(value)} THEN {days} ELSE try_cast(rtrim('Z', {value}) AS date) END"
    if isinstance(wanted, types.BinaryType) and text:
        return f"try_to_binary({value}, 'base64')"
    if isinstance(wanted, types.DecimalType):
        return _decimal(value, wanted)
    if isinstance(wanted, types.ArrayType | types.StructType | types.MapType) and text:
        schema = kind.replace("'", "''")
        return f"from_json({value}, '{schema}', map('mode', 'FAILFAST'))"
    return f"try_cast({value} AS {kind})"


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
        return _since_epoch(f"unix_micros({value})", kind)
    if isinstance(given, types.TimestampNTZType):
        return f"to_utc_timestamp({value}, current_timezone())"
    number = f"try_cast({value} AS bigint)"
    since = f"cast(NULL AS {kind})" if unit is None else _since_epoch(_MICROS[unit].format(number), kind)
    if not isinstance(given, types.StringType):
        return since
    return f"CASE WHEN {_is_number(value)} THEN {since} ELSE try_cast({value} AS {kind}) END"


def _since_epoch(micros: str, kind: str) -> str:
    if kind == "timestamp":
        return f"timestamp_micros(cast({micros} AS bigint))"
    seconds = f"cast(cast({micros} AS decimal(20,0)) / cast(1000000 AS decimal(7,0)) AS decimal(18,6))"
    return f"timestamp_ntz'1970-01-01 00:00:00' + make_dt_interval(0, 0, 0, {seconds})"


def _decimal(value: str, wanted: DecimalType) -> str:
    """Return a decimal; NULL if the value has more digits behind the point than the column."""
    kind = wanted.simpleString()
    exact = f"try_cast({value} AS decimal({_DIGITS},{_DIGITS - wanted.precision + wanted.scale}))"
    return f"CASE WHEN {exact} = try_cast({value} AS {kind}) THEN try_cast({value} AS {kind}) END"


def _is_number(value: str) -> str:
    return f"{value} RLIKE '^-?[0-9]+$'"
