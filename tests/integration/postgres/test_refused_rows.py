"""Rows that the server refuses: each is named by its key, or set aside as a dead letter beside the others."""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from psycopg.conninfo import conninfo_to_dict

from outfall.errors import CommitRefusedError, ConfigurationError, OutfallError, ValueRefusedError
from outfall.protocol.task import EpochTask, TaskIdentity
from outfall.replay.sources import dead_letters_at
from outfall.testing import LocalDriver
from outfall.testing.crash_points import crash_at
from tests.integration.postgres.support import Target
from tests.integration.support.postgres import Databases, pgbouncer
from tests.integration.support.sql import first, mostly_thorough, rows, run

PEOPLE = "CREATE TABLE people (id bigint PRIMARY KEY)"


@dataclass(frozen=True)
class Case:
    """One value that a column refuses, between two that it takes."""

    name: str
    column: str
    good: Any
    bad: Any
    kind: pa.DataType
    code: str | None
    """The server's code; `None` where the value is refused before it is sent."""
    reason: str

    @property
    def staged(self) -> bool:
        """Whether staging refuses it, and not the table."""
        return (self.code or "22")[:2] == "22"


CASES = [
    Case("a NUL in text", "text", "ok", "a\0b", pa.string(), None, "NUL character"),
    Case("a NUL in JSON", "jsonb", "{}", '"\\u0000"', pa.string(), None, "NUL character"),
    Case("an integer out of range", "integer", 1, 2**31, pa.int64(), None, "outside the range of int32"),
    Case("a number out of range", "integer", "1", "2147483648", pa.string(), "22003", "out of range for type integer"),
    Case("infinity in numeric(p,s)", "numeric(9,2)", 1.0, float("inf"), pa.float64(), "22003", "field overflow"),
    Case("NaN as an integer", "integer", "1", "NaN", pa.string(), "22P02", "invalid input syntax"),
    Case("digits beyond the scale", "numeric(38,10)", Decimal("1.5"), Decimal(1).scaleb(-18), pa.decimal128(38, 18),
         None, "does not fit numeric"),
    Case("a string too long", "varchar(3)", "abc", "abcd", pa.string(), None, "more than 3 characters"),
    Case("an invalid UUID", "uuid", "a0eebc999c0b4ef8bb6d6bb9bd380a11", "x", pa.string(), None, "not a UUID"),
    Case("invalid JSON", "jsonb", "{}", "{", pa.string(), "22P02", "invalid input syntax"),
    Case("a date that is none", "date", "2020-02-28", "2020-02-30", pa.string(), "22008", "out of range"),
    Case("NOT NULL", "text NOT NULL", "x", None, pa.string(), "23502", "not-null"),
    Case("CHECK", "bigint CHECK (v > 0)", 1, -1, pa.int64(), "23514", "check constraint"),
    Case("NaN against CHECK", "float8 CHECK (v <> 'NaN')", 1.0, float("nan"), pa.float64(), "23514", "check"),
    Case("a foreign key", "bigint REFERENCES people", 1, 7, pa.int64(), "23503", "foreign key"),
    Case("a foreign key that waits for COMMIT", "bigint REFERENCES people DEFERRABLE INITIALLY DEFERRED", 1, 7,
         pa.int64(), "23503", "foreign key"),
    Case("UNIQUE", "text UNIQUE", None, "there", pa.string(), "23505", "unique constraint"),
]  # fmt: skip
WAYS = ["named", "append", "upsert"]


def cases(way: str) -> pytest.MarkDecorator:
    """All of them; by default two go each way."""
    return pytest.mark.parametrize(
        "case",
        [
            pytest.param(case, id=case.name, marks=[] if number % 9 == WAYS.index(way) else pytest.mark.thorough)
            for number, case in enumerate(CASES)
        ],
    )


FITTING = [
    ("float8", pa.float64(), [float("nan"), float("inf"), -float("inf")]),
    ("numeric", pa.float64(), [float("nan"), float("inf")]),
    ("numeric(38,18)", pa.decimal128(38, 18), [Decimal(10**20 - 1) + Decimal(1).scaleb(-18), None]),
    ("numeric(38,18)", pa.float64(), [float("nan")]),
]


@pytest.fixture
def pooled(dsn: str) -> Iterator[str]:
    with pgbouncer(dsn) as through:
        yield through


def table(dsn: str, column: str, key: str = "PRIMARY KEY") -> Target:
    target = Target(dsn, f"{PEOPLE}; INSERT INTO people VALUES (1); CREATE TABLE t (id bigint {key}, v {column})")
    if "UNIQUE" in column:
        target.run("INSERT INTO t VALUES (-1, 'there')")
    return target


