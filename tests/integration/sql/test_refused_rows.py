"""Rows that a column or the table refuses: named by their key, or set aside as dead letters beside the others."""

from __future__ import annotations

import traceback

import pytest

from outfall.errors import CommitRefusedError, OutfallError, TargetError, ValueRefusedError
from outfall.metrics.step_status import read_status
from outfall.protocol.commit_retry import CommitPolicy
from outfall.protocol.step import EpochOptions
from outfall.recovery import history
from outfall.recovery.url import recovery_config
from outfall.testing import LocalDriver
from outfall.testing.crash_points import crash_at
from outfall.testing.recovery_contract import once_at
from tests.integration.support.sql import THOROUGH, Make, first, mostly_thorough, rows, run

CHECKED = "CREATE TABLE t (id smallint PRIMARY KEY, name text, CHECK (id <> 2))"
"""Refuses the id 2 when it is published, and ids above 32,767 when they are staged."""
LONG = 70_000


@pytest.mark.thorough
def test_no_more_of_a_row_is_told_than_log_rows_permits(
    make: Make, recovery: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither by the server's message, nor by a cause in the traceback."""
    for log_rows in ("none", "keys", "full"):
        target = make("CREATE TABLE t (id bigint PRIMARY KEY, name varchar(20) UNIQUE)")
        refused = [{"id": number, "name": "Ringelnatz"} for number in (4711, 4712)]
        caplog.clear()
        with caplog.at_level("DEBUG"), pytest.raises(OutfallError) as caught:
            run(target.sink(log_rows=log_rows), f"{recovery}-{log_rows}", 0, [{"id": 1, "name": None}, *refused])
        told = "".join(traceback.format_exception(caught.value)) + caplog.text
        assert ("Ringelnatz" in told) == (log_rows == "full")
        assert ("471" in told) == (log_rows != "none")


def test_dead_letters_hold_the_whole_row_whatever_is_logged(make: Make, recovery: str) -> None:
    target = make("CREATE TABLE t (id bigint, name varchar(20), CHECK (name <> 'Ringelnatz €'))")
    sink = target.sink(log_rows="none", dead_letter_table="dead", max_dead_letters=1)
    run(sink, recovery, 0, [{"id": 1, "name": "Ringelnatz €"}])
    ((row, _),) = target.letters()
    assert row == {"id": 1, "name": "Ringelnatz €"}
    more = [{"id": number, "name": "Ringelnatz €"} for number in (2, 3)]
    with pytest.raises(OutfallError, match="more than 1 rows") as caught:
        run(sink, recovery, 1, more)
    assert "Ringelnatz" not in "".join(traceback.format_exception(caught.value))


def test_rows_that_are_dropped_for_one_that_is_refused_are_counted_and_end_the_guarantee(
    make: Make, recovery: str
) -> None:
    target = make(CHECKED)
    with pytest.raises(CommitRefusedError) as caught:
        run(target.sink(), recovery, 0, rows(1, 2, 3))
    assert "dead_letter_table" in str(caught.value)
    assert "drop" not in str(caught.value)
    dropping = EpochOptions(commit=CommitPolicy(on_known_failure="drop"))
    LocalDriver(target.sink(), recovery, options=dropping).run_epoch(0, [rows(1, 2, 3)])
    run(target.sink(), recovery, 1, rows(4))
    assert target.ids() == [4]
    assert [(epoch.rows, epoch.dropped) for epoch in history(recovery)] == [(3, 3), (0, 0), (1, 0)]
    status = read_status(recovery_config(recovery), "sink", last=0)
    assert (status.dropped_rows, status.guarantee) == (3, "NONE")


def test_letters_say_where_and_why_and_the_others_go_through(make: Make, recovery: str) -> None:
    target = make(CHECKED)
    result = run(target.sink(dead_letter_table="dead"), recovery, 0, rows(1, 2, 3), rows(4, LONG))
    assert target.ids() == [1, 3, 4]
    assert result.counts["dead_letters"] == 2
    published, staged = sorted(target.letters("reason, code, step, epoch, part"), key=lambda letter: letter[0]["id"])
    assert published[0] == {"id": 2, "name": "n2"}
    assert published[2:] == (target.codes["check"], "sink", 0, None)
    assert staged[0] == {"id": LONG, "name": f"n{LONG}"}
    assert staged[2:] == ("not_convertible", "sink", 0, "writer 1")
    assert all(letter[1] for letter in (published, staged))
    assert (target.attempts(), target.count(target.own("refused"))) == (0, 0)


@pytest.mark.parametrize("bad", first(1, [[LONG, LONG + 1, LONG + 2], [1, 1, 1]]), ids=["staging", "publishing"])
def test_more_than_the_limit_fail_the_epoch(make: Make, recovery: str, bad: list[int]) -> None:
    """Of two rows with one key one goes through."""
    target = make(CHECKED)
    target.run("INSERT INTO t VALUES (1, 'there')")
    with pytest.raises(ValueRefusedError, match=r"more than 2 rows.*max_dead_letters"):
        run(target.sink(dead_letter_table="dead", max_dead_letters=2), recovery, 0, rows(*bad, 5, 5))
    assert target.ids() == [1]
    run(target.sink(dead_letter_table="dead", max_dead_letters=4), recovery, 0, rows(*bad, 5, 5))
    assert target.ids() == [1, 5]
    assert target.refused_ids() == sorted([*bad, 5])


def test_the_limit_holds_for_the_tasks_of_an_epoch_together(make: Make, recovery: str) -> None:
    target = make(CHECKED)
    bad = [rows(*(LONG * task + number for number in range(3))) for task in (1, 2)]
    strict, patient = (target.sink(dead_letter_table="dead", max_dead_letters=most) for most in (5, 6))
    with pytest.raises(ValueRefusedError, match=r"more than 5 rows of this epoch .* among them a row.*max_dead_"):
        run(strict, recovery, 0, *bad)
    # Nothing is recorded, so that rows that were corrected at their source are written.
    with crash_at("after PREPARED"):
        run(patient, recovery, 0, *bad, rows(1))
    with pytest.raises(ValueRefusedError, match="more than 5 rows of this epoch"):
        run(strict, recovery, 0, *bad, rows(1))
    assert (target.count("t"), target.count("dead")) == (0, 0)
    assert run(patient, recovery, 0, *bad, rows(1)).skipped
    assert (target.count("t"), target.count("dead")) == (1, 6)


def test_dead_letters_may_be_asked_for_after_an_epoch_was_refused(make: Make, recovery: str) -> None:
    """What is recorded is published then, and the tasks do not run again."""
    target = make(CHECKED)
    with pytest.raises(CommitRefusedError, match="set dead_letter_table"):
        run(target.sink(), recovery, 0, rows(1, 2, 3))
    assert run(target.sink(dead_letter_table="dead"), recovery, 0, rows(1, 2, 3)).skipped
    assert (target.ids(), target.refused_ids()) == ([1, 3], [2])


def test_a_dba_may_make_the_table_for_letters_with_columns_of_their_own(make: Make, recovery: str) -> None:
    """Also after a driver died."""
    target = make(CHECKED)
    with crash_at("after PREPARED"):
        run(target.sink(), recovery, 0, rows(1, 2, 3))
    given = target.sink(dead_letter_table="dead", create_staging="never")
    for _ in range(2):
        with pytest.raises(TargetError, match=r"a table for dead letters is missing: dead.*Sink.ddl\(\)"):
            run(given, recovery, 0, rows(1, 2, 3))
    target.run(given.ddl())
    target.run("ALTER TABLE dead ADD COLUMN seen int DEFAULT 7")
    run(given, recovery, 0, rows(1, 2, 3))
    assert (target.ids(), target.letters("epoch, seen")) == ([1, 3], [({"id": 2, "name": "n2"}, 0, 7)])


def test_a_table_that_cannot_take_letters_is_refused_before_the_epoch_begins(make: Make, recovery: str) -> None:
    target = make(CHECKED)
    quoted = f"{target.quote}row{target.quote}"
    target.run(f"CREATE TABLE dead ({quoted} int, reason text, more bigint NOT NULL)")
    refused = r"'row' is int\w*, but must be \w*text.*'code' is missing.*'more' is NOT NULL"
    with pytest.raises(OutfallError, match=refused):
        run(target.sink(dead_letter_table="dead"), recovery, 0, rows(1))


def test_letters_that_wait_are_not_dropped_with_the_option(make: Make, recovery: str) -> None:
    target = make(CHECKED)
    with crash_at("after PREPARED"):
        run(target.sink(dead_letter_table="dead"), recovery, 0, rows(1, LONG))
    with pytest.raises(CommitRefusedError, match=r"1 rows of this epoch are dead letters.*set dead_letter_table again"):
        run(target.sink(), recovery, 0, rows(1, LONG))
    run(target.sink(dead_letter_table="dead"), recovery, 0, rows(1, LONG))
    assert (target.ids(), target.refused_ids()) == ([1], [LONG])


def test_only_the_letters_of_winners_are_published(make: Make, recovery: str) -> None:
    target = make(CHECKED)
    values = rows(1, LONG)
    local = LocalDriver(target.sink(dead_letter_table="dead"), recovery)
    coordinator = local.coordinator()
    ticket = coordinator.begin(0)
    local.run_task(ticket, 0, 0, [(None, values)])  # its answer is lost
    result = coordinator.finish(ticket, [local.run_task(ticket, 0, 0, [(None, values)], retries=1)])
    assert result.counts["dead_letters"] == 1
    assert target.refused_ids() == [LONG]
    local.run_epoch(1, [])
    assert target.count(target.own("refused")) == 0


def test_a_task_whose_rows_are_all_refused_is_published(make: Make, recovery: str) -> None:
    target = make(CHECKED)
    run(target.sink(dead_letter_table="dead"), recovery, 0, rows(LONG), rows(1))
    assert (target.ids(), target.refused_ids()) == ([1], [LONG])


def test_letters_that_a_crash_of_the_server_took_are_written_anew(make: Make, recovery: str) -> None:
    target = make(CHECKED)
    sink = target.sink(dead_letter_table="dead")
    with crash_at("after PREPARED"):
        run(sink, recovery, 0, rows(1, LONG))
    target.run(f"DELETE FROM {target.own('refused')}")
    run(sink, recovery, 0, rows(1, LONG))
    assert (target.ids(), target.refused_ids()) == ([1], [LONG])


@pytest.mark.thorough
def test_a_connection_that_breaks_while_rows_are_set_aside_is_made_anew(make: Make, recovery: str) -> None:
    target = make(CHECKED)
    with once_at("sql: set aside", target.end_connections):
        result = run(target.sink(dead_letter_table="dead"), recovery, 0, rows(*range(6)))
    assert (target.ids(), target.refused_ids()) == ([0, 1, 3, 4, 5], [2])
    assert (result.counts["dead_letters"], result.counts["rows_changed"]) == (1, 5)


@pytest.mark.parametrize(
    "step",
    mostly_thorough(["sql: staging", "sql: set aside", "sql: after COMMIT#6", "after commit"], ["sql: set aside"]),
)
def test_a_driver_that_dies_leaves_each_letter_once(make: Make, recovery: str, step: str) -> None:
    target = make(CHECKED)
    sink = target.sink(dead_letter_table="dead")
    with crash_at(step) as seen:
        run(sink, recovery, 0, rows(1, 2, 3, LONG))
    assert step.partition("#")[0] in seen
    run(sink, recovery, 0, rows(1, 2, 3, LONG))
    assert (target.ids(), target.refused_ids()) == ([1, 3], [2, LONG])


@THOROUGH
def test_many_rows_are_set_aside_beside_many(make: Make, recovery: str) -> None:
    target = make("CREATE TABLE t (id bigint, name text, CHECK (id NOT IN (17, 4711, 19999)))")
    run(target.sink(dead_letter_table="dead"), recovery, 0, rows(*range(20_000)))
    assert (target.count("t"), target.refused_ids()) == (19_997, [17, 4711, 19_999])
