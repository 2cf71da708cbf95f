"""The tables of a connector, as the schemas of their events have them: `captured_tables`.

Sources: Kafka Connect's `JsonConverter` (`schema` and `payload`); Debezium's documentation, "Data type mappings" of the
connectors for PostgreSQL and MySQL, and `column.propagate.source.type`, which puts digits of decimals into a schema.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from outfall.errors import ConfigurationError
from outfall.values import require_columns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType, StructType

    from outfall.spark.debezium.values import Unit

_CONNECT = "org.apache.kafka.connect.data."
_TIME = "io.debezium.time."
_DATES = (f"{_CONNECT}Date", f"{_TIME}Date", f"{_TIME}IsoDate")
_UNITS: Mapping[str, Unit] = {
    f"{_CONNECT}Timestamp": "millis",
    f"{_TIME}Timestamp": "millis",
    f"{_TIME}MicroTimestamp": "micros",
    f"{_TIME}NanoTimestamp": "nanos",
}
_DECIMALS = ("NUMERIC", "DECIMAL", "DECIMAL UNSIGNED")
_PLAIN = re.compile("[a-z_][a-z0-9_]*")
_MOST_DIGITS = 38
_MONEY = 19, 2
"""Digits of PostgreSQL's `money`, and those of them behind the point."""


@dataclass(frozen=True)
class CapturedTable:
    """A table, as the newest schema of its events has it."""

    columns: StructType
    """Its columns with Spark's types."""
    key: tuple[str, ...]
    """The columns of its primary key, or those of `message.key.columns`."""
    times: Mapping[str, Unit] = field(default_factory=dict)
    """The units of timestamps that are numbers, by column."""


def captured_tables(records: DataFrame, *, quote: Literal['"', "`", ""] = '"') -> dict[str, CapturedTable]:
    """Return the tables of the change events in records, by name: with schema, in MySQL with database.

    Called where a query is defined. It reads the records once, which takes as long as they are many. A table without
    any event is not found. `changes` takes the result as its `columns`, and the options `table_keys` and
    `table_columns` of sinks take what it has of each table.

    Args:
        records: Records of the topics in a batch, not a stream, as Spark's Kafka source has them: `key`, `value`,
            `topic`, `partition` and `offset`. Their values are whole events in JSON with schemas, of a converter with
            `schemas.enable=true`. For exact types of decimals, `column.propagate.source.type` of the connector must be
            `.*`, if its `decimal.handling.mode` is `string`; without, such columns are strings.
        quote: The quote of the sink's names, for those of more than lower-case letters, digits and `_`: `"` of
            `PostgresSink`, a backtick of `MySQLSink`, and nothing of sinks that take names as they are, such as
            `DeltaSink`.

    Raises:
        ConfigurationError: The records are a stream, lack a column, or have no event with a schema; or an event has no
            key.
    """
    from pyspark.sql import functions

    require_columns(records.columns, {name: name for name in ("key", "value", "offset")})
    if records.isStreaming:
        raise ConfigurationError("the records are a stream", do="read them with spark.read, up to the newest offsets")

    def of(*paths: str) -> str:
        parts = [f"get_json_object(value, '$.{path}')" for path in paths]
        return f"coalesce({', '.join(parts)}, NULL)"

    events = (
        records.where("value IS NOT NULL")
        .selectExpr("cast(key AS string) AS key", "cast(value AS string) AS value", "offset")
        .selectExpr(
            "key",
            "value",
            f"struct(cast({of('payload.ts_ms')} AS bigint) AS at, offset) AS place",
            f"{of('payload.op', 'op')} AS op",
            f"{of('payload.source.schema', 'payload.source.db', 'source.schema', 'source.db')} AS schema",
            f"{of('payload.source.table', 'source.table')} AS name",
        )
        .where("op IN ('c', 'r', 'u', 'd')")
    )
    newest = functions.expr("max_by(struct(key, value), place)").alias("newest")
    found = events.groupBy("schema", "name").agg(newest).orderBy("schema", "name").collect()
    if not found:
        raise ConfigurationError(
            "the records have no change events", do="read the topics of the tables, from the earliest offsets"
        )
    names = [f"{_name(row.schema, quote)}.{_name(row.name, quote)}" for row in found]
    return {name: _table(name, *row.newest) for name, row in zip(names, found, strict=True)}