def write(sink: Any, recovery: str, case: Case, *, task_rows: int = 7, bad: int = 3) -> Any:
    """Run an epoch of two tasks; the first has the bad row in the middle."""
    local = LocalDriver(sink, recovery)
    coordinator = local.coordinator()
    ticket = coordinator.begin(0)

    def batch(first: int, bad: int | None) -> pa.RecordBatch:
        ids = range(first, first + task_rows)
        values = [case.bad if number == bad else case.good for number in ids]
        return pa.RecordBatch.from_arrays([pa.array(ids, pa.int64()), pa.array(values, case.kind)], names=["id", "v"])

    def task(index: int, batches: list[pa.RecordBatch]) -> Any:
        identity = TaskIdentity(epoch=0, worker_index=index, attempt=local.new_attempt(), retries=0, query_id=None)
        return EpochTask(sink, ticket, identity).run((None, some) for some in batches)

    answers = [task(0, [batch(0, bad)]), task(1, [batch(100, None), batch(200, None)])]
    return coordinator.finish(ticket, answers)


GOOD = [*(number for number in range(7) if number != 3), *range(100, 107), *range(200, 207)]


@cases("named")
def test_a_row_that_is_refused_is_named_by_its_primary_key(dsn: str, recovery: str, case: Case) -> None:
    target = table(dsn, case.column)
    there = target.ids()
    error = ValueRefusedError if case.staged else CommitRefusedError
    with pytest.raises(error) as caught:
        write(target.sink(), recovery, case)
    for told in ('the row with key {"id": 3}', f"SQLSTATE {case.code}" if case.code else "What to do"):
        assert told in str(caught.value)
    assert (case.reason in str(caught.value)) == ((case.code or "")[:2] != "22")
    assert target.ids() == there


