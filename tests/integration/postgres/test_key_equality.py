"""Which keys an index takes for equal: for offsets none that differ, for upserts those that the column does."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from outfall.errors import TargetError, ValueRefusedError
from outfall.postgres import PostgresSink
from outfall.postgres.staging.load import StagingCopy
from outfall.testing.crash_points import crash_at
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
    with pytest.raises(TargetError, match=r"distinct values of topic as equal|compares topic differently"):
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


_MODES: dict[str, dict[str, Any]] = {
    "upsert": {"write_mode": "upsert"},
    "marker": {"write_mode": "upsert", "delete_marker": "gone"},
    "columns": {"write_mode": "upsert", "delete_marker": "gone", "update_columns": "name"},
    "delete": {"write_mode": "delete"},
}
_KEYED: list[dict[str, Any]] = [
    {"id": 1, "part": None, "name": "a"}, {"id": 1, "part": None, "name": "b"}, {"id": 1, "part": 1, "name": "c"},
    {"id": 2, "part": None, "name": "d"},
]  # fmt: skip


@pytest.mark.parametrize("dead", mostly_thorough([None, "dead"], [None]))
@pytest.mark.parametrize("mode", mostly_thorough([*_MODES], ["marker"]))
def test_nulls_in_keys_are_equal_where_the_index_says_so(dsn: str, recovery: str, mode: str, dead: str | None) -> None:
    """One epoch is as an epoch for each row."""
    made: list[dict[str, Any]] = _KEYED
    if "gone" in _MODES[mode].values():
        made = [row | {"gone": row["id"] == 2} for row in made] + [made[0] | {"gone": True}, made[1] | {"gone": False}]
    if dead and mode != "delete":
        made = [*made, made[2] | {"name": "bad"}]
    found = []
    for name, epochs in (("t", [made]), ("alone", [[row] for row in made])):
        target = Target(dsn, f"CREATE TABLE {name} (id bigint, part bigint, name text CHECK (name <> 'bad'))")
        target.run(f"CREATE UNIQUE INDEX ON {name} (part, id) NULLS NOT DISTINCT")
        target.run(f"INSERT INTO {name} VALUES (1, 1, 'old'), (2, NULL, 'old'), (3, NULL, 'old')")
        sink = PostgresSink(dsn, name, key_columns="id, part", dead_letter_table=dead, **_MODES[mode])
        for epoch, rows_of in enumerate(epochs):
            run(sink, f"{recovery}/{name}", epoch, rows_of)
        found.append(target.run(f"SELECT * FROM {name} ORDER BY 1, 2"))
    left = [(1, 1, "c"), (1, None, "b"), (2, None, "d"), (3, None, "old")]
    expected = {"upsert": left, "delete": [(3, None, "old")]}.get(mode, [row for row in left if row[0] != 2])
    assert found == [expected, expected]


@pytest.mark.parametrize("mode", mostly_thorough([*_MODES, "changes"], ["upsert", "delete"]))
def test_a_null_in_a_key_is_rejected_where_each_is_another(dsn: str, recovery: str, mode: str) -> None:
    changes: dict[str, Any] = {"write_mode": "changes", "operation_column": "op", "sequence_column": "seq"}
    options = _MODES.get(mode, changes) | {"key_columns": "id, part"}
    nulls = " NULLS NOT DISTINCT" if mode == "changes" else ""
    target = Target(dsn, "CREATE TABLE t (id bigint, part bigint, name text, seq bigint)")
    target.run(f"CREATE UNIQUE INDEX ON t (id, part){nulls}; INSERT INTO t VALUES (1, NULL, 'old', 0)")
    extra: dict[str, list[Any]] = {
        "changes": [("op", "u"), ("seq", 1)],
        "marker": [("gone", False)],
        "columns": [("gone", True)],
    }
    made = [row | dict(extra.get(mode, [])) for row in [_KEYED[2], *_KEYED[:2]]]
    with pytest.raises(ValueRefusedError, match="key column 'part' is NULL") as refused:
        run(target.sink(**options), f"{recovery}/1", 0, made)
    assert "NULLS NOT DISTINCT" in str(refused.value) or mode == "changes"
    assert target.run("SELECT name FROM t") == [("old",)]
    run(target.sink(dead_letter_table="dead", **options), f"{recovery}/2", 0, made)
    left = [("old",)] if mode in ("delete", "columns") else [("c",), ("old",)]
    assert target.run("SELECT name FROM t ORDER BY 1") == left
    assert target.run("SELECT row::json ->> 'name' FROM dead ORDER BY 1") == [("a",), ("b",)]


def test_rows_that_an_earlier_release_has_staged_with_a_null_in_their_key_are_all_kept(
    dsn: str, recovery: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by an epoch for each: no other row has their key."""
    target = Target(dsn, "CREATE TABLE t (id bigint, part bigint, name text, UNIQUE (id, part))")
    sink = target.sink(write_mode="upsert", key_columns="id, part")
    monkeypatch.setattr(StagingCopy, "problems", lambda *_: {})
    with crash_at("after COMMITTING"):
        run(sink, recovery, 0, [*_KEYED, _KEYED[2] | {"name": "e"}])
    run(sink, recovery, 0, [])
    assert target.run("SELECT name FROM t ORDER BY 1") == [("a",), ("b",), ("d",), ("e",)]


@pytest.mark.thorough
def test_a_partial_index_without_nulls_keeps_each_row_with_one(dsn: str, recovery: str) -> None:
    target = Target(dsn, "CREATE TABLE t (id bigint, part bigint, name text)")
    target.run("CREATE UNIQUE INDEX ON t (id, part) WHERE part IS NOT NULL")
    options: dict[str, Any] = {"write_mode": "upsert", "key_columns": "id, part", "conflict_where": "part IS NOT NULL"}
    sink = target.sink(delete_marker="gone", **options)
    run(sink, recovery, 0, [row | {"gone": False} for row in [*_KEYED, _KEYED[2] | {"name": "e"}]])
    assert target.run("SELECT name FROM t ORDER BY 1") == [("a",), ("b",), ("d",), ("e",)]
    with pytest.raises(ValueRefusedError, match="key column 'part' is NULL"):
        run(sink, recovery, 1, [_KEYED[0] | {"gone": True}])