def _name(part: str, quote: str) -> str:
    return part if not quote or _PLAIN.fullmatch(part) else f"{quote}{part.replace(quote, 2 * quote)}{quote}"


def _table(name: str, key: str | None, value: str) -> CapturedTable:
    from pyspark.sql.types import StructField, StructType

    if key is None:
        raise ConfigurationError(
            f"the events of the table {name} have no key",
            do="give the table a primary key, set the connector's message.key.columns, or leave out its topic",
        )
    fields = list(_fields_of_row(name, json.loads(value)))
    names = json.loads(key)
    return CapturedTable(
        StructType([StructField(each["field"], _kind(each)) for each in fields]),
        tuple(names.get("payload", names) if "schema" in names else names),
        {each["field"]: unit for each in fields if (unit := _unit(each)) is not None},
    )


def _fields_of_row(name: str, event: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the schemas of the fields that a row has after a change."""
    schema = event.get("schema") or {}
    for each in schema.get("fields", ()):
        if each["field"] == "after":
            yield from each["fields"]
            return
    raise ConfigurationError(
        f"the events of the table {name} have no schema",
        do="set the connector's value.converter.schemas.enable to true, and let it write an event of the table; or name"
        " the columns",
    )


def _kind(schema: Mapping[str, Any]) -> DataType:
    """Return the type that a value with a schema becomes, as the recipe for change data has it."""
    from pyspark.sql import types

    name = schema.get("name")
    if name in _DATES:
        return types.DateType()
    if name in _UNITS or name == f"{_TIME}IsoTimestamp":
        return types.TimestampNTZType()
    if name == f"{_TIME}ZonedTimestamp":
        return types.TimestampType()
    if (digits := _digits(schema)) is not None:
        return types.DecimalType(*digits)
    if schema["type"] == "struct":
        return types.StructType([types.StructField(each["field"], _kind(each)) for each in schema["fields"]])
    if schema["type"] == "array":
        return types.ArrayType(_kind(schema["items"]))
    if schema["type"] == "map":
        return types.MapType(_kind(schema["keys"]), _kind(schema["values"]))
    simple: dict[str, DataType] = {
        "boolean": types.BooleanType(), "int8": types.ByteType(), "int16": types.ShortType(),
        "int32": types.IntegerType(), "int64": types.LongType(), "float": types.FloatType(),
        "double": types.DoubleType(), "bytes": types.BinaryType(),
    }  # fmt: skip
    return simple.get(schema["type"], types.StringType())


def _unit(schema: Mapping[str, Any]) -> Unit | None:
    """Return the unit of timestamps in a value."""
    parts = [schema[part] for part in ("items", "values") if part in schema]
    return _UNITS.get(schema.get("name", "")) or next((unit for part in parts if (unit := _unit(part))), None)


def _digits(schema: Mapping[str, Any]) -> tuple[int, int] | None:
    """Return the digits of a decimal, and those behind the point; `None` for other types, and texts of more digits."""
    given = schema.get("parameters") or {}
    if schema.get("name") == f"{_CONNECT}Decimal":
        digits, scale = int(given.get("connect.decimal.precision", _MOST_DIGITS)), int(given["scale"])
        if not 0 <= scale <= digits <= _MOST_DIGITS:
            raise ConfigurationError(
                f"the column {schema.get('field')} has {digits} digits, {scale} of them behind the point",
                why=f"Spark's decimals have at most {_MOST_DIGITS}",
                do="set the connector's decimal.handling.mode to string",
            )
    elif schema["type"] == "string" and schema.get("name") is None:
        source = "__debezium.source.column.{}".format
        kind = given.get(source("type"), "").upper()
        digits, scale = int(given.get(source("length"), 0)), int(given.get(source("scale"), 0))
        if kind == "MONEY":
            return _MONEY
        # A domain has a name of its own, and texts have no digits behind a point.
        if kind not in _DECIMALS and not scale:
            return None
    else:
        return None
    return (digits, scale) if 0 < digits <= _MOST_DIGITS and 0 <= scale <= digits else None
