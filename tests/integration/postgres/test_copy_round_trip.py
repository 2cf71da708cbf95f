"""What COPY wrote, psycopg reads back: each Arrow type into each type of column, in both of COPY's formats."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from ipaddress import ip_address
from typing import Any

import pyarrow as pa
import pytest
from psycopg import sql

from outfall.errors import ValueRefusedError
from outfall.postgres.catalogue.columns import TableColumn, read_columns
from outfall.postgres.catalogue.types import why_not
from outfall.postgres.connection.database import PostgresConnection
from outfall.postgres.copy.stream import CopyEncoder
from outfall.postgres.copy.values import ValueContext, fitted
from outfall.postgres.names import TableName

DAY = 86_400_000_000
INF = float("inf")
SMALL = Decimal("-0.000000000000000001")
LARGE = Decimal("12345678901234567890.123456789012345678")
MOST = Decimal("99999999999999999999.999999999999999999")
TEXTS = ["", " a ", "a\tb\nc\rd\\", "\\N", "\\.", "Grüße 🚚", "null", '{"q"}', "'"]
SECOND = pa.timestamp("us", "Europe/Berlin")
NAIVE = pa.timestamp("us")
STRUCT = pa.struct([("a", pa.int32()), ("n", pa.struct([("deep", pa.list_(pa.string())), ("x", pa.float64())]))])
EARLIEST, LATEST = -2_440_588, 2_145_042_905


@dataclass
class Case:
    """Values of one Arrow type for one type of column.

    Args:
        kind: the Arrow type.
        column: the column's type.
        values: what Arrow is given; a NULL is added before, between and behind.
        asked: SQL over `c` that is read back.
        found: what is expected, where it is not the values themselves.
        since: the first version of the server that has such values.
    """

    kind: pa.DataType
    column: str
    values: list[Any]
    asked: str = "c"
    found: list[Any] = field(default_factory=list)
    since: int = 0

    def __str__(self) -> str:
        return f"{self.kind} into {self.column}"[:60]


def clock(*parts: int) -> datetime:
    """A time without zone."""
    return datetime(*parts)  # type: ignore[arg-type]  # noqa: DTZ001


INTEGERS = {"smallint": 15, "integer": 31, "bigint": 63}
CASES = [
    Case(pa.bool_(), "boolean", [True, False]),
    *[
        Case(kind, column, [-(2 ** min(bits, int(kind.bit_width) - 1)), 0, 2 ** min(bits, int(kind.bit_width) - 1) - 1])
        for kind in (pa.int8(), pa.int16(), pa.int32(), pa.int64())
        for column, bits in INTEGERS.items()
    ],
    Case(pa.int64(), "numeric", [-(2**63), 0, 2**63 - 1]),
    Case(pa.int64(), "numeric(4,0)", [-9999, 9999]),
    Case(pa.int32(), "numeric(4,2)", [-99, 99]),
    Case(pa.int32(), "double precision", [-(2**31), 2**31 - 1]),
    Case(pa.int16(), "real", [-(2**15), 2**15 - 1]),
    Case(
        pa.float32(),
        "real",
        [1.5, -0.0, INF, -INF, float("nan"), 3.4028234663852886e38, 1.401298464324817e-45],
        "c::double precision",
    ),
    Case(pa.float32(), "double precision", [1.5, -INF, float("nan"), 3.4028234663852886e38]),
    Case(pa.float64(), "double precision", [0.1, -0.0, INF, -INF, float("nan"), 1.7976931348623157e308, 5e-324, 1e300]),
    Case(pa.float64(), "numeric", [0.1, 1e20], found=[Decimal("0.1"), Decimal(10**20)]),
    Case(pa.float64(), "numeric", [INF, -INF, float("nan")], "c::text", ["Infinity", "-Infinity", "NaN"]),
    Case(
        pa.decimal128(38, 18),
        "numeric(38,18)",
        [LARGE, LARGE.copy_negate(), SMALL, MOST, MOST.copy_negate(), Decimal(0), Decimal(10000)],
    ),
    Case(pa.decimal128(38, 18), "numeric", [LARGE, SMALL, MOST, Decimal(1), Decimal("1000.0001")]),
    Case(pa.decimal128(38, 18), "numeric(6,2)", [Decimal("9999.99"), Decimal("-0.01")]),
    Case(pa.decimal128(38, 0), "numeric", [Decimal(10**38 - 1), Decimal(-(10**38) + 1), Decimal(0)]),
    Case(pa.decimal128(38, 38), "numeric", [Decimal("0." + "9" * 38), Decimal("-0." + "0" * 37 + "1")]),
    Case(pa.decimal128(10, 2), "numeric(1000,500)", [Decimal("12345678.91")]),
    Case(pa.decimal128(20, 0), "bigint", [Decimal(2**63 - 1), Decimal(-(2**63))]),
    Case(pa.decimal128(10, 2), "integer", [Decimal(12), Decimal(-7)]),
    *[Case(pa.string(), column, TEXTS) for column in ("text", "varchar", "varchar(9)", "plain", "citext")],
    Case(pa.large_string(), "varchar(4)", ["🚚🚚🚚🚚", ""]),
    Case(pa.string(), "char(3)", ["abc", "é"], found=["abc", "é  "]),
    Case(pa.string(), "name", ["a", "Grüße"]),
    Case(pa.string(), "mood", ["sad", 'v"ery, glad']),
    Case(pa.string(), "short", ["ab", ""]),
    Case(pa.string(), "json", ['{"a": "\\u0000"}', " [1 ]"], "c::text"),
    Case(pa.string(), "jsonb", ['{"b":1,"a":"\\\\u0000"}'], found=[{"a": "\\u0000", "b": 1}]),
    Case(
        pa.string(),
        "uuid",
        ["A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11", "{a0eebc999c0b4ef8bb6d6bb9bd380a11}", "a0ee-bc99-" * 3 + "9c0b-4ef8"],
        found=[uuid.UUID("a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11")] * 2 + [uuid.UUID("a0eebc99" * 3 + "9c0b4ef8")],
    ),
    Case(pa.string(), "inet", ["10.0.0.1", "::1"], found=[ip_address("10.0.0.1"), ip_address("::1")]),
    Case(pa.string(), "int4range", ["[1,3)"], "c::text"),
    Case(pa.string(), "integer", ["12", "-3"], found=[12, -3]),
    Case(pa.string(), "integer[]", ["{1,NULL}", "{}"], found=[[1, None], []]),
    Case(pa.string(), "time", ["12:34:56.789012"], "c::text"),
    *[
        Case(kind, "time", [time(0), time(23, 59, 59, 999999), time(12, 34, 56, 789012)])
        for kind in (pa.time64("ns"), pa.time64("us"))
    ],
    Case(pa.time64("ns"), "time(0)", [time(12, 34, 56)]),
    Case(pa.list_(pa.time64("ns")), "time[]", [[time(1), None], []]),
    Case(pa.binary(), "bytea", [b"", b"\0", bytes(range(256)), b"\\x00"]),
    Case(pa.date32(), "date", [date(1, 1, 1), date(9999, 12, 31), date(1969, 12, 31), date(2000, 1, 1)]),
    Case(
        pa.date32(),
        "date",
        [EARLIEST, LATEST, -719_163, -719_162, 2_932_896, 2_932_897, 0],
        "c::text",
        ["4714-11-24 BC", "5874897-12-31", "0001-12-31 BC", "0001-01-01", "9999-12-31", "10000-01-01", "1970-01-01"],
    ),
    Case(
        SECOND,
        "timestamp with time zone",
        [
            datetime(1, 1, 1, tzinfo=UTC),
            datetime(1969, 12, 31, 23, 59, 59, 999999, UTC),
            datetime(2026, 7, 1, tzinfo=UTC),
        ],
        "c AT TIME ZONE 'UTC'",
        [clock(1, 1, 1), clock(1969, 12, 31, 23, 59, 59, 999999), clock(2026, 7, 1)],
    ),
    *[
        Case(
            kind,
            column,
            [EARLIEST * DAY, -1, -62_135_596_800_000_001, 253_402_300_800_000_000, 2**63 - 1],
            asked,
            [
                "4714-11-24 00:00:00 BC",
                "1969-12-31 23:59:59.999999",
                "0001-12-31 23:59:59.999999 BC",
                "10000-01-01 00:00:00",
                "294247-01-10 04:00:54.775807",
            ],
        )
        for kind, column, asked in (
            (NAIVE, "timestamp", "c::text"),
            (SECOND, "timestamptz", "(c AT TIME ZONE 'UTC')::text"),
        )
    ],
    Case(pa.timestamp("s"), "timestamp", [clock(1999, 12, 31, 23, 59, 59)]),
    Case(
        pa.duration("us"),
        "interval",
        [0, -1, 90_000_000_001, -90_000_000_001, 2_147_483_647 * 3_600_000_000],
        "c::text",
        ["00:00:00", "-00:00:00.000001", "25:00:00.000001", "-25:00:00.000001", "2147483647:00:00"],
    ),
    Case(
        pa.duration("us"),
        "interval",
        [2**63 - 1, -(2**63)],
        "c::text",
        ["2562047788:00:54.775807", "-2562047788:00:54.775808"],
        since=150_000,  # older servers read no such interval, and show none
    ),
    Case(pa.duration("s"), "interval", [timedelta(days=3, seconds=1)]),
    *[Case(pa.null(), column, []) for column in ("text", "integer", "numeric", "uuid", "inet", "jsonb", "date[]")],
    Case(pa.list_(pa.int32()), "integer[]", [[1, None, -3], [], [2]]),
    Case(pa.list_(pa.int32()), "bigint[]", [[1, None], []]),
    Case(pa.list_(pa.bool_()), "boolean[]", [[True, None, False]]),
    Case(pa.list_(pa.string()), "text[]", [TEXTS, [None, "NULL", 'a"b\\', "{a,b}"]]),
    Case(pa.list_(pa.string()), "varchar(9)[]", [TEXTS, [None]]),
    Case(pa.list_(pa.string()), "uuid[]", [["a0eebc99" * 4, None]], found=[[uuid.UUID("a0eebc99" * 4), None]]),
    Case(pa.list_(pa.string()), "mood[]", [["sad", None]], "c::text[]"),
    Case(pa.list_(pa.decimal128(38, 18)), "numeric(38,18)[]", [[LARGE, None, SMALL]]),
    Case(pa.list_(pa.float64()), "double precision[]", [[0.1, INF, None]]),
    Case(pa.list_(pa.float32()), "real[]", [[0.5, -INF, None]]),
    Case(pa.list_(pa.binary()), "bytea[]", [[b"\0\\", None, b""]]),
    Case(pa.list_(pa.date32()), "date[]", [[date(1, 1, 1), None]]),
    Case(pa.list_(NAIVE), "timestamp[]", [[clock(1969, 12, 31, 23, 59, 59, 999999), None]]),
    Case(pa.list_(SECOND), "timestamptz[]", [[datetime(2026, 7, 1, 1, 2, 3, 4, UTC), None]]),
    Case(pa.list_(pa.duration("us")), "interval[]", [[timedelta(microseconds=-1), None]]),
    Case(pa.list_(pa.null()), "text[]", [[None], []]),
    *[
        Case(
            STRUCT,
            column,
            [{"a": 1, "n": {"deep": ["x", None, 'q"\\\n'], "x": float("nan")}}, {"a": None, "n": None}],
            found=[{"a": 1, "n": {"deep": ["x", None, 'q"\\\n'], "x": "NaN"}}, {"a": None, "n": None}],
        )
        for column in ("json", "jsonb")
    ],
    Case(
        pa.map_(pa.string(), pa.int64()),
        "jsonb",
        [[("k", 2**63 - 1), ("", None)], []],
        found=[{"k": 2**63 - 1, "": None}, {}],
    ),
    Case(pa.list_(pa.list_(pa.int32())), "jsonb", [[[1, None], None], []]),
    Case(pa.list_(pa.int32()), "jsonb", [[1, None], []]),
]


@pytest.fixture(scope="module")
def connection(postgres: Any) -> Iterator[PostgresConnection]:
    dsn = postgres.new_database()
    with PostgresConnection.connect(dsn, autocommit=True, prepare_threshold=None, client_encoding="UTF8") as connection:
        connection.execute("CREATE EXTENSION citext SCHEMA public")
        connection.execute("""CREATE TYPE mood AS ENUM ('sad', 'v"ery, glad')""")
        connection.execute("CREATE DOMAIN plain AS text CHECK (value <> 'never')")
        connection.execute("CREATE DOMAIN short0 AS varchar(2)")
        connection.execute("CREATE DOMAIN short AS short0 NOT NULL DEFAULT ''")
        connection.execute("ALTER DOMAIN short DROP NOT NULL")
        # Neither the session's zone nor its styles may change what is stored.
        connection.execute("SET TimeZone = 'America/New_York'")
        connection.execute("SET DateStyle = 'SQL, DMY'")
        connection.execute("SET IntervalStyle = 'sql_standard'")
        yield connection


def copy(connection: PostgresConnection, batches: list[pa.RecordBatch], *types: str) -> str:
    """Write batches into a new table with columns of these types; return the format that was used."""
    columns = ", ".join(f'"{name}" {kind}' for name, kind in zip(batches[0].schema.names, types, strict=True))
    connection.execute("DROP TABLE IF EXISTS t")
    connection.execute(f"CREATE UNLOGGED TABLE t ({columns})".encode())
    found = read_columns(connection, TableName(None, "t"))
    schema = batches[0].schema
    assert [why_not(kind, column) for kind, column in zip(schema.types, found, strict=True)] == [None] * len(found)
    encoder = CopyEncoder(schema, found)
    command = sql.SQL("COPY t FROM STDIN (FORMAT {})").format(sql.Identifier(encoder.format))
    with connection.cursor() as cursor, cursor.copy(command) as out:
        for data in (encoder.header(), *map(encoder.encode, batches), encoder.trailer()):
            out.write(data)
    return encoder.format


def read(connection: PostgresConnection, asked: str) -> list[Any]:
    connection.execute("SET DateStyle = ISO; SET IntervalStyle = postgres")
    try:
        # The place in the table is the order in which the rows were written.
        rows = connection.execute(f"SELECT {asked} FROM t ORDER BY ctid".encode()).fetchall()
    finally:
        connection.execute("SET DateStyle = 'SQL, DMY'; SET IntervalStyle = sql_standard")
    return [row[0] for row in rows]


def same(found: Any, wanted: Any) -> bool:
    """Equal, with NaN equal to itself and the sign of zero told."""
    return repr(found) == repr(wanted) if isinstance(wanted, float) else bool(found == wanted)


def arrow(values: list[Any], kind: pa.DataType) -> pa.Array:
    """Make an array; the days and microseconds that Python has no values for are given as integers."""
    if any(type(value) is int for value in values) and (pa.types.is_temporal(kind)):
        return pa.array(values, pa.int32() if pa.types.is_date32(kind) else pa.int64()).cast(kind)
    return pa.array(values, kind)


@pytest.mark.parametrize("format", ["binary", "text"])
@pytest.mark.parametrize("case", CASES, ids=[f"{index} {case}" for index, case in enumerate(CASES)])
def test_values_come_back(connection: PostgresConnection, case: Case, format: str) -> None:
    if connection.info.server_version < case.since:
        pytest.skip("not applicable: this version has no such values")
    values = [None, *(part for value in case.values for part in (value, None))] if case.values else [None, None]
    array = arrow([None, *values, None], case.kind)
    # A slice, as batches are after they were routed.
    sent = array.slice(1, len(values))
    # A column that is read from text only makes the whole COPY text.
    beside = pa.array(["1"] * len(values))
    batch = pa.record_batch({"c": sent, "beside": beside})
    used = copy(
        connection, [batch.slice(0, 1), batch.slice(1)], case.column, "text" if format == "binary" else "integer"
    )
    assert format == "binary" or used == "text"
    given = case.found or case.values
    wanted = [None, *(part for value in given for part in (value, None))] if case.values else [None, None]
    found = read(connection, case.asked)
    assert len(found) == len(wanted)
    assert [(f, w) for f, w in zip(found, wanted, strict=True) if not same(f, w)] == []


STRINGS = {
    ("numeric(6,2)", "numeric"): ["1.25", "1.255", "1.250", " 1.255 ", "1255e-3", "1255e-2", "-.005", "NaN"],
    ("numeric(6,0)", "numeric"): ["1", "1.5", "1.0", "15e-1", "1e1"],
    ("date", "timestamp"): ["2024-01-31", "2024-01-31 00:00", "2024-01-31 00:00:00.000", "2024-01-31T12:00"],
    ("timestamp", "timestamptz"): [
        "2024-01-31", "2024-01-31 12:34:56", "2024-01-31 12:34:56.789 PM BC", "2024-01-31 12:34:56+02",
        "2024-01-31 12:34:56 Europe/Berlin", "2024-01-31 12:34:56Z", "2024-01-31T12:34:56.123456 UTC",
    ],
    ("timestamp(3)", "timestamp"): ["2024-01-31 12:34:56.789", "2024-01-31 12:34:56.7890", "20240131T123456.7895"],
    ("timestamptz(0)", "timestamptz"): ["2024-01-31 12:34:56.000+02", "2024-01-31 12:34:56.5+02"],
    ("time(1)", "time"): ["12:34:56.5", "12:34:56.55", "123456.55", "04:05 PM", "040506.10"],
    ('"char"', "text"): ["a", "ab", "é"],
    ("name", "text"): ["a" * 63, "a" * 64],
    ("varchar(3)", "text"): ["abc", "abc "],
}  # fmt: skip


@pytest.mark.parametrize(("type", "finer"), STRINGS, ids=str)
def test_a_string_is_rejected_if_the_server_would_change_it(
    connection: PostgresConnection, type: str, finer: str
) -> None:
    connection.execute(f"DROP TABLE IF EXISTS t; CREATE TABLE t (c {type})".encode())
    (column,) = read_columns(connection, TableName(None, "t"))
    for text in STRINGS[type, finer]:
        asked = f"SELECT (%s::{type})::{finer} IS DISTINCT FROM %s::{finer}"
        (changed,) = connection.execute(asked.encode(), (text, text)).fetchone() or (None,)
        assert _is_rejected(pa.array([text]), column) is changed, text


TIMES = {
    "timestamp(3)": [789_000, 789_001],
    "interval day": [0, 36 * 3_600_000_000],
    "interval day to hour": [-3_600_000_000, 60_000_000],
    "interval minute": [60_000_000, 1_000_000],
    "interval second(2)": [1_230_000, 1_234_000],
    "interval(0)": [1_000_000, 1],
    "interval year to month": [0, 1],
    "interval": [1],
}


@pytest.mark.parametrize("type", TIMES)
def test_a_time_is_rejected_if_the_server_would_change_it(connection: PostgresConnection, type: str) -> None:
    connection.execute(f"DROP TABLE IF EXISTS t; CREATE TABLE t (c {type})".encode())
    (column,) = read_columns(connection, TableName(None, "t"))
    kind, finer = (pa.timestamp("us"), "timestamp") if "timestamp" in type else (pa.duration("us"), "interval")
    for count in TIMES[type]:
        value = (
            f"({count} * interval '1 us')" if finer == "interval" else f"('epoch'::timestamp + interval '{count} us')"
        )
        (changed,) = connection.execute(f"SELECT {value} <> {value}::{type}".encode()).fetchone() or (None,)
        assert _is_rejected(arrow([count], kind), column) is changed, count


@pytest.mark.parametrize("type", ["money", "interval day", "numeric(5,2)[]"])
def test_strings_are_rejected_before_the_first_row_where_the_server_rounds_as_it_is_set(
    connection: PostgresConnection, type: str
) -> None:
    connection.execute(f"DROP TABLE IF EXISTS t; CREATE TABLE t (c {type})".encode())
    (column,) = read_columns(connection, TableName(None, "t"))
    assert "the server" in (why_not(pa.string(), column) or "")


def _is_rejected(values: pa.Array, column: TableColumn) -> bool:
    try:
        fitted(values, column.kind, ValueContext("c"))
    except ValueRefusedError:
        return True
    return False
