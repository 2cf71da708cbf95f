"""Which keys an index takes for equal: for offsets none that differ, for upserts those that the column does."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from outfall.errors import TargetError
from tests.integration.postgres.support import Target
from tests.integration.support.sql import first, mostly_thorough, rows, run

OFFSETS: dict[str, Any] = {"offset_columns": "topic"}
UPSERT: dict[str, Any] = {"write_mode": "upsert", "key_columns": "topic"}
SCHEMA = pa.schema({"topic": pa.string(), "id": pa.int64()})
EXACT = 'ALTER TABLE t ALTER COLUMN topic TYPE text COLLATE "C"'
BOTH = [{"topic": "a", "id": 1}, {"topic": "A", "id": 2}]


def written(target: Target, recovery: str, options: dict[str, Any]) -> list[Any]:
    sink = target.sink(**options)
    sink.check_schema(SCHEMA)
    run(sink, recovery, 0, BOTH)
    return target.run('SELECT topic, id FROM t ORDER BY topic COLLATE "C"')


def test_offsets_of_a_type_that_ignores_case_are_refused(dsn: str, recovery: str) -> None:
    target = Target(dsn, "CREATE EXTENSION citext; CREATE DOMAIN caseless AS citext")
    target.run("CREATE TABLE base (topic caseless UNIQUE, id bigint); CREATE VIEW t AS SELECT * FROM base")
    with pytest.raises(TargetError, match="the index base_topic_key of t compares distinct values of topic as equal"):
        written(target, recovery, OFFSETS)
    target.run(f"DROP VIEW t; ALTER TABLE base RENAME TO t; {EXACT}")
    assert written(target, recovery, OFFSETS) == [("A", 2), ("a", 1)]


@pytest.mark.parametrize(
    ("kind", "refused"),
    [
        ("char(3)", True),
        ("interval", True),
        ("text", False),
        ("varchar(5)", False),
        ("numeric", False),
        ("uuid", False),
    ],
)
def test_types_of_offsets_are_told_apart(dsn: str, kind: str, refused: bool) -> None:
    target = Target(dsn, f"CREATE TABLE t (topic {kind} UNIQUE, id bigint)")
    with pytest.raises(TargetError, match="distinct values of topic") if refused else nullcontext():
        target.sink(**OFFSETS).check_schema(SCHEMA)


IGNORING_CASE = [
    "CREATE TABLE t (topic text COLLATE ci UNIQUE, id bigint)",
    "CREATE TABLE t (topic text, id bigint); CREATE UNIQUE INDEX loose ON t (topic COLLATE ci)",
    "CREATE TABLE t (topic text UNIQUE, id bigint); CREATE UNIQUE INDEX loose ON t (topic COLLATE ci)",
]


@pytest.mark.parametrize("ddl", mostly_thorough(IGNORING_CASE, IGNORING_CASE[2:]))
def test_offsets_under_a_collation_that_ignores_case_are_refused(icu_dsn: str, recovery: str, ddl: str) -> None:
    target = Target(icu_dsn, ddl)
    with pytest.raises(TargetError, match=r"distinct values of topic for equal|compares topic otherwise"):
        written(target, recovery, OFFSETS)
    target.run(f"DROP INDEX IF EXISTS loose; {EXACT}; CREATE UNIQUE INDEX ON t (topic)")
    assert written(target, recovery, OFFSETS) == [("A", 2), ("a", 1)]


UNLIKE = [
    (IGNORING_CASE[1], "ALTER TABLE t ALTER COLUMN topic TYPE text COLLATE ci", [("A", 2)]),
    (IGNORING_CASE[1], "DROP INDEX loose; CREATE UNIQUE INDEX ON t (topic)", [("A", 2), ("a", 1)]),
    ('CREATE TABLE t (topic text COLLATE ci, id bigint); CREATE UNIQUE INDEX ON t (topic COLLATE "C")', EXACT,
     [("A", 2), ("a", 1)]),
]  # fmt: skip


@pytest.mark.parametrize(("ddl", "do", "found"), first(1, UNLIKE))
def test_an_index_that_compares_keys_otherwise_than_their_column_is_refused(
    icu_dsn: str, recovery: str, ddl: str, do: str, found: list[Any]
) -> None:
    target = Target(icu_dsn, ddl)
    with pytest.raises(TargetError, match="compares topic differently from the column"):
        written(target, recovery, UPSERT)
    target.run(do)
    assert written(target, recovery, UPSERT) == found


@pytest.mark.parametrize("dead", mostly_thorough([None, "dead"], [None]))
def test_rows_whose_keys_a_trigger_makes_equal_are_named_with_the_trigger(
    dsn: str, recovery: str, dead: str | None
) -> None:
    target = Target(dsn, "CREATE TABLE t (id bigint PRIMARY KEY, name text)")
    target.run(
        "CREATE FUNCTION round_off() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN NEW.id := NEW.id - NEW.id % 100; RETURN NEW; END $$;"
        " CREATE TRIGGER hundreds BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION round_off()"
    )
    sink = target.sink(write_mode="upsert", key_columns="id", dead_letter_table=dead)
    made = rows(*range(0, 5000, 100), 77, *range(5000, 9000, 100))
    with pytest.raises(TargetError, match=r'\{"id": 0\}.* and .*\{"id": 77\}.*Trigger hundreds changes') as failed:
        run(sink, recovery, 0, made)
    assert isinstance(failed.value.__cause__, psycopg.errors.CardinalityViolation)
    assert target.ids() == []
    target.run("DROP TRIGGER hundreds ON t")
    run(sink, recovery, 0, made)
    assert target.ids() == sorted(row["id"] for row in made)
