"""Which Arrow types go into which columns."""

from __future__ import annotations

import re

import pyarrow as pa
import pytest

from outfall.errors import ConfigurationError
from outfall.postgres.catalogue import types
from outfall.postgres.catalogue.types import new_column_type, why_not
from tests.unit.support.postgres_columns import column

STRUCT = pa.struct([("a", pa.int32())])
VARIANT = pa.struct(
    [
        pa.field("value", pa.binary(), False, metadata={"variant": "true"}),
        pa.field("metadata", pa.binary(), False, metadata={"variant": "true"}),
    ]
)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (pa.bool_(), "boolean"),
        (pa.int8(), "smallint"),
        (pa.int16(), "smallint"),
        (pa.int32(), "integer"),
        (pa.int64(), "bigint"),
        (pa.float32(), "real"),
        (pa.float64(), "double precision"),
        (pa.decimal128(38, 18), "numeric(38,18)"),
        (pa.string(), "text"),
        (pa.large_string(), "text"),
        (pa.binary(), "bytea"),
        (pa.date32(), "date"),
        (pa.timestamp("us", "Europe/Berlin"), "timestamp with time zone"),
        (pa.timestamp("us"), "timestamp without time zone"),
        (pa.time64("ns"), "time without time zone"),
        (pa.list_(pa.time64("ns")), "time without time zone[]"),
        (pa.duration("us"), "interval"),
        (pa.null(), "text"),
        (pa.list_(pa.decimal128(5, 2)), "numeric(5,2)[]"),
        (pa.list_(pa.string()), "text[]"),
        (pa.list_(pa.list_(pa.int32())), "jsonb"),
        (pa.list_(STRUCT), "jsonb"),
        (STRUCT, "jsonb"),
        (pa.map_(pa.string(), STRUCT), "jsonb"),
    ],
    ids=str,
)
def test_new_columns(kind: pa.DataType, expected: str) -> None:
    assert new_column_type(kind, "c") == expected


@pytest.mark.parametrize(
    "kind",
    [
        pa.time32("ms"),
        pa.timestamp("ns"),
        pa.duration("ns"),
        pa.month_day_nano_interval(),
        pa.uint64(),
        pa.struct([("t", pa.time64("ns"))]),
        VARIANT,
        pa.map_(pa.int32(), pa.string()),
        pa.struct([("t", pa.duration("us"))]),
    ],
    ids=lambda kind: str(kind)[:40],
)
def test_what_no_column_carries_is_refused_by_name(kind: pa.DataType) -> None:
    with pytest.raises(ConfigurationError, match=r"'odd.*What to do"):
        new_column_type(kind, "odd")
    reason = why_not(kind, column("jsonb"))
    assert reason is not None
    assert "jsonb" in reason


@pytest.mark.parametrize(
    ("kind", "type", "way_out"),
    [
        (pa.int64(), "text", "cast it"),
        (pa.int64(), "float8", "may lose digits"),
        (pa.int32(), "float4", "may lose digits"),
        (pa.float64(), "float4", "may lose digits"),
        (pa.decimal128(5, 2), "float8", "double"),
        (pa.string(), "bytea", "binary"),
        (pa.binary(), "text", "decode"),
        (pa.date32(), "timestamp", "cast it"),
        (pa.time64("ns"), "timetz", "cast it"),
        (pa.time64("ns"), "text", "cast it"),
        (pa.timestamp("us", "UTC"), "timestamp", "timestamp_ntz"),
        (pa.timestamp("us"), "timestamptz", "timestamp"),
        (pa.list_(pa.int32()), "int4", "jsonb"),
        (pa.list_(pa.int32()), "text[]", "cast it"),
        (pa.list_(STRUCT), "jsonb[]", "jsonb"),
        (STRUCT, "text", r"to_json\(\)"),
    ],
    ids=str,
)
def test_what_does_not_fit_is_told_with_a_way_out(kind: pa.DataType, type: str, way_out: str) -> None:
    assert re.search(rf"cannot be stored in {re.escape(type)}: .*{way_out}", why_not(kind, column(type)) or "fits")


def test_an_element_that_fits_makes_its_list_fit() -> None:
    assert why_not(pa.list_(pa.int32()), column("int8[]")) is None
    assert why_not(pa.list_(pa.int32()), column("json")) is None
    assert why_not(pa.list_(pa.null()), column("uuid[]")) is None


SPARK = {
    "boolean": [pa.bool_()],
    "byte, short": [pa.int8(), pa.int16()],
    "int": [pa.int32()],
    "long": [pa.int64()],
    "float": [pa.float32()],
    "double": [pa.float64()],
    "decimal(p,s)": [pa.decimal128(10, 2)],
    "string": [pa.string()],
    "binary": [pa.binary()],
    "date": [pa.date32()],
    "timestamp": [pa.timestamp("us", "UTC")],
    "timestamp_ntz": [pa.timestamp("us")],
    "time": [pa.time64("ns"), pa.time64("us")],
    "interval day to second": [pa.duration("us")],
    "void": [pa.null()],
    "array of one of these": [pa.list_(pa.int32())],
    "struct, map, array of these or of arrays": [
        STRUCT,
        pa.map_(pa.string(), pa.int32()),
        pa.list_(STRUCT),
        pa.list_(pa.list_(pa.int32())),
    ],
}
CATALOGUE = {
    "boolean": "bool",
    "smallint": "int2",
    "integer": "int4",
    "bigint": "int8",
    "numeric": "numeric",
    "real": "float4",
    "double precision": "float8",
    "text": "text",
    "bytea": "bytea",
    "date": "date",
    "timestamp with time zone": "timestamptz",
    "timestamp without time zone": "timestamp",
    "time without time zone": "time",
    "interval": "interval",
    "json": "json",
    "jsonb": "jsonb",
    "uuid": "uuid",
    "an array of the element type": "int4[]",
}


def test_the_table_of_types_is_true() -> None:
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in (types.__doc__ or "").splitlines()
        if line.startswith("| ")
    ][2:]
    assert [row[0] for row in rows] == list(SPARK)
    for name, new, into in rows:
        for kind in SPARK[name]:
            if name != "array of one of these":
                assert new_column_type(kind, "c") == new.replace("p,s", "10,2")
            fits = {text for text, type in CATALOGUE.items() if why_not(kind, column(type)) is None}
            if into.startswith("any"):
                assert set(CATALOGUE) - fits == ({"bytea"} if "but bytea" in into else set())
            else:
                assert fits == set(into.split(", "))
