"""The table that epochs are written to: what it holds at first, who may write it, and what becomes of it."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from psycopg.conninfo import make_conninfo

from outfall.errors import (
    TargetError,
    TargetLostError,
    TargetNotEmptyError,
)
from outfall.postgres import PostgresSink
from outfall.testing import LocalDriver
from outfall.testing.crash_points import crash_at
from tests.integration.postgres.support import Target
from tests.integration.support.sql import first, listening, mostly_thorough, rows, run

# --- batch jobs that are never resumed


# --- copies of databases and checkpoints


def test_a_missing_right_is_told_with_the_way_out(
    dsn: str, role: str, recovery: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("outfall.postgres.staging.truncation._TRUNCATE_BYTES", 1)
    target = Target(dsn)
    target.run(f"GRANT INSERT, SELECT ON t TO {role}")
    poor = psycopg.conninfo.make_conninfo(target.dsn, user=role)
    with pytest.raises(TargetError, match=r"Permission denied.*ddl\(\)"):
        run(target.sink(dsn=poor), recovery, 0, rows(1))
    target.run(target.sink().ddl())
    target.run(f"GRANT USAGE ON SCHEMA outfall TO {role}")
    target.run(f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA outfall TO {role}")
    run(target.sink(dsn=poor, create_staging="never"), recovery, 0, rows(1))
    assert target.ids() == [1]
    assert target.staged() == 0  # by DELETE, without the privilege TRUNCATE


@pytest.mark.parametrize("options", [{}, {"parts": 2, "offset_keys": "ledger"}], ids=["epoch", "parts"])
def test_who_may_only_insert_needs_no_more_to_append(
    dsn: str, role: str, recovery: str, options: dict[str, Any]
) -> None:
    target = Target(dsn)
    target.run(f"GRANT INSERT ON t TO {role}; CREATE SCHEMA outfall AUTHORIZATION {role}")
    sink: Any = target.sink(dsn=psycopg.conninfo.make_conninfo(target.dsn, user=role), **options)
    assert "INSERT on t granted" in sink.check_connection()
    sink.check_schema(pa.schema({"id": pa.int64(), "name": pa.string()}))
    made = rows(1, 2)
    run(sink, recovery, 0, [("k", row) for row in made] if options else made)
    assert target.ids() == [1, 2]
    # Only for a table that this step wrote to it is to be looked whether rows are left.
    shutil.rmtree(recovery)
    with pytest.raises(TargetError, match="Permission denied for table t"):
        run(sink, recovery, 0, [])


@pytest.mark.parametrize(
    "options",
    first(
        1,
        mostly_thorough(
            [{}, {"write_mode": "upsert", "key_columns": "id"}, {"offset_columns": "id"}, {"parts": 2}],
            [{}, {"parts": 2}],
        ),
    ),
)
@pytest.mark.parametrize(
    "moment",
    mostly_thorough(["before BEGIN", "after open target", "before COMPLETED"], ["after open target"]),
)
def test_a_table_that_is_created_before_the_target_in_the_search_path_gets_no_rows(
    dsn: str, recovery: str, options: dict[str, Any], moment: str
) -> None:
    """Such as one in a schema with the name of the user."""
    columns = '(id bigint PRIMARY KEY, name text, partition_id int, "offset" bigint)'
    target = Target(dsn, f"CREATE TABLE t {columns}")
    path = make_conninfo(dsn, options="-csearch_path=nearer,public")
    sink = target.sink(dsn=path, **options)

    def shadow(step: str) -> None:
        if step == moment and under_way == 1:
            target.run(f"CREATE SCHEMA nearer; CREATE TABLE nearer.t {columns}")

    driver = LocalDriver(sink, recovery)
    with listening(shadow):
        for under_way in range(3):
            made = rows(under_way)
            driver.run_epoch(under_way, [[("k", row) for row in made] if "parts" in options else made])
    assert target.run("SELECT id FROM public.t ORDER BY id") == [(0,), (1,), (2,)]
    assert target.run("SELECT id FROM nearer.t") == []
    # A run that starts now means the other one, which has nothing of it.
    with pytest.raises(TargetLostError):
        run(target.sink(dsn=path, **options), recovery, 3)
    assert target.run("SELECT id FROM nearer.t") == []


def test_odd_names_are_quoted(dsn: str, recovery: str) -> None:
    target = Target(dsn)
    target.run('CREATE SCHEMA "My Schema"; CREATE TABLE "My Schema"."select ""T""" ("user" bigint, "a b" text)')
    sink = PostgresSink(dsn, '"My Schema"."select ""T"""', metadata_schema="Odd one")
    run(sink, recovery, 0, [{"user": 1, "a b": "x"}])
    assert target.run('SELECT * FROM "My Schema"."select ""T"""') == [(1, "x")]


def tenants(dsn: str) -> tuple[Target, str, str]:
    """Two schemas with a table `t` each, and the DSNs whose search paths find the one or the other."""
    target = Target(dsn, "CREATE SCHEMA a; CREATE TABLE a.t (id bigint, name text)")
    target.run("CREATE SCHEMA b; CREATE TABLE b.t (id text, name text, more text)")
    first, second = (make_conninfo(dsn, options=f"-csearch_path={schema}") for schema in "ab")
    return target, first, second


def test_tables_of_one_name_in_two_schemas_do_not_meet(dsn: str, recovery: str) -> None:
    target, first, second = tenants(dsn)
    with crash_at("after PREPARED"):
        run(PostgresSink(first, "t"), recovery, 0, rows(1))
    for epoch in range(2):
        run(PostgresSink(second, "t"), f"{recovery}-b", epoch, [{"id": str(epoch), "name": "b"}])
    assert run(PostgresSink(first, "t"), recovery, 0, rows(1)).skipped
    run(PostgresSink(first, "t"), recovery, 1, rows(2))
    assert target.run("SELECT id FROM a.t ORDER BY 1") == [(1,), (2,)]
    assert target.run("SELECT id FROM b.t ORDER BY 1") == [("0",), ("1",)]
    assert len(target.run("SELECT tablename FROM pg_tables WHERE tablename LIKE 'staging%%'")) == 2


@pytest.mark.parametrize("options", first(1, [{}, {"parts": 1, "offset_keys": "ledger"}]))
def test_what_another_schema_holds_is_no_lost_checkpoint(dsn: str, recovery: str, options: dict[str, Any]) -> None:
    target, first, second = tenants(dsn)
    target.run("INSERT INTO b.t VALUES ('x')")

    def start(where: str, checkpoint: str, made: Sequence[Any]) -> None:
        run(PostgresSink(where, "t", **options), f"{recovery}-{checkpoint}", 0, made if not options else [("k", *made)])

    start(first, "a", rows(1))
    start(second, "b", [{"id": "1", "name": "b"}])
    for where in (first, second):
        with pytest.raises(TargetNotEmptyError, match="under another checkpoint"):
            start(where, "lost", rows(2))
    assert target.run("SELECT id FROM b.t ORDER BY 1") == [("1",), ("x",)]
