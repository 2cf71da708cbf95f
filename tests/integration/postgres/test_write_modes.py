"""Upserts and deletes by epochs, against a real server and without Spark."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from outfall.errors import CommitRefusedError, TargetError, ValueRefusedError
from outfall.postgres import PostgresSink
from outfall.postgres.catalogue.columns import read_columns
from outfall.postgres.connection.database import PostgresConnection
from outfall.postgres.names import TableName
from outfall.testing import LocalDriver
from tests.integration.postgres.support import Target
from tests.integration.support.sql import first, listening, rows, run
from tests.integration.support.waiting import until

THOROUGH = pytest.mark.thorough
KEYED = "CREATE TABLE t (id bigint PRIMARY KEY, name text, version bigint)"


def keyed(number: int, name: str | None, version: int, gone: bool = False) -> dict[str, Any]:
    return {"id": number, "name": name, "version": version, "gone": gone}


@pytest.mark.parametrize("dead", first(1, [None, "dead"]))
def test_a_delete_marker_removes_nothing_outside_the_index_that_its_keys_are_of(
    dsn: str, recovery: str, dead: str | None
) -> None:
    target = Target(dsn, "CREATE TABLE t (id bigint, name text, version bigint CHECK (version < 100))")
    target.run("CREATE UNIQUE INDEX ON t (id) WHERE version > 0")
    target.run("INSERT INTO t VALUES (1, 'old', 0), (1, 'older', -1), (1, 'live', 1), (2, 'live', 1), (3, 'live', 1)")
    sink = target.sink(
        write_mode="upsert",
        key_columns="id",
        delete_marker="gone",
        conflict_where="version > 0",
        dead_letter_table=dead,
    )
    made = [keyed(1, "x", 5, gone=True), keyed(2, "y", 5)] + ([keyed(3, "z", 100)] if dead else [])
    run(sink, recovery, 0, made)
    left = target.run("SELECT id, name FROM t ORDER BY id, version")
    assert left == [(1, "older"), (1, "old"), (2, "y"), (3, "live")]


@pytest.mark.parametrize("dead", first(1, [None, pytest.param("dead", marks=THOROUGH)]))
@pytest.mark.parametrize(
    ("predicate", "where", "row"),
    first(
        1,
        [
            ("n > 0", "n > 0", {}),
            ("n > 0", "n > 5", {}),  # the index decides, and it has an entry for 1 too
            pytest.param(*["n > 0 AND live AND gone_at IS NULL"] * 2, {}, marks=THOROUGH),
            pytest.param(None, "n > 0", {}, marks=THOROUGH),
            ("n > 0", "n > 0", {"update_columns": "name"}),
            ("n > 0", "n > 0", {"delete_marker": "gone"}),
        ],
    ),
    ids=str,
)
def test_rows_of_one_epoch_count_as_if_each_arrived_alone_beyond_a_partial_index_too(
    dsn: str, recovery: str, predicate: str | None, where: str, row: dict[str, Any], dead: str | None
) -> None:
    made = [{"id": 1, "name": str(place), "n": n} for place, n in enumerate([1, 0, 7, 0, 9, -1])]
    if "delete_marker" in row:
        made = [each | {"gone": place == 2} for place, each in enumerate(made)]
    if dead:
        made.append(made[0] | {"name": None})
    found = []
    for name, epochs in (("t", [made]), ("alone", [[each] for each in made])):
        target = Target(
            dsn,
            f"CREATE TABLE {name} (id bigint, name text NOT NULL, n bigint, live boolean DEFAULT true,"
            f" gone_at timestamptz); CREATE UNIQUE INDEX ON {name} (id) {f'WHERE {predicate}' if predicate else ''}",
        )
        options: dict[str, Any] = {"write_mode": "upsert", "key_columns": "id", "conflict_where": where, **row}
        sink = PostgresSink(dsn, name, dead_letter_table=dead, **options)
        for epoch, values in enumerate(epochs):
            run(sink, f"{recovery}/{name}", epoch, values)
        found.append(target.run(f"SELECT id, name, n FROM {name} ORDER BY n, name"))
    assert found[0] == found[1] != []


def test_an_index_whose_predicate_needs_a_value_that_no_row_has_is_refused(dsn: str, recovery: str) -> None:
    target = Target(dsn, "CREATE TABLE t (id bigint, name text, made uuid DEFAULT gen_random_uuid())")
    target.run("CREATE UNIQUE INDEX live ON t (id) WHERE made < 'f0000000-0000-0000-0000-000000000000'")
    sink = target.sink(
        write_mode="upsert", key_columns="id", conflict_where="made < 'f0000000-0000-0000-0000-000000000000'"
    )
    with pytest.raises(TargetError, match="live of t decides conflicts by column 'made'"):
        run(sink, recovery, 0, [{"id": 1, "name": "a"}])


@pytest.mark.parametrize(
    ("ddl", "options"),
    first(
        1,
        [
            ("CREATE UNIQUE INDEX live ON t (id) WHERE version > 0", {"conflict_where": "version > 0"}),
        ],
    ),
)
def test_the_index_of_a_conflict_can_be_named(dsn: str, recovery: str, ddl: str, options: dict[str, str]) -> None:
    target = Target(dsn, f"CREATE TABLE t (id bigint, name text, version bigint); {ddl}")
    sink = target.sink(write_mode="upsert", key_columns="id", **options)
    for epoch, name in enumerate("ab"):
        run(sink, recovery, epoch, [{"id": 1, "name": name, "version": 1}])
    assert target.run("SELECT name FROM t") == [("b",)]


ODD = '"50%s"."t%(s"'
ODD_DDL = f"""
CREATE SCHEMA "50%s"; CREATE TABLE {ODD} ("100%s" bigint PRIMARY KEY, "a%" text CHECK ("a%" <> 'no'));
CREATE UNIQUE INDEX ON {ODD} ("100%s") WHERE "a%" LIKE '%_%s'
"""
UPSERT = {"write_mode": "upsert", "key_columns": "100%s"}


@pytest.mark.parametrize(
    ("options", "rows_of"),
    first(
        1,
        [
            ({}, list),
            (
                UPSERT | {"order_column": "a%", "delete_marker": "%gone"},
                lambda made: [row | {"%gone": False} for row in made],
            ),
            pytest.param(UPSERT | {"conflict_where": "\"a%\" LIKE '%_%s'"}, list, marks=THOROUGH),
            pytest.param({"offset_columns": "100%s"}, list, marks=THOROUGH),
            ({"parts": 2, "offset_keys": "ledger"}, lambda made: [("key", row) for row in made]),
        ],
    ),
    ids=["append", "upsert", "partial index", "offset columns", "parts"],
)
def test_percent_signs_in_names_are_signs_like_others(
    dsn: str, recovery: str, options: dict[str, Any], rows_of: Callable[[list[dict[str, Any]]], list[Any]]
) -> None:
    target = Target(dsn, ODD_DDL)
    sink = PostgresSink(dsn, ODD, metadata_schema="meta%s", **options)
    for epoch in (0, 1):
        run(sink, recovery, epoch, rows_of([{"100%s": epoch, "a%": "a%s"}]))
    assert target.run(f'SELECT "100%s", "a%" FROM {ODD} ORDER BY 1') == [(0, "a%s"), (1, "a%s")]


@pytest.mark.parametrize("options", first(1, [{}, UPSERT]))
def test_percent_signs_in_names_are_found_in_dead_letters(dsn: str, recovery: str, options: dict[str, Any]) -> None:
    target = Target(dsn, ODD_DDL)
    sink = PostgresSink(dsn, ODD, metadata_schema="meta%s", dead_letter_table='"50%s"."dead%s"', **options)
    run(sink, recovery, 0, [{"100%s": 1, "a%": "a"}, {"100%s": 2, "a%": "no"}, {"100%s": 3, "a%": "\0"}])
    assert target.run(f'SELECT "100%s" FROM {ODD}') == [(1,)]
    letters = target.run('SELECT row, part FROM "50%s"."dead%s" ORDER BY row')
    assert letters == [('{"100%s":2,"a%":"no"}', None), ('{"100%s":3,"a%":"\\u0000"}', "writer 0")]


def test_percent_signs_in_names_of_keys_are_found_by_deletes_and_errors(dsn: str, recovery: str) -> None:
    target = Target(dsn, ODD_DDL)
    target.run(f"INSERT INTO {ODD} VALUES (1, NULL), (2, NULL)")
    sink = PostgresSink(dsn, ODD, write_mode="delete", key_columns="100%s")
    run(sink, recovery, 0, [{"100%s": 1}])
    assert target.run(f'SELECT "100%s" FROM {ODD}') == [(2,)]
    with pytest.raises(CommitRefusedError, match=r'row with key \{"100%s": 2\}'):
        run(PostgresSink(dsn, ODD, on_existing="resume"), f"{recovery}-other", 0, [{"100%s": 2, "a%": "x"}])


def test_a_null_in_a_key_is_refused_and_removes_nothing(dsn: str, tmp_path: Path) -> None:
    target = Target(dsn, "CREATE TABLE t (id bigint UNIQUE, name text, version bigint)")
    target.run("INSERT INTO t VALUES (NULL, 'a', 0)")
    gone: list[dict[str, Any]] = [{"id": None, "gone": True}]
    with pytest.raises(ValueRefusedError, match="key column 'id' is NULL"):
        run(target.sink(write_mode="upsert", key_columns="id", delete_marker="gone"), str(tmp_path / "upsert"), 0, gone)
    with pytest.raises(ValueRefusedError, match="key column 'id' is NULL"):
        run(target.sink(write_mode="delete", key_columns="id"), str(tmp_path / "delete"), 0, [{"id": None}])
    assert target.run("SELECT name FROM t") == [("a",)]


@pytest.mark.thorough
def test_two_queries_that_upsert_the_same_keys_do_not_deadlock(dsn: str, tmp_path: Path) -> None:
    target = Target(dsn, KEYED)
    ids = range(2000)
    failures: list[BaseException] = []
    meeting = threading.Barrier(2, timeout=60)

    def write(name: str, order: range) -> None:
        try:
            sink = target.sink(write_mode="upsert", key_columns="id")
            for epoch in range(3):
                values = [{"id": number, "name": name, "version": epoch} for number in order]
                run(sink, str(tmp_path / name), epoch, values)
        except BaseException as error:
            failures.append(error)
            meeting.abort()

    def meet(step: str) -> None:
        if step == "sql: publishing":
            meeting.wait()

    threads = [threading.Thread(target=write, args=args) for args in (("a", ids), ("b", ids[::-1]))]
    with listening(meet):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert failures == []
    assert target.run("SELECT count(DISTINCT id), count(*) FROM t") == [(2000, 2000)]
    assert target.run("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()") == [(0,)]


@pytest.mark.thorough
def test_the_last_row_counts_also_where_staging_is_vacuumed_while_it_is_filled(dsn: str, recovery: str) -> None:
    """Pages at the front become free in the middle of a COPY: then later rows have lower addresses."""
    target = Target(dsn, KEYED)
    local = LocalDriver(target.sink(write_mode="upsert", key_columns="id"), recovery)
    local.run_epoch(0, [rows(0)])
    (name,) = target.run("SELECT format('outfall.%I', tablename) FROM pg_tables WHERE tablename LIKE 'staging%'")[0]

    def size() -> int:
        return int(target.run("SELECT pg_relation_size(%s::regclass)", name)[0][0])

    target.run(f"ALTER TABLE {name} SET (autovacuum_enabled = false)")
    target.run(f"INSERT INTO {name} (_outfall_stage, id, name) SELECT 7, n, 'x' FROM generate_series(1, 40000) AS n")
    target.run(f"DELETE FROM {name}")
    before = size()
    batches = 0

    def vacuum(step: str) -> None:
        nonlocal batches
        batches += step == "sql: copying"
        if step == "sql: copying" and batches == 4:
            until(lambda: size() > before, "the first rows being in staging", 30)
            target.run(f"VACUUM {name}")

    def batch(first: int) -> tuple[str | None, list[Any]]:
        return None, [{"id": 1, "name": str(number)} for number in range(first, first + 20000)]

    coordinator = local.coordinator()
    ticket = coordinator.begin(1)
    with listening(vacuum):
        answer = local.run_task(ticket, 1, 0, [batch(first) for first in range(0, 80_000, 20_000)])
    coordinator.finish(ticket, [answer])
    assert target.run("SELECT name FROM t WHERE id = 1") == [("79999",)]


# --- keys that are equal without being the same


@pytest.fixture
def caseless(icu_dsn: str) -> Target:
    """A table whose key takes 'a' and 'A' for one."""
    return Target(icu_dsn, "CREATE TABLE t (name text COLLATE ci PRIMARY KEY, id bigint CHECK (id < 100))")


@pytest.mark.parametrize("dead", first(1, [None, "dead"]))
def test_the_last_row_counts_of_keys_that_the_index_takes_for_one(
    caseless: Target, recovery: str, dead: str | None
) -> None:
    sink = caseless.sink(
        write_mode="upsert", key_columns="name", order_column="id", delete_marker="gone", dead_letter_table=dead
    )
    made = [("a", 1), ("A", 3), ("b", 5), ("a", 2)] + ([("B", 100)] if dead else [])
    run(sink, recovery, 0, [{"name": name, "id": number, "gone": False} for name, number in made])
    assert caseless.run("SELECT name, id FROM t ORDER BY id") == [("A", 3), ("b", 5)]
    run(sink, recovery, 1, [{"name": "a", "id": 4, "gone": True}, {"name": "A", "id": 3, "gone": False}])
    assert caseless.run("SELECT name FROM t") == [("b",)]


def test_deletes_find_keys_that_the_index_takes_for_one(caseless: Target, recovery: str) -> None:
    caseless.run("INSERT INTO t VALUES ('a', 1), ('b', 2)")
    run(caseless.sink(write_mode="delete", key_columns="name"), recovery, 0, [{"name": "A"}, {"name": "a"}])
    assert caseless.run("SELECT name FROM t") == [("b",)]


def test_staging_compares_text_as_the_table_does(dsn: str, recovery: str) -> None:
    """Which of two keys is another, a server without ICU cannot be asked; but what staging would ask it."""
    target = Target(dsn, 'CREATE TABLE t (name text COLLATE "POSIX" PRIMARY KEY, other text)')
    run(target.sink(write_mode="upsert", key_columns="name"), recovery, 0, [{"name": "a"}])
    with PostgresConnection.connect(target.dsn) as connection:
        (staging,) = target.run("SELECT tablename FROM pg_tables WHERE tablename LIKE 'staging%'")[0]
        found = {column.name: column.collation for column in read_columns(connection, TableName("outfall", staging))}
    assert (found["name"], found["other"]) == ('pg_catalog."POSIX"', None)


@pytest.mark.parametrize("dead", first(1, [None, "dead"]))
def test_the_last_row_counts_of_numbers_that_are_one_with_different_digits(
    dsn: str, recovery: str, dead: str | None
) -> None:
    target = Target(dsn, "CREATE TABLE t (id numeric PRIMARY KEY, n bigint CHECK (n < 100))")
    sink = target.sink(write_mode="upsert", key_columns="id", dead_letter_table=dead)
    made = [("1.0", 1), ("1.00", 2), ("2.0", 3)] + ([("2.000", 100)] if dead else [])
    run(sink, recovery, 0, [{"id": number, "n": n} for number, n in made])
    run(sink, recovery, 1, [{"id": "1", "n": 4}])
    assert target.run("SELECT id::int, n FROM t ORDER BY id") == [(1, 4), (2, 3)]
