"""Staging that is gone or does not fit what is recorded: the epoch is written anew where nothing is published."""

from __future__ import annotations

import threading
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import psycopg
import pytest

from outfall.errors import FencedError, OutfallError, TargetError, TargetLostError, TerminalError
from outfall.postgres import dialect
from outfall.testing.crash_points import crash_at
from tests.integration.postgres.support import Target
from tests.integration.support.sql import first, listening, mostly_thorough, rows, run
from tests.integration.support.waiting import until

MOMENTS = ["after PREPARED", "after COMMITTING"]
UPSERT = {"write_mode": "upsert", "key_columns": "id"}
DELETE = {"write_mode": "delete", "key_columns": "id"}


@pytest.fixture
def target(dsn: str) -> Target:
    return Target(dsn, "CREATE TABLE t (id bigint PRIMARY KEY, name text)")


def staging(target: Target) -> str:
    ((name,),) = target.run("SELECT tablename FROM pg_tables WHERE tablename LIKE 'staging%%'")
    return f'outfall."{name}"'


def die(target: Target, recovery: str, moment: str, **options: Any) -> None:
    """Write an epoch of two tasks and die before it is published."""
    with crash_at(moment) as seen:
        run(target.sink(**options), recovery, 0, rows(1, 2), rows(3))
    assert moment in seen


@pytest.mark.parametrize(
    ("moment", "change"),
    first(
        1,
        [
            ("after PREPARED", "DROP TABLE {0}"),
            ("after COMMITTING", "ALTER TABLE {0} DROP COLUMN name"),
            ("after COMMITTING", "ALTER TABLE t ALTER name TYPE jsonb USING to_jsonb(name)"),
            pytest.param("after COMMITTING", "DROP TABLE {0}", marks=pytest.mark.thorough),
            pytest.param("after PREPARED", "ALTER TABLE {0} DROP COLUMN _outfall_stage", marks=pytest.mark.thorough),
            pytest.param("after COMMITTING", "ALTER TABLE {0} ALTER id TYPE text", marks=pytest.mark.thorough),
        ],
    ),
)
def test_staging_that_does_not_fit_what_is_recorded_is_a_loss(
    target: Target, recovery: str, moment: str, change: str
) -> None:
    die(target, recovery, moment)
    target.run(change.format(staging(target)))
    written = [{"id": number, "name": f'"{number}"'} for number in (1, 2, 3)]
    assert not run(target.sink(), recovery, 0, written).skipped
    run(target.sink(), recovery, 1, [{"id": 4, "name": "4"}])
    assert (target.ids(), target.attempts(), target.staged()) == ([1, 2, 3, 4], 0, 0)


ALTERED: list[tuple[dict[str, Any], str, dict[str, Any]]] = [
    ({}, "ALTER TABLE t DROP COLUMN name", {}),
    (UPSERT, "ALTER TABLE t DROP COLUMN name", {}),
    ({"dead_letter_table": "dead"}, "ALTER TABLE t RENAME COLUMN name TO label", {"label": "x"}),
    ({}, "ALTER TABLE t DROP COLUMN name, ADD COLUMN name text GENERATED ALWAYS AS ('x') STORED", {}),
    ({}, "ALTER TABLE t ALTER COLUMN name TYPE integer USING 7", {"name": 7}),
    ({}, "ALTER TABLE t ADD COLUMN more text", {"name": "x"}),
    ({}, "ALTER TABLE t ADD COLUMN more text NOT NULL", {"name": "x", "more": "y"}),
    ({"dead_letter_table": "dead"}, "ALTER TABLE t ADD COLUMN more text NOT NULL", {"name": "x", "more": "y"}),
    (DELETE, "ALTER TABLE t DROP COLUMN name", {}),
]


@pytest.mark.parametrize(
    ("moment", "options", "change", "written"),
    first(
        1,
        [
            # By default every other change, at one moment and the other in turn.
            pytest.param(moment, *case, marks=[] if number % 4 == 2 * late else pytest.mark.thorough)
            for number, case in enumerate(ALTERED)
            for late, moment in enumerate(MOMENTS)
        ],
    ),
)
def test_a_table_that_was_altered_under_a_recorded_epoch_gets_it_once_from_a_query_that_was_changed_to_match(
    target: Target, recovery: str, moment: str, options: dict[str, Any], change: str, written: dict[str, Any]
) -> None:
    die(target, recovery, moment, **options)
    if options == DELETE:
        target.run("INSERT INTO t VALUES (0), (1), (2), (3)")
    target.run(change)
    run(
        target.sink(**options), recovery, 0, *([{"id": number} | written for number in task] for task in ((1, 2), (3,)))
    )
    assert target.ids() == ([0] if options == DELETE else [1, 2, 3])
    assert (target.attempts(), target.staged()) == (0, 0)


