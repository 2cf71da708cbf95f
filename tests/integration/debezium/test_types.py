"""Each type of PostgreSQL and MySQL, as a real Debezium sends it, becomes a column with the same value.

The events were recorded by `python -m tests.peers.support.debezium_events` (Debezium 3.6.1, PostgreSQL 18, MySQL 9.7).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql import SparkSession

from outfall.errors import ConfigurationError
from outfall.spark.debezium import captured_tables, changes
from tests.integration.debezium.source_types import MYSQL, POSTGRES
from tests.integration.debezium.support import frame, recorded

DAY = date(2024, 2, 29)
WHOLE = datetime.fromisoformat("2024-02-29 10:11:12")
MILLIS, MICROS = WHOLE.replace(microsecond=123000), WHOLE.replace(microsecond=123456)
NTZ = "TIMESTAMP_NTZ"
LINE = bytes.fromhex("010200000002000000" + "00" * 16 + "000000000000f03f" * 2)
BYTES = b"\x00\xff\x10"
NINE_BITS = b"\x55\x01"
"""Debezium sends bits as bytes, the least significant one first."""
BIG = Decimal("12345678901234567890123456789.123456789")
Wanted = Mapping[str, tuple[str, Any]]
"""By column, the type in Spark and the value."""

MYSQL_COLUMNS: Wanted = {
    "yes": ("BOOLEAN", True), "i1": ("TINYINT", -128), "u1": ("SMALLINT", 255), "i2": ("SMALLINT", -32768),
    "u2": ("INT", 65535), "i3": ("INT", -8388608), "u3": ("INT", 16777215), "i4": ("INT", -2147483648),
    "u4": ("BIGINT", 4294967295), "i8": ("BIGINT", -9223372036854775808),
    "u8": ("DECIMAL(20,0)", Decimal(18446744073709551615)), "f4": ("FLOAT", 1.5), "f8": ("DOUBLE", 2.25),
    "d10": ("DECIMAL(10,2)", Decimal("-12.50")), "d38": ("DECIMAL(38,9)", BIG),
    "d65": ("STRING", "12345678901234567890123456789012345.123456789012345678901234567890"),
    "ud10": ("DECIMAL(10,2)", Decimal("12.50")), "day": ("DATE", DAY), "time0": ("STRING", "10:11:12Z"),
    "time6": ("STRING", "10:11:12.123456Z"),
    # The connector's, for a time that is none of a day.
    "time_long": ("STRING", None),
    "dt0": (NTZ, WHOLE), "dt3": (NTZ, MILLIS), "dt6": (NTZ, MICROS), "ts0": ("TIMESTAMP", WHOLE),
    "ts6": ("TIMESTAMP", MICROS), "year4": ("INT", 2024), "char3": ("STRING", "ab"), "varchar9": ("STRING", "Oslo"),
    "txt": ("STRING", 'ä"\\ 1'), "longtxt": ("STRING", "long"), "bin3": ("BINARY", b"\x00\xff\x00"),
    "varbin": ("BINARY", BYTES), "blb": ("BINARY", BYTES), "longblb": ("BINARY", BYTES), "bit1": ("BOOLEAN", True),
    "bit9": ("BINARY", NINE_BITS), "mood": ("STRING", "happy"), "flags": ("STRING", "a,c"),
    "doc": ("STRING", '{"a": [1, 2.5]}'), "pt": ("STRUCT<x: DOUBLE, y: DOUBLE>", (1.0, 2.0)),
    "geo": ("STRUCT<wkb: BINARY, srid: INT>", (LINE, None)), "vec": ("ARRAY<FLOAT>", [1.0, 2.5, 3.0]),
}  # fmt: skip
POSTGRES_COLUMNS: Wanted = {
    "bool": ("BOOLEAN", True), "int2": ("SMALLINT", -32768), "int4": ("INT", 2147483647),
    "int8": ("BIGINT", 9223372036854775807), "oid": ("BIGINT", 4294967295), "float4": ("FLOAT", 1.5),
    "float8": ("DOUBLE", 2.25), "dec": ("DECIMAL(10,2)", Decimal("-12.50")), "dec38": ("DECIMAL(38,9)", BIG),
    "dec_any": ("STRING", "1.5"), "dec_nan": ("STRING", "NAN"), "money": ("DECIMAL(12,2)", Decimal("12.50")),
    "domain": ("DECIMAL(10,2)", Decimal("3.25")), "day": ("DATE", DAY), "time6": ("STRING", "10:11:12.123456Z"),
    "timetz": ("STRING", "08:11:12.123456Z"), "ts0": (NTZ, WHOLE), "ts3": (NTZ, MILLIS), "ts6": (NTZ, MICROS),
    "tstz": ("TIMESTAMP", MICROS.replace(hour=8)), "span": ("STRING", "P0Y0M1DT2H3M4.5S"), "char3": ("STRING", "ab "),
    "varchar9": ("STRING", "Oslo"), "txt": ("STRING", 'ä"\\ 1'), "bytea": ("BINARY", BYTES), "bit1": ("BOOLEAN", True),
    "bit9": ("BINARY", NINE_BITS), "varbit": ("BINARY", NINE_BITS), "json": ("STRING", '{"a": [1, 2.50]}'),
    "jsonb": ("STRING", '{"a": [1, 2.50]}'), "uuid": ("STRING", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
    "inet": ("STRING", "10.0.0.1/8"), "cidr": ("STRING", "10.0.0.0/8"), "mac": ("STRING", "08:00:2b:01:02:03"),
    "mac8": ("STRING", "08:00:2b:01:02:03:04:05"), "mood": ("STRING", "happy"),
    "moods": ("ARRAY<STRING>", ["happy", "sad"]), "texts": ("ARRAY<STRING>", ["a", "b c", None]),
    "ints": ("ARRAY<INT>", [1, 2]), "decs": ("ARRAY<DECIMAL(10,2)>", [Decimal("1.25"), Decimal("2.50")]),
    "days": ("ARRAY<DATE>", [DAY]), "stamps": (f"ARRAY<{NTZ}>", [MICROS]),
    "uuids": ("ARRAY<STRING>", ["a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"]),
    # The connector's, for an array of arrays.
    "matrix": ("ARRAY<STRING>", [None, None]),
    "int4range": ("STRING", "[1,5)"), "int8range": ("STRING", "[1,5)"), "numrange": ("STRING", "[1.5,5)"),
    "daterange": ("STRING", "[2024-01-01,2024-02-29)"),
    "tsrange": ("STRING", '["2024-01-01 10:00:00","2024-02-29 10:00:00")'),
    "tstzrange": ("STRING", '["2024-01-01 10:00:00+00","2024-02-29 10:00:00+00")'),
    "pt": ("STRUCT<x: DOUBLE, y: DOUBLE>", (1.0, 2.0)), "tsv": ("STRING", "'a' 'b'"),
    "hstore": ("MAP<STRING, STRING>", {"a": "1", "b": None}),
}  # fmt: skip
LEFT_OUT = {"multirange", "line", "box", "circle", "poly", "composite"}
"""Types of PostgreSQL that the connector leaves out, without a word."""
DEFAULT_MYSQL: Wanted = {
    "u8": ("DECIMAL(20,0)", Decimal(-1)), "day": ("DATE", DAY), "time6": ("BIGINT", 36672123456),
    "time_long": ("BIGINT", -3020399000000), "dt0": (NTZ, WHOLE), "dt3": (NTZ, MILLIS), "dt6": (NTZ, MICROS),
    "ts6": ("TIMESTAMP", MICROS), "blb": ("BINARY", BYTES),
}  # fmt: skip
DEFAULT_POSTGRES: Wanted = {
    "day": ("DATE", DAY), "time6": ("BIGINT", 36672123456), "ts0": (NTZ, WHOLE), "ts3": (NTZ, MILLIS),
    "ts6": (NTZ, MICROS), "tstz": ("TIMESTAMP", MICROS.replace(hour=8)), "span": ("BIGINT", 93784500000),
    "days": ("ARRAY<DATE>", [DAY]), "stamps": (f"ARRAY<{NTZ}>", [MICROS]), "bytea": ("BINARY", BYTES),
}  # fmt: skip
UNITS: dict[str, Any] = {"dt0": "millis", "ts0": "millis", "dt3": "millis", "ts3": "millis"}
MICRO_UNITS: dict[str, Any] = {"dt6": "micros", "ts6": "micros", "stamps": "micros"}
NUMBERS_MYSQL: Wanted = {
    "d10": ("DECIMAL(10,2)", Decimal("-12.50")), "day": ("DATE", DAY), "dt6": (NTZ, MILLIS), "time6": ("INT", 36672123),
}  # fmt: skip
NUMBERS_POSTGRES: Wanted = {
    "dec": ("DECIMAL(10,2)", Decimal("-12.50")), "dec_nan": ("DOUBLE", "NaN"), "ts6": (NTZ, MILLIS),
    "decs": ("ARRAY<DECIMAL(10,2)>", [Decimal("1.25"), Decimal("2.50")]), "stamps": (f"ARRAY<{NTZ}>", [MILLIS]),
}  # fmt: skip
CASES = [
    ("types_mysql_exact", MYSQL_COLUMNS, None),
    ("types_postgres_exact", POSTGRES_COLUMNS, None),
    ("types_mysql_default", DEFAULT_MYSQL, UNITS | MICRO_UNITS),
    ("types_postgres_default", DEFAULT_POSTGRES, UNITS | MICRO_UNITS),
    ("types_mysql_numbers", NUMBERS_MYSQL, "millis"),
    ("types_postgres_numbers", NUMBERS_POSTGRES, "millis"),
]


CAPTURED_MYSQL: dict[str, str] = {
    "yes": "smallint", "i1": "smallint", "i3": "int", "vec": "array<float>", "geo": "struct<wkb:binary,srid:int>",
    "pt": "struct<x:double,y:double,wkb:binary,srid:int>", "f4_short": "float", "poly": "struct<wkb:binary,srid:int>",
}  # fmt: skip
CAPTURED_POSTGRES: dict[str, str] = {
    "money": "decimal(19,2)", "decs": "array<string>", "matrix": "array<int>", "float8_nan": "double",
    "pt": "struct<x:double,y:double,wkb:binary,srid:int>", "hstore": "string",
}  # fmt: skip
"""Where the schema of the events has another type than the test above names."""


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "table", "wanted", "other"),
    [
        ("types_mysql_schemas", "shop.types", MYSQL_COLUMNS, CAPTURED_MYSQL),
        ("types_postgres_schemas", "public.types", POSTGRES_COLUMNS, CAPTURED_POSTGRES),
    ],
)
def test_tables_are_found_by_the_schemas_of_their_events(
    spark: SparkSession, name: str, table: str, wanted: Wanted, other: Mapping[str, str]
) -> None:
    records = frame(spark, recorded(name))
    tables = captured_tables(records)
    columns = {column: kind.lower().replace(" ", "").replace(": ", ":") for column, (kind, _) in wanted.items()}
    assert list(tables) == [table]
    assert {field.name: field.dataType.simpleString() for field in tables[table].columns} == {
        "id": "bigint", **columns, **other,
    }  # fmt: skip
    assert (tables[table].key, tables[table].times) == (("id",), {})
    first, second = changes(records, tables, order=1).orderBy("seq").collect()
    for column, (kind, value) in wanted.items():
        if column not in other and kind != "TIMESTAMP":
            assert first[column] == value, column
    assert [second[column] for column in wanted] == [None] * len(wanted)


def with_key(key: str | None) -> list[dict[str, Any]]:
    return [record | {"key": key} for record in recorded("types_mysql_schemas")]


def with_digits(number: int) -> list[dict[str, Any]]:
    """Return an event whose decimals are not strings."""
    record = recorded("types_mysql_schemas")[0]
    return [
        record
        | {
            "value": record["value"].replace(
                '"connect.decimal.precision":"20"', f'"connect.decimal.precision":"{number}"'
            )
        }
    ]


@pytest.mark.thorough
def test_what_has_no_tables_is_refused(spark: SparkSession) -> None:
    for given, why in (
        (recorded("types_mysql_exact"), "the events of the table shop.types have no schema"),
        ([], "the records have no change events"),
        (with_key(None), "the events of the table shop.types have no key"),
        (with_digits(65), "the column u8 has 65 digits, 0 of them behind the point.*decimal.handling.mode to string"),
    ):
        with pytest.raises(ConfigurationError, match=why):
            captured_tables(frame(spark, given))
    stream = spark.readStream.format("rate").load().selectExpr("'' AS key", "'' AS value", "value AS offset")
    with pytest.raises(ConfigurationError, match="the records are a stream"):
        captured_tables(stream)


@pytest.mark.thorough
def test_units_of_numbers_are_found_by_the_schemas_of_events(spark: SparkSession) -> None:
    records = frame(spark, recorded("schemas"))
    tables = captured_tables(records)
    assert [table.times for table in tables.values()] == [{"made": "micros", "made3": "millis"}]
    renamed = [
        each | {"value": each["value"].replace('"table":"orders"', '"table":"Order \\"s"')}
        for each in recorded("schemas")
    ]
    names: dict[Any, str] = {'"': 'public."Order ""s"', "`": 'public.`Order "s`', "": 'public.Order "s'}
    for quote, name in names.items():
        assert list(captured_tables(frame(spark, renamed), quote=quote)) == [name]
    # Its decimals are no strings.
    (row, *_) = changes(records, tables, order=1, on_error="null").orderBy("seq").collect()
    assert (str(row.made), str(row.made3)) == ("2024-02-29 10:11:12.123456", "2024-02-29 10:11:12.123000")


def test_each_type_of_the_databases_was_recorded_and_is_compared() -> None:
    assert set(MYSQL_COLUMNS) | {"f4_short", "poly"} == set(MYSQL)
    assert set(POSTGRES_COLUMNS) | LEFT_OUT | {"float8_nan"} == set(POSTGRES)
    (row, _) = recorded("types_postgres_exact")
    assert set(json.loads(row["value"])["after"]) == {"id", *POSTGRES} - LEFT_OUT


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "wanted", "times"), CASES, ids=[name for name, *_ in CASES])
def test_a_value_of_each_type_becomes_the_same_value_in_its_column(
    spark: SparkSession, name: str, wanted: Wanted, times: Any
) -> None:
    columns = ", ".join(f"`{column}` {kind}" for column, (kind, _) in wanted.items())
    if isinstance(times, dict):
        times = {column: unit for column, unit in times.items() if column in wanted}
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    try:
        rows = changes(frame(spark, recorded(name)), f"id BIGINT, {columns}", order=1, times=times)
        first, second = rows.orderBy("seq").collect()
    finally:
        spark.conf.set("spark.sql.session.timeZone", before or "UTC")
    for column, (kind, value) in wanted.items():
        found = first[column]
        if kind == "TIMESTAMP":
            found = found.astimezone(UTC).replace(tzinfo=None)
        assert str(found).lower() == "nan" if value == "NaN" else found == value, column
        assert second[column] is None, column
