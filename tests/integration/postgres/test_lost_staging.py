"""Staging that is gone or does not fit what is recorded: the epoch is written anew where nothing is published."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from outfall.errors import FencedError, OutfallError, TargetError, TargetLostError, TerminalError
from outfall.testing.crash_points import crash_at
from tests.integration.postgres.support import Target, listening, mostly_thorough, rows, run
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
    [
        ("after PREPARED", "DROP TABLE {0}"),
        ("after COMMITTING", "ALTER TABLE {0} DROP COLUMN name"),
        ("after COMMITTING", "ALTER TABLE t ALTER name TYPE jsonb USING to_jsonb(name)"),
        pytest.param("after COMMITTING", "DROP TABLE {0}", marks=pytest.mark.thorough),
        pytest.param("after PREPARED", "ALTER TABLE {0} DROP COLUMN _outfall_stage", marks=pytest.mark.thorough),
        pytest.param("after COMMITTING", "ALTER TABLE {0} ALTER id TYPE text", marks=pytest.mark.thorough),
    ],
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
    [
        # By default every other change, at one moment and the other in turn.
        pytest.param(moment, *case, marks=[] if number % 4 == 2 * late else pytest.mark.thorough)
        for number, case in enumerate(ALTERED)
        for late, moment in enumerate(MOMENTS)
    ],
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


def test_staging_that_is_gone_once_its_rows_are_published_is_no_loss(target: Target, recovery: str) -> None:
    die(target, recovery, "after commit")
    target.run(f"DROP TABLE {staging(target)}")
    assert run(target.sink(), recovery, 0, rows(1, 2), rows(3)).skipped
    run(target.sink(), recovery, 1, rows(4))
    assert target.ids() == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("first", "moment"),
    [
        ("after PREPARED", "postgres: revoked"),
        ("after COMMITTING", "after ABANDONED"),
        pytest.param("after COMMITTING", "after revoke", marks=pytest.mark.thorough),
    ],
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