def test_a_table_that_was_altered_under_a_recorded_epoch_stops_a_query_that_was_not_changed(
    target: Target, recovery: str
) -> None:
    die(target, recovery, "after PREPARED")
    target.run("ALTER TABLE t RENAME COLUMN name TO label")
    for _ in range(2):
        with pytest.raises(TerminalError, match="has no column 'name'"):
            run(target.sink(), recovery, 0, rows(1, 2), rows(3))
    target.run("ALTER TABLE t RENAME COLUMN label TO name")
    run(target.sink(), recovery, 0, rows(1, 2), rows(3))
    assert target.run("SELECT * FROM t ORDER BY 1") == [(1, "n1"), (2, "n2"), (3, "n3")]


MOMENT = datetime(2026, 1, 1, 0, 0, 0, 600_000, UTC)
NARROWED: list[tuple[str, str, list[Any]]] = [
    ("numeric", "integer", [Decimal("1.25"), Decimal("7.75")]),
    ("timestamptz", "timestamptz(0)", [MOMENT]),
    ("text", '"char"', ["abc"]),
]


@pytest.mark.parametrize(("former", "narrower", "values"), first(1, NARROWED), ids=[each[1] for each in NARROWED])
@pytest.mark.parametrize("options", first(1, mostly_thorough([{}, UPSERT, {"dead_letter_table": "dead"}], [{}])))
def test_a_type_that_was_narrowed_under_a_recorded_epoch_changes_no_value(
    dsn: str, recovery: str, former: str, narrower: str, values: list[Any], options: dict[str, Any]
) -> None:
    target = Target(dsn, f"CREATE TABLE t (id bigint PRIMARY KEY, value {former})")
    written = [{"id": number, "value": value} for number, value in enumerate(values)]
    with crash_at("after COMMITTING"):
        run(target.sink(**options), recovery, 0, written)
    target.run(f"ALTER TABLE t ALTER COLUMN value TYPE {narrower}")
    kept = {name: option for name, option in options.items() if name != "dead_letter_table"}
    with pytest.raises(OutfallError, match="value"):
        run(target.sink(**kept), recovery, 0, written)
    assert target.ids() == []
    target.run(f"ALTER TABLE t ALTER COLUMN value TYPE {former}")
    run(target.sink(**options), recovery, 0, written)
    run(target.sink(**options), recovery, 1, [{"id": 9, "value": None}])
    found = target.run("SELECT id, value FROM t ORDER BY id")
    assert found == [*enumerate(values), (9, None)]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("former", "wider"),
    mostly_thorough(
        [("integer", "bigint"), ("varchar(3)", "text"), ("varchar(3)", "varchar(9)"), ("numeric(5,2)", "numeric"),
         ("timestamp(3)", "timestamp")],
        [("integer", "bigint"), ("varchar(3)", "varchar(9)")],
    ),
)  # fmt: skip
def test_a_type_that_was_widened_takes_the_rows_of_a_recorded_epoch_as_they_are(
    dsn: str, recovery: str, former: str, wider: str
) -> None:
    target = Target(dsn, f"CREATE TABLE t (id bigint, value {former})")
    with crash_at("after PREPARED"):
        run(target.sink(), recovery, 0, [{"id": 1, "value": None}])
    target.run(f"ALTER TABLE t ALTER COLUMN value TYPE {wider}")
    assert run(target.sink(), recovery, 0, []).skipped
    assert target.ids() == [1]


def test_a_collation_that_was_changed_under_a_recorded_epoch_merges_no_keys(icu_dsn: str, recovery: str) -> None:
    target = Target(icu_dsn, "CREATE TABLE t (id text COLLATE ci PRIMARY KEY, name text)")
    written = [{"id": "a", "name": "x"}, {"id": "A", "name": "y"}]
    with crash_at("after COMMITTING"):
        run(target.sink(**UPSERT), recovery, 0, written)
    target.run('ALTER TABLE t ALTER COLUMN id TYPE text COLLATE "C"')
    run(target.sink(**UPSERT), recovery, 0, written)
    assert target.run("SELECT id FROM t ORDER BY 1") == [("A",), ("a",)]


def test_a_table_that_is_altered_under_a_task_stores_nothing_of_it(dsn: str, recovery: str) -> None:
    target = Target(dsn, "CREATE TABLE t (id bigint PRIMARY KEY, at timestamptz)")
    sink = target.sink(offset_columns="id")
    written = [{"id": 1, "at": MOMENT}]

    def alter(step: str) -> None:
        if step == "sql: publishing":
            target.run("ALTER TABLE t ALTER COLUMN at TYPE timestamptz(0)")

    with listening(alter), pytest.raises(TerminalError, match="changed after this epoch began"):
        run(sink, recovery, 0, written)
    assert target.ids() == []
    target.run("ALTER TABLE t ALTER COLUMN at TYPE timestamptz")
    run(sink, recovery, 0, written)
    assert target.run("SELECT id, at FROM t") == [(1, MOMENT)]


