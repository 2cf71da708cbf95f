"""What MySQL and MariaDB would change in silence is refused, and all else comes back as it was sent."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from outfall.capabilities import CommitRequest, CommitterInitContext, WriterInitContext
from outfall.errors import ConfigurationError, ValueRefusedError
from outfall.testing import LocalDriver
from tests.integration.mysql.support import Target
from tests.integration.support.mysql import MySQLServer, Server
from tests.integration.support.sql import first, run

UTC = dt.UTC
at = dt.datetime.fromisoformat
LOADS = pytest.mark.parametrize("load", ["ON", "OFF"])

INSTANT = pa.timestamp("us", "UTC")
CHANGED: list[tuple[str, pa.DataType, Any, Any]] = [
    ("TINYINT", pa.int64(), 127, 128), ("TINYINT UNSIGNED", pa.int64(), 255, -1),
    ("INT", pa.int64(), -(2**31), 2**31), ("MEDIUMINT", pa.int32(), 8_388_607, 8_388_608),
    ("BIGINT UNSIGNED", pa.int64(), 2**63 - 1, -1), ("INT", pa.decimal128(10, 2), Decimal("7.00"), Decimal("7.50")),
    ("DECIMAL(5,2)", pa.decimal128(10, 4), Decimal("1.2500"), Decimal("1.2550")),
    ("DECIMAL(5,2)", pa.int64(), 999, 1000),
    ("DECIMAL(5,2) UNSIGNED", pa.decimal128(5, 2), Decimal("0.00"), Decimal("-0.01")),
    ("DOUBLE", pa.float64(), 1.7976931348623157e308, float("nan")), ("DOUBLE", pa.float64(), 5e-324, float("inf")),
    ("DATE", pa.date32(), dt.date(1, 1, 1), None), ("DATE", pa.date32(), dt.date(9999, 12, 31), None),
    ("DATETIME", pa.timestamp("us"), at("2020-01-02 03:04:05"), at("2020-01-02 03:04:05.000001")),
    ("DATETIME(3)", INSTANT, at("2020-01-02 03:04:05.999+00:00"), at("2020-01-02 03:04:05.999999+00:00")),
    ("TIMESTAMP(6) NULL", INSTANT, at("2038-01-19 03:14:07.999999+00:00"), at("2038-01-19 03:14:08+00:00")),
    ("TIMESTAMP NULL", INSTANT, at("1970-01-01 00:00:01+00:00"), at("1970-01-01 00:00:00+00:00")),
    ("TIME", pa.time64("us"), dt.time(1, 2, 3), dt.time(1, 2, 3, 4)), ("VARCHAR(3)", pa.string(), "ä😀ß", "abcd"),
    ("CHAR(3)", pa.string(), "ab", "ab "), ("TINYTEXT", pa.string(), "é" * 127, "é" * 128),
    ("VARCHAR(9) CHARACTER SET utf8mb3", pa.string(), "ä", "😀"),
    ("VARCHAR(9) CHARACTER SET ascii", pa.string(), "a", "ä"),
    ("VARCHAR(9) CHARACTER SET latin1", pa.string(), "ä", "Ж"), ("BINARY(3)", pa.binary(), b"\x00\xff\x00", b"ab"),
    ("VARBINARY(3)", pa.binary(), b"\\\n'", b"abcd"), ("ENUM('a','b''c')", pa.string(), "b'c", "A"),
    ("ENUM('a','b')", pa.string(), "a", ""), ("ENUM('a\\\\b','n\\nl')", pa.string(), "a\\b", "ab"),
    ("ENUM('a\\\\b','n\\nl')", pa.string(), "n\nl", "nl"), ("ENUM('int(5)')", pa.string(), "int(5)", "int"),
    ("BIT(1)", pa.bool_(), True, None), ("BIT(3)", pa.int64(), 7, 8), ("BIT", pa.int8(), 0, -1),
    ("BIT(64)", pa.int64(), 2**63 - 1, -1), ("YEAR", pa.int64(), 2155, 70), ("YEAR", pa.int16(), 1901, 0),
    ("SET('a','b''c')", pa.string(), "a,b'c", "b'c,a"), ("SET('a','b')", pa.string(), "", "c"),
    ("SET('a','b')", pa.string(), "a", "a,a"),
    ("INT NOT NULL", pa.int64(), 0, None),
    ("INT NOT NULL DEFAULT 5", pa.int64(), 0, None),
    ("TIMESTAMP NOT NULL", INSTANT, at("2020-01-01 00:00:00+00:00"), None),
    ("INT NOT NULL AUTO_INCREMENT UNIQUE", pa.int64(), 0, None),
]  # fmt: skip


def _send(target: Target, path: Path, kind: pa.DataType, *values: Any, **options: Any) -> None:
    """Write one column of a type in one epoch."""
    sink: Any = target.sink(**options)
    ticket = LocalDriver(sink, str(path)).coordinator().begin(0)
    bound = sink.bind(WriterInitContext("sink", ticket.incarnation, ticket.generation, 0, None, attempt=0))
    part = bound.build("sink", 0, 1)
    try:
        part.write_record_batch(pa.RecordBatch.from_arrays([pa.array(values, kind)], names=["v"]))
        requests = [CommitRequest(staged) for staged in part.prepare_commit()]
    finally:
        part.close()
    context = CommitterInitContext("sink", ticket.incarnation, ticket.generation, 0, token=ticket.token)
    sink.create_committer(context).commit(requests)


@pytest.mark.parametrize(("column", "kind", "kept", "changed"), first(6, CHANGED))
def test_a_value_that_the_server_would_change_is_refused(
    server: MySQLServer, database: str, tmp_path: Path, column: str, kind: pa.DataType, kept: Any, changed: Any
) -> None:
    target = Target(server, database, f"CREATE TABLE t (v {column}) CHARACTER SET utf8mb4")
    if changed is not None or "NOT NULL" in column:
        with pytest.raises(ValueRefusedError, match=r"'v' cannot hold the value|error 1366"):
            _send(target, tmp_path / "refused", kind, kept, changed)
        assert target.run("SELECT count(*) FROM t") == [("0",)]
    _send(target, tmp_path / "kept", kind, kept)
    assert _read(target, kind) == kept


def _read(target: Target, kind: pa.DataType) -> Any:
    """Return the value in the table, read as text, as a value of Python."""
    bits = "SELECT data_type FROM information_schema.columns WHERE table_schema = database() AND table_name = 't'"
    value = "v + 0" if target.run(bits)[0][0] == "bit" else "v"
    ((text,),) = target.run(f"SELECT HEX(CAST({value} AS CHAR CHARACTER SET utf8mb4)) FROM t")
    if pa.types.is_binary(kind):
        return bytes.fromhex(target.run("SELECT HEX(v) FROM t")[0][0])
    found = bytes.fromhex(text).decode()
    if pa.types.is_timestamp(kind):
        return dt.datetime.fromisoformat(found).replace(tzinfo=kind.tz and UTC)
    if pa.types.is_date(kind) or pa.types.is_time(kind):
        return (dt.date if pa.types.is_date(kind) else dt.time).fromisoformat(found)
    if pa.types.is_string(kind):
        return found
    return float(found) if pa.types.is_floating(kind) else Decimal(found)


AWKWARD = [
    "",
    " ",
    "\\",
    "\\N",
    "\t",
    "\n",
    "\r\n",
    "'",
    '"',
    "\0",
    "%s",
    "%",
    "a\\'b",
    "\x1a",
    "😀",
    "NULL",
    "\\0",
    "é\u0301",
]


@LOADS
def test_texts_and_bytes_come_back_as_they_were_sent(mortal: Server, tmp_path: Path, load: str) -> None:
    mortal.client.run(f"SET GLOBAL local_infile = {load}")
    target = Target(
        mortal.client, mortal.client.new_database(), "CREATE TABLE t (id INT, s LONGTEXT, b LONGBLOB) CHARSET utf8mb4"
    )
    given = [{"id": number, "s": text, "b": text.encode("utf-16")} for number, text in enumerate(AWKWARD)]
    run(target.sink(), tmp_path, 0, [*given, {"id": 99, "s": None, "b": None}])
    found = target.run("SELECT id, HEX(s), HEX(b) FROM t ORDER BY id")
    assert found[-1] == ("99", "NULL", "NULL")
    assert [(bytes.fromhex(text).decode(), bytes.fromhex(data)) for _, text, data in found[:-1]] == [
        (row["s"], row["b"]) for row in given
    ]
    assert target.run("SHOW GLOBAL VARIABLES LIKE 'local_infile'")[0][1] == load


@LOADS
def test_a_row_that_only_the_server_can_refuse_is_found_among_others(mortal: Server, tmp_path: Path, load: str) -> None:
    """LOAD DATA would put a ? for the character; an INSERT would fail for all rows."""
    mortal.client.run(f"SET GLOBAL local_infile = {load}")
    target = Target(
        mortal.client, mortal.client.new_database(), "CREATE TABLE t (id BIGINT, name VARCHAR(9) CHARACTER SET latin1)"
    )
    given = [{"id": number, "name": "Ж" if number in (3, 700) else "ä"} for number in range(1000)]
    run(target.sink(dead_letter_table="dead"), tmp_path, 0, given)
    assert target.run("SELECT count(*), count(DISTINCT name), min(HEX(name)) FROM t") == [("998", "1", "E4")]
    assert [row["id"] for row in target.json("SELECT `row` FROM dead")] == [3, 700]


def test_rows_are_sent_in_packets_that_the_server_takes(mortal: Server, tmp_path: Path) -> None:
    with mortal.client.settings(local_infile="OFF", max_allowed_packet="65536"):
        target = Target(mortal.client, mortal.client.new_database(), "CREATE TABLE t (id BIGINT, name LONGTEXT)")
        given = [{"id": number, "name": "'\n" * 5000} for number in range(50)]
        run(target.sink(), tmp_path, 0, given)
        assert target.run("SELECT count(*), sum(length(name)) FROM t") == [("50", "500000")]
        with pytest.raises(ValueRefusedError, match="max_allowed_packet of the server is 65536"):
            run(target.sink(), tmp_path, 1, [{"id": 99, "name": "x" * 70_000}])


@pytest.mark.parametrize(
    ("column", "kind", "message"),
    first(3, [
        ("INT", pa.string(), "cast it to the column's type"), ("BIT(1)", pa.string(), "cast it"),
        ("YEAR", pa.date32(), "cast it"), ("FLOAT(7,3)", pa.float32(), "rounds to the digits"),
        ("DATETIME", pa.timestamp("ns"), "no column type preserves its values"),
        ("TIMESTAMP NULL", pa.timestamp("us"), "session time zone"), ("FLOAT", pa.float64(), "may lose digits"),
        ("INT GENERATED ALWAYS AS (1) STORED", pa.int32(), "the server fills"),
        ("VARCHAR(9)", pa.list_(pa.int64()), "to_json"), ("SET('a','b')", pa.int64(), "cast it"),
    ]),
)  # fmt: skip
def test_a_column_that_would_change_values_is_refused_before_the_first_row(
    server: MySQLServer, database: str, column: str, kind: pa.DataType, message: str
) -> None:
    target = Target(server, database, f"CREATE TABLE t (v {column})")
    with pytest.raises(ConfigurationError, match=message):
        target.sink().check_schema(pa.schema({"v": kind}))


def test_columns_that_the_server_fills_or_hides_are_left_to_it(
    server: MySQLServer, database: str, tmp_path: Path
) -> None:
    target = Target(
        server, database,
        "CREATE TABLE t (n INT AUTO_INCREMENT PRIMARY KEY, id BIGINT, name TEXT, twice BIGINT AS (id * 2) STORED,"
        " hidden INT INVISIBLE DEFAULT 7, at TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6))",
    )  # fmt: skip
    run(target.sink(), tmp_path, 0, [{"id": 4, "name": "a"}, {"id": 5, "name": "b"}])
    assert target.run("SELECT id, twice, hidden, at > '2020-01-01' FROM t ORDER BY id") == [
        ("4", "8", "7", "1"), ("5", "10", "7", "1"),
    ]  # fmt: skip


def test_a_lax_server_in_another_zone_changes_nothing(mortal: Server, tmp_path: Path) -> None:
    with mortal.client.settings(sql_mode="''", time_zone="'+05:00'"):
        target = Target(mortal.client, mortal.client.new_database(), "CREATE TABLE t (v TIMESTAMP(6) NULL)")
        instant = at("2020-01-02 03:04:05.000006+00:00")
        _send(target, tmp_path, pa.timestamp("us", "UTC"), instant)
        assert target.run("SET time_zone = '+00:00'; SELECT v FROM t") == [("2020-01-02 03:04:05.000006",)]
        target.run("DROP TABLE t; CREATE TABLE t (v TINYINT)")
        with pytest.raises(ValueRefusedError):
            _send(target, tmp_path / "b", pa.int64(), 128)


@pytest.mark.thorough
@pytest.mark.parametrize("mode", ["append", "upsert", "changes"])
def test_a_default_of_zeros_of_a_column_that_no_row_has_is_kept(
    server: MySQLServer, database: str, tmp_path: Path, mode: str
) -> None:
    """As old tables have them. Values of rows are never zeros."""
    zeros = "day DATE NOT NULL DEFAULT '0000-00-00', at DATETIME NOT NULL DEFAULT '0000-00-00 00:00:00'"
    target = Target(server, database)
    target.run(f"SET sql_mode = ''; DROP TABLE t; CREATE TABLE t (id BIGINT PRIMARY KEY, lsn BIGINT, {zeros})")
    options: dict[str, Any] = {"write_mode": mode} | ({} if mode == "append" else {"key_columns": "id"})
    row: dict[str, Any] = {"id": 1, "lsn": 1}
    if mode == "changes":
        options |= {"operation_column": "op", "sequence_column": "lsn"}
        row |= {"op": "u"}
    for dead in (None, "dead"):
        run(target.sink(dead_letter_table=dead, on_existing="resume", **options), tmp_path / str(dead), 0, [row])
        row |= {"id": 2}
    assert target.run("SELECT id, day, at FROM t") == [(str(n), "0000-00-00", "0000-00-00 00:00:00") for n in (1, 2)]