@pytest.mark.thorough
@pytest.mark.parametrize("log_rows", ["none", "keys", "full"])
@pytest.mark.parametrize(
    "columns",
    ["name text CHECK (name <> 'Ringelnatz')", "name text UNIQUE", "name integer", "name uuid", "name varchar(3)"],
)
def test_no_more_of_a_row_is_told_than_log_rows_permits(
    dsn: str, recovery: str, columns: str, log_rows: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither by the server's detail and message, nor by a cause in the traceback."""
    target = Target(dsn, f"CREATE TABLE t (id bigint PRIMARY KEY, {columns})")
    refused: list[dict[str, Any]] = [{"id": number, "name": None} for number in (1, 2)]
    refused += [{"id": number, "name": "Ringelnatz"} for number in (4711, 4712)[: 1 + ("UNIQUE" in columns)]]
    with caplog.at_level("DEBUG"), pytest.raises(OutfallError) as caught:
        run(target.sink(log_rows=log_rows), recovery, 0, refused)
    told = "".join(traceback.format_exception(caught.value)) + caplog.text
    assert ("Ringelnatz" in told) == (log_rows == "full")
    assert ("471" in told) == (log_rows != "none")


@cases("append")
def test_with_dead_letters_the_others_go_through(dsn: str, recovery: str, case: Case) -> None:
    set_aside(dsn, recovery, case, "append")


@cases("upsert")
def test_with_dead_letters_the_others_are_upserted(dsn: str, recovery: str, case: Case) -> None:
    set_aside(dsn, recovery, case, "upsert", key_columns="id")


def set_aside(dsn: str, recovery: str, case: Case, mode: str, **options: str) -> None:
    target = table(dsn, case.column)
    there = target.ids()
    result = write(target.sink(write_mode=mode, dead_letter_table="dead", **options), recovery, case)
    assert target.ids() == there + GOOD
    assert result.counts["dead_letters"] == 1
    (letter,) = target.run("SELECT row, reason, code, step, epoch, part, time <= now() FROM dead")
    assert json.loads(letter[0])["id"] == 3
    assert "v" in json.loads(letter[0])
    assert case.reason in letter[1]
    assert letter[2:] == (case.code or "not_convertible", "sink", 0, "writer 0" if case.staged else None, True)
    assert target.run("SELECT count(*) FROM outfall.attempts") == [(0,)]


@pytest.mark.parametrize(("column", "kind", "values"), first(1, FITTING))
def test_values_at_the_edge_of_their_type_are_taken(
    dsn: str, recovery: str, column: str, kind: pa.DataType, values: list[Any]
) -> None:
    target = table(dsn, column)
    case = Case("", column, values[0], values[-1], kind, None, "")
    write(target.sink(dead_letter_table="dead"), recovery, case)
    assert target.run("SELECT count(*) FROM dead") == [(0,)]
    assert target.run("SELECT DISTINCT v::text FROM t WHERE id <> 3") == target.run(
        f"SELECT (%s::{column})::text", values[0]
    )


def test_a_row_is_named_by_the_key_columns_of_an_upsert(dsn: str, recovery: str) -> None:
    target = Target(dsn, "CREATE TABLE t (id bigint, name text UNIQUE CHECK (name <> 'n2'))")
    with pytest.raises(CommitRefusedError, match=r'the row with key \{"name": "n2"\}'):
        run(target.sink(write_mode="upsert", key_columns="name"), recovery, 0, rows(1, 2, 3))


@pytest.mark.parametrize("column", ["text", "jsonb"])
def test_a_row_without_a_key_is_named_by_its_beginning(dsn: str, recovery: str, column: str) -> None:
    target = Target(dsn, f"CREATE TABLE t (id bigint CHECK (id <> 5), name {column})")
    long = "x" * 1000
    name = json.dumps(long) if column == "text" else "{"
    sink = target.sink(log_rows="full")
    with pytest.raises(OutfallError, match=r'(a row|row 5 of its task), \{"id":5,"name":".') as caught:
        run(sink, recovery, 0, [{"id": number, "name": name if number == 5 else "1"} for number in range(9)])
    assert len(str(caught.value)) < 2500


def test_a_row_is_found_in_the_midst_of_many_batches(dsn: str, recovery: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each COPY is given a part of them; the rows of all but the one that fails are gone by then."""
    monkeypatch.setattr("outfall.postgres.staging.load.COPY_BYTES", 20_000)
    target = Target(dsn, "CREATE TABLE t (id bigint PRIMARY KEY, name jsonb)")
    local = LocalDriver(target.sink(), recovery)
    coordinator = local.coordinator()
    ticket = coordinator.begin(0)

    def batches(bad: int | None) -> list[tuple[str | None, list[Any]]]:
        return [
            (None, [{"id": number, "name": "{" if number == bad else "1"} for number in range(first, first + 100)])
            for first in range(0, 5000, 100)
        ]

    for bad in (137, 2599, 4999):
        with pytest.raises(ValueRefusedError, match=rf'key \{{"id": {bad}\}}'):
            local.run_task(ticket, 0, 0, batches(bad))
    assert target.staged() == 0
    coordinator.finish(ticket, [local.run_task(ticket, 0, 0, batches(None))])
    assert target.ids() == list(range(5000))


# --- dead letters


def statements(target: Target, work: Callable[[], object]) -> int:
    """How many tries publishing took: each is a savepoint that is rolled back or kept, counted by a trigger."""
    target.run(
        "CREATE SEQUENCE tries; CREATE FUNCTION count_tries() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " PERFORM nextval('tries'); RETURN NULL; END $$;"
        " CREATE TRIGGER count_tries BEFORE INSERT ON t FOR EACH STATEMENT EXECUTE FUNCTION count_tries()"
    )
    work()
    return int(target.run("SELECT last_value FROM tries")[0][0])


def test_many_rows_are_searched_by_halves(dsn: str, recovery: str) -> None:
    target = Target(dsn, "CREATE TABLE t (id bigint CHECK (id NOT IN (17, 4711, 19999)), name text)")
    sink = target.sink(dead_letter_table="dead")
    tries = statements(target, lambda: run(sink, recovery, 0, rows(*range(20_000))))
    assert target.run("SELECT count(*) FROM t") == [(19_997,)]
    assert sorted(json.loads(row)["id"] for (row,) in target.run("SELECT row FROM dead")) == [17, 4711, 19999]
    assert tries < 3 * 2 * 17 + 2


@pytest.mark.thorough
def test_upserts_are_sorted_once_however_many_rows_are_refused(dsn: str, recovery: str, pooled: str) -> None:
    """Also through a pooler, which gives each transaction another session."""
    target = Target(dsn, "CREATE TABLE t (id bigint PRIMARY KEY CHECK (id % 200 <> 7), name text)")
    sinks = [
        target.sink(dsn=address, write_mode="upsert", key_columns="id", dead_letter_table="dead")
        for address in (dsn, pooled)
    ]
    run(sinks[0], recovery, 0, rows(1))
    (staging,) = target.run("SELECT format('outfall.%I', tablename) FROM pg_tables WHERE tablename LIKE 'staging%'")[0]
    target.run(
        "CREATE SEQUENCE scanned MINVALUE 0; CREATE FUNCTION look() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        f" PERFORM setval('scanned', pg_stat_get_xact_tuples_returned('{staging}'::regclass)); RETURN NULL; END $$;"
        " CREATE TRIGGER look BEFORE INSERT ON t FOR EACH STATEMENT EXECUTE FUNCTION look()"
    )
    for epoch, sink in enumerate([*sinks, sinks[1]], 1):
        run(sink, recovery, epoch, rows(*range(2000)))
        assert target.run("SELECT (SELECT count(*) FROM t), (SELECT count(*) FROM dead)") == [(1990, 10 * epoch)]
        # A few whole scans are the planner's business, as for the first half; one for each of the 200 tries is not.
        assert 2000 <= target.run("SELECT last_value FROM scanned")[0][0] < 40 * 2000


def test_a_table_that_takes_no_letters_is_explained_also_for_a_recorded_epoch(dsn: str, recovery: str) -> None:
    target = Target(dsn, "CREATE TABLE t (id bigint PRIMARY KEY CHECK (id <> 2), name text)")
    target.run('CREATE TABLE dead ("row" jsonb)')
    with crash_at("after PREPARED"):
        run(target.sink(), recovery, 0, rows(1, 2))
    with pytest.raises(ConfigurationError, match="cannot store dead letters: column 'row' is jsonb"):
        run(target.sink(dead_letter_table="dead"), recovery, 0, rows(1, 2))


@pytest.mark.parametrize("code", mostly_thorough(["42P01", "P0001", "54000"], ["P0001"]))
def test_what_is_not_the_fault_of_a_row_is_no_dead_letter(dsn: str, recovery: str, code: str) -> None:
    target = Target(
        dsn,
        "CREATE TABLE t (id bigint, name text); CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        f" RAISE EXCEPTION 'made to fail' USING ERRCODE = '{code}'; END $$;"
        " CREATE TRIGGER fail BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION fail()",
    )
    with pytest.raises(OutfallError, match=f"(?i)made to fail.*SQLSTATE {code}"):
        run(target.sink(dead_letter_table="dead", log_rows="full"), recovery, 0, rows(1))
    assert target.run("SELECT count(*) FROM dead") == [(0,)]


@pytest.mark.parametrize("write_mode", first(1, ["append", "upsert"]))
@pytest.mark.parametrize("encoding", first(1, ["LATIN1", "SQL_ASCII"]))
def test_a_row_that_the_encoding_of_the_server_does_not_have_is_set_aside_in_ascii(
    postgres: Databases, recovery: str, encoding: str, write_mode: str
) -> None:
    """SQL_ASCII has no characters at all: it takes the bytes, and a letter for another reason is ASCII too."""
    target = Target(postgres.new_database(encoding), "CREATE TABLE t (id bigint PRIMARY KEY, name text, born date)")
    keys = {"key_columns": ["id"]} if write_mode == "upsert" else {}
    sink = target.sink(dead_letter_table="dead", write_mode=write_mode, **keys)
    names = ["ä", "5 €", "𝄞 \\u20ac", "z"]
    born = ["2020-01-01", *(["2020-02-30"] * 2 if encoding == "SQL_ASCII" else ["2020-01-01"] * 2), "2020-01-01"]
    run(sink, recovery, 0, [{"id": n, "name": name, "born": born[n]} for n, name in enumerate(names)])
    run(sink, recovery, 1, [{"id": 4, "name": "later", "born": None}])
    assert target.ids() == [0, 3, 4]
    parts = conninfo_to_dict(target.dsn)
    location = f"postgresql://{parts['user']}@{parts['host']}:{parts['port']}/{parts['dbname']}?table=dead"
    letters = [found.dead_letter for found in dead_letters_at(location)()]
    assert all((letter.row + letter.reason).isascii() for letter in letters)
    assert sorted(json.loads(letter.row)["name"] for letter in letters) == ["5 €", "𝄞 \\u20ac"]
    assert {letter.code for letter in letters} == {"22008" if encoding == "SQL_ASCII" else "22P05"}


def test_the_excerpt_of_a_letter_is_the_servers_detail(dsn: str, recovery: str) -> None:
    target = Target(dsn, "CREATE TABLE t (id bigint CHECK (id <> 2), name text)")
    run(target.sink(log_rows="none", dead_letter_table="dead"), recovery, 0, rows(2))
    assert "n2" in target.run("SELECT excerpt FROM dead")[0][0]