def test_nobody_alters_a_table_whose_rows_a_task_encodes(
    target: Target, recovery: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder, tried = dialect.CopyEncoder, []  # type: ignore[attr-defined]

    def alter(*given: Any) -> Any:
        tried.append(given)
        with pytest.raises(psycopg.errors.LockNotAvailable):
            target.run("SET lock_timeout = '100ms'; ALTER TABLE t ALTER COLUMN id TYPE integer")
        return encoder(*given)

    monkeypatch.setattr(dialect, "CopyEncoder", alter)
    sink = target.sink(parts=1, offset_keys="ledger")
    run(sink, recovery, 0, [("key", row) for row in rows(1)])
    assert tried
    assert target.ids() == [1]


def test_another_key_writes_a_recorded_epoch_anew(target: Target, recovery: str) -> None:
    """What is staged has no value for it: all rows would be one."""
    target.run("ALTER TABLE t ADD COLUMN code bigint UNIQUE")
    die(target, recovery, "after PREPARED", **UPSERT)
    coded = [{"id": number, "name": "x", "code": number} for number in (1, 2, 3)]
    run(target.sink(write_mode="upsert", key_columns="code"), recovery, 0, coded)
    assert target.run("SELECT id, code FROM t ORDER BY 1") == [(1, 1), (2, 2), (3, 3)]


@pytest.mark.parametrize("moment", mostly_thorough(MOMENTS, MOMENTS[1:]))
def test_another_write_mode_writes_a_recorded_epoch_anew(target: Target, recovery: str, moment: str) -> None:
    die(target, recovery, moment)
    assert not run(target.sink(**UPSERT), recovery, 0, rows(1, 2), rows(3)).skipped
    run(target.sink(**UPSERT), recovery, 1, rows(3, 4))
    assert target.ids() == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("first", "moment"),
    first(
        1,
        [
            ("after PREPARED", "sql: revoked"),
            ("after COMMITTING", "after ABANDONED"),
            pytest.param("after COMMITTING", "after revoke", marks=pytest.mark.thorough),
        ],
    ),
)
def test_a_driver_that_dies_while_it_gives_an_epoch_up_is_followed_by_one_that_does(
    target: Target, recovery: str, first: str, moment: str
) -> None:
    """Of two attempts one is lost."""
    die(target, recovery, first)
    target.run(f"DELETE FROM {staging(target)} WHERE id = 3")
    with crash_at(moment) as seen:
        run(target.sink(), recovery, 0, rows(1, 2), rows(3))
    assert moment in seen
    assert not run(target.sink(), recovery, 0, rows(1, 2), rows(3)).skipped
    assert target.ids() == [1, 2, 3]


def test_an_older_driver_cannot_publish_rows_that_a_newer_one_took_for_lost(target: Target, recovery: str) -> None:
    """The older one sleeps in front of its commit; to the newer, with other options, its staging is none."""
    asleep, wake = threading.Event(), threading.Event()
    ends: list[BaseException] = []

    def sleep(step: str) -> None:
        if step == "before commit" and threading.current_thread() is thread:
            asleep.set()
            assert wake.wait(60)

    def older() -> None:
        try:
            run(target.sink(), recovery, 0, rows(1))
        except OutfallError as error:
            ends.append(error)

    thread = threading.Thread(target=older)
    with listening(sleep):
        thread.start()
        until(asleep.is_set, "the older driver at its commit", 60)
        with crash_at("after ABANDONED"):
            run(target.sink(**UPSERT), recovery, 0, rows(1))
        wake.set()
        thread.join(60)
    assert [type(end) for end in ends] == [FencedError]
    assert target.ids() == []
    run(target.sink(**UPSERT), recovery, 0, rows(1))
    assert target.ids() == [1]


@pytest.mark.parametrize(
    ("moment", "options"),
    [
        ("after PREPARED", {}),
        pytest.param("after COMMITTING", {"dead_letter_table": "dead"}, marks=pytest.mark.thorough),
    ],
)
def test_another_metadata_schema_is_named(target: Target, recovery: str, moment: str, options: dict[str, Any]) -> None:
    die(target, recovery, moment)
    run(target.sink(metadata_schema="other"), f"{recovery}-other", 0, rows(9))
    for schema in ("other", "missing"):
        with pytest.raises(TargetLostError, match="set metadata_schema to 'outfall' again"):
            run(target.sink(metadata_schema=schema, **options), recovery, 0, rows(1, 2), rows(3))
    run(target.sink(**options), recovery, 0, rows(1, 2), rows(3))
    assert target.ids() == [1, 2, 3, 9]


def test_a_metadata_schema_that_was_dropped_is_told(target: Target, recovery: str) -> None:
    die(target, recovery, "after PREPARED")
    target.run("DROP SCHEMA outfall CASCADE")
    with pytest.raises(TargetLostError, match="The ledger was emptied or dropped"):
        run(target.sink(), recovery, 0, rows(1, 2), rows(3))
    assert target.ids() == []


def test_a_look_at_staging_without_the_right_to_it_is_explained(target: Target, recovery: str) -> None:
    die(target, recovery, "after PREPARED")
    name = f"reader_{target.dsn.rsplit('_', 1)[-1][:12]}"
    target.run(f"CREATE ROLE {name} LOGIN")
    try:
        with pytest.raises(TargetError, match=r"(?s)reading staging of t.*42501.*grant the privilege"):
            run(target.sink(dsn=f"{target.dsn} user={name}"), recovery, 0, rows(1))
    finally:
        target.run(f"DROP ROLE {name}")
