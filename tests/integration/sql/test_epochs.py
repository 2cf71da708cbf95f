"""Epochs on a real server and without Spark: crashes, zombies, lost replies, locks, servers that are killed."""

from __future__ import annotations

import threading
from typing import Any, Literal

import pytest

from outfall.capabilities import CommitRequest, CommitterInitContext, WriterInitContext
from outfall.errors import (
    ConfigurationError,
    EpochAbandonedError,
    FencedError,
    OutfallError,
    TransientError,
    ValueRefusedError,
)
from outfall.testing import LocalDriver
from outfall.testing.crash_points import crash_at
from outfall.testing.recovery_contract import once_at
from outfall.testing.tcp_proxy import NetworkFault
from tests.integration.support.sql import (
    KEYED,
    ON_EACH,
    THOROUGH,
    UPSERT,
    Make,
    MortalServer,
    Table,
    listening,
    mostly_thorough,
    rows,
    run,
)

pytestmark = ON_EACH

STEPS = [
    "before BEGIN", "after BEGIN", "sql: opening", "after open target", "sql: copying", "task: after write",
    "sql: staging", "sql: staged", "task: after snapshot", "after collect", "before PREPARED", "after PREPARED",
    "after COMMITTING", "sql: publishing", "sql: moving", "sql: before COMMIT", "sql: before COMMIT#2",
    "sql: before COMMIT#3", "sql: after COMMIT", "sql: after COMMIT#2", "sql: after COMMIT#3", "after commit",
    "before COMPLETED", "after COMPLETED", "after clean-up",
]  # fmt: skip
BY_DEFAULT = ["task: after snapshot", "sql: before COMMIT#2", "sql: after COMMIT#2"]


@pytest.mark.parametrize("step", mostly_thorough(STEPS, BY_DEFAULT))
def test_a_driver_that_dies_anywhere_leaves_each_row_once(target: Table, recovery: str, step: str) -> None:
    sink = target.sink()
    run(sink, recovery, 0, rows(100))
    with crash_at(step) as seen:
        run(sink, recovery, 1, rows(1, 2), rows(3))
    assert step.partition("#")[0] in seen
    assert target.ids() in ([100], [1, 2, 3, 100])
    run(sink, recovery, 1, rows(3), rows(2, 1))
    run(sink, recovery, 2, rows(4))
    assert target.ids() == [1, 2, 3, 4, 100]
    assert (target.attempts(), target.staged()) == (0, 0)


def test_nothing_is_in_the_table_before_all_of_an_epoch_is_and_a_replay_is_skipped(
    target: Table, recovery: str
) -> None:
    local = LocalDriver(target.sink(), recovery)
    coordinator = local.coordinator()
    ticket = coordinator.begin(0)
    answers = local.run_tasks(ticket, 0, [rows(1, 2), rows(3)])
    assert target.ids() == []
    coordinator.finish(ticket, answers)
    assert target.ids() == [1, 2, 3]
    assert run(target.sink(), recovery, 0, rows(1)).skipped
    assert target.ids() == [1, 2, 3]


def test_no_row_and_no_dead_letter_reaches_the_own_tables(target: Table, recovery: str) -> None:
    run(target.sink(), recovery, 0, rows(1))
    own = target.options().get("metadata_schema", "outfall")
    attempts: list[dict[str, Any]] = [
        {"table": f"{own}.ledger"}, {"table": f"{own}.attempts", "on_existing": "overwrite"},
        {"dead_letter_table": f"{own}.ledger"},
    ]  # fmt: skip
    for number, options in enumerate(attempts):
        with pytest.raises(ConfigurationError, match="Outfall's own records"):
            run(target.sink(**options), f"{recovery}-{number}", 0, rows(2))
    run(target.sink(), recovery, 1, rows(3))
    assert target.ids() == [1, 3]


def test_epochs_without_rows_are_no_gap(target: Table, recovery: str) -> None:
    for epoch, ids in enumerate([[1], [], [], [2]]):
        run(target.sink(), recovery, epoch, rows(*ids), [])
    assert target.ids() == [1, 2]


def test_a_failed_attempt_leaves_nothing(target: Table, recovery: str) -> None:
    local = LocalDriver(target.sink(), recovery)
    ticket = local.coordinator().begin(0)
    with crash_at("task: before flush"):
        local.run_task(ticket, 0, 0, [(None, rows(1, 2))])
    assert (target.attempts(), target.staged()) == (0, 0)


def test_an_attempt_whose_answer_was_lost_is_cleaned_up(target: Table, recovery: str) -> None:
    local = LocalDriver(target.sink(), recovery)
    coordinator = local.coordinator()
    ticket = coordinator.begin(0)
    local.run_task(ticket, 0, 0, [(None, rows(1, 2))])  # speculation: nobody hears of it
    coordinator.finish(ticket, [local.run_task(ticket, 0, 0, [(None, rows(1, 2))])])
    assert target.ids() == [1, 2]
    assert target.attempts() == 1
    local.run_epoch(1, [rows(3)])
    assert (target.attempts(), target.staged()) == (0, 0)


def test_an_older_driver_that_wakes_publishes_nothing(target: Table, recovery: str) -> None:
    sink = target.sink()
    older = LocalDriver(sink, recovery)
    coordinator = older.coordinator()
    ticket = coordinator.begin(0)
    answers = older.run_tasks(ticket, 0, [rows(1)])
    run(sink, recovery, 0, rows(2))
    with pytest.raises(FencedError):
        coordinator.finish(ticket, answers)
    assert target.ids() == [2]


def test_the_ledger_refuses_what_an_older_generation_staged(target: Table, recovery: str) -> None:
    """A commit that sleeps until a newer driver has begun the epoch anew, and published nothing yet."""
    sink = target.sink()
    ticket = LocalDriver(sink, recovery).coordinator().begin(0)
    part = sink.bind(WriterInitContext("sink", ticket.incarnation, ticket.generation, 0, None, attempt=0))
    writer = part.build("sink", 0, 1)
    writer.write_batch(rows(1))
    requests = [CommitRequest(staged) for staged in writer.prepare_commit()]
    writer.close()
    LocalDriver(sink, recovery).coordinator().begin(0)
    context = CommitterInitContext("sink", ticket.incarnation, ticket.generation, 0, token=ticket.token)
    older = sink.create_committer(context)
    with pytest.raises(FencedError, match="a newer driver has taken over the step"):
        older.commit(requests)
    assert target.ids() == []


@pytest.mark.thorough
def test_two_drivers_that_publish_the_same_record_publish_once(target: Table, recovery: str) -> None:
    """The older one sleeps in its transaction's beginning; the newer one finishes what is recorded and goes on."""
    sink = target.sink()
    with crash_at("after COMMITTING"):
        run(sink, recovery, 0, rows(1, 2))
    entered, go_on = threading.Event(), threading.Event()
    outcome: list[Any] = []

    def sleep(step: str) -> None:
        if step == "before commit" and threading.current_thread().name == "older":
            entered.set()
            go_on.wait(30)

    def older() -> None:
        try:
            outcome.append(run(sink, recovery, 0, rows(1, 2)))
        except Exception as error:
            outcome.append(error)

    with listening(sleep):
        thread = threading.Thread(target=older, name="older")
        thread.start()
        assert entered.wait(30)
        run(sink, recovery, 0, rows(1, 2))
        run(sink, recovery, 1, rows(3))
        go_on.set()
        thread.join(30)
    assert target.ids() == [1, 2, 3]
    # It finds its next entry taken, reads again, and is told that Spark's checkpoint is behind the record.
    assert isinstance(outcome[0], OutfallError)


# --- locks


def test_who_publishes_holds_the_ledgers_row_so_that_a_rival_waits(target: Table, recovery: str) -> None:
    def look() -> None:
        with pytest.raises(target.refused, match=r"(?i)lock"):
            target.run(f"SELECT 1 FROM {target.own('ledger')} FOR UPDATE NOWAIT")

    with once_at("sql: publishing", look):
        run(target.sink(), recovery, 0, rows(1))


def test_nobody_alters_the_table_between_its_check_and_its_rows(target: Table, recovery: str) -> None:
    def alter() -> None:
        with pytest.raises(target.refused, match=r"(?i)lock"):
            target.run(f"{target.impatient}; ALTER TABLE t ADD COLUMN more int")

    with once_at("sql: moving", alter):
        run(target.sink(), recovery, 0, rows(1))
    assert target.ids() == [1]


@pytest.mark.thorough
def test_a_server_that_stays_locked_is_given_up_with_the_option_to_raise(make: Make, recovery: str) -> None:
    target = make(KEYED)
    run(target.sink(**UPSERT), recovery, 0, rows(1))
    hurried = target.sink(**UPSERT, statement_timeout="1 second", retry_deadline="0.1s")
    other = target.connect()
    other.cursor().execute("SELECT * FROM t FOR UPDATE")
    # A server that has a limit for locks of its own may end the wait by it.
    with pytest.raises(OutfallError, match=r"statement_timeout|find the session that holds the lock"):
        run(hurried, recovery, 1, rows(1, 2))
    other.rollback()
    other.close()
    assert target.ids() == [1]
    run(hurried, recovery, 1, rows(1, 2))
    assert target.ids() == [1, 2]


# --- connections


@pytest.mark.parametrize(("lost", "published"), [("reply", 1), ("request", 2)])
def test_a_connection_that_breaks_in_commit_is_settled_by_the_ledger(
    target: Table, recovery: str, lost: Literal["reply", "request"], published: int
) -> None:
    """The proxy lets COMMIT through and swallows what comes back, or does not let it through."""
    publishing: list[str] = []
    cut: list[str] = []

    def break_off(step: str) -> None:
        if step == "sql: publishing":
            publishing.append(step)
        if step == "sql: before COMMIT" and publishing and not cut:
            cut.append(step)
            proxy.inject(NetworkFault("reset", lost, connections=1))

    with target.proxy() as proxy, listening(break_off):
        run(target.sink(dsn=target.address(proxy.port)), recovery, 0, rows(1, 2), rows(3))
    assert cut
    assert len(publishing) == published
    assert target.ids() == [1, 2, 3]


def test_connections_that_are_ended_are_made_anew(target: Table, recovery: str) -> None:
    sink = target.sink()
    run(sink, recovery, 0, rows(1))
    with once_at("sql: publishing", target.end_connections):
        run(sink, recovery, 1, rows(2))
    target.end_connections()
    run(sink, recovery, 2, rows(3))
    assert target.ids() == [1, 2, 3]


@pytest.mark.parametrize("step", mostly_thorough(["sql: copying", "sql: staging"], ["sql: staging"]))
def test_a_task_whose_connection_is_ended_is_tried_again_and_nothing_is_doubled(
    target: Table, recovery: str, step: str
) -> None:
    local = LocalDriver(target.sink(), recovery)
    coordinator = local.coordinator()
    ticket = coordinator.begin(0)
    other = local.run_task(ticket, 0, 1, [(None, rows(9))])
    values: list[tuple[str | None, list[Any]]] = [(None, rows(*range(number, number + 3))) for number in (0, 3)]
    with once_at(step, target.end_connections), pytest.raises(TransientError, match="staging rows for t"):
        local.run_task(ticket, 0, 0, values)
    assert target.staged() == 1
    coordinator.finish(ticket, [local.run_task(ticket, 0, 0, values, retries=1), other])
    assert target.ids() == [0, 1, 2, 3, 4, 5, 9]


@pytest.mark.thorough
def test_a_connection_that_ended_while_nobody_used_it_fails_no_task(target: Table, recovery: str) -> None:
    local = LocalDriver(target.sink(), recovery)
    coordinator = local.coordinator()
    ticket = coordinator.begin(0)
    target.end_connections()
    coordinator.finish(ticket, [local.run_task(ticket, 0, 0, [(None, rows(1))])])
    assert target.ids() == [1]


# --- tables that are altered


@pytest.mark.thorough
def test_a_table_that_was_narrowed_under_a_recorded_epoch_gets_the_rows_again(target: Table, recovery: str) -> None:
    sink = target.sink()
    with crash_at("after COMMITTING"):
        run(sink, recovery, 0, rows(1, 2))
    target.retype(id="smallint")
    with pytest.raises(ValueRefusedError, match=r"'id' cannot hold the value|outside the range of int16"):
        run(sink, recovery, 0, rows(70_000))
    assert target.ids() == []
    run(sink, recovery, 0, rows(2), rows(1))
    assert target.ids() == [1, 2]


def test_a_wider_column_gets_the_recorded_rows_as_they_are(make: Make, recovery: str) -> None:
    target = make("CREATE TABLE t (id int, name varchar(9))")
    with crash_at("after COMMITTING"):
        run(target.sink(), recovery, 0, rows(1, 2))
    target.retype(id="bigint", name="varchar(20)")
    assert run(target.sink(), recovery, 0).skipped
    assert target.ids() == [1, 2]


# --- servers that are killed


@pytest.mark.parametrize(
    "step", mostly_thorough(["after PREPARED", "after COMMITTING", "sql: publishing"], ["after COMMITTING"])
)
def test_a_server_killed_between_staging_and_publishing_loses_nothing(
    mortal: MortalServer, mortal_target: Table, recovery: str, step: str
) -> None:
    """Where its recovery empties staging, the counts tell, and the epoch is written anew."""
    target, sink = mortal_target, mortal_target.sink()
    run(sink, recovery, 0, rows(1))
    with crash_at(step, required=True):
        run(sink, recovery, 1, rows(2, 3))
    mortal.kill()
    mortal.start()
    run(sink, recovery, 1, rows(3), rows(2))
    run(sink, recovery, 2, rows(4))
    assert target.ids() == [1, 2, 3, 4]


@THOROUGH
def test_a_server_killed_while_it_publishes_loses_nothing(
    mortal: MortalServer, mortal_target: Table, recovery: str
) -> None:
    """The driver lives: it tries again, and proves by the ledger that nothing was published."""
    target = mortal_target
    local = LocalDriver(target.sink(), recovery)
    local.run_epoch(0, [rows(1)])

    def restart() -> None:
        mortal.kill()
        mortal.start()

    abandoned: list[str] = []
    with once_at("sql: publishing", restart):
        try:
            local.run_epoch(1, [rows(2, 3)])
        except EpochAbandonedError as error:
            # Where its recovery emptied staging.
            abandoned.append(str(error))
            local.run_epoch(1, [rows(3), rows(2)])
    assert all("holds 0 of the 2 rows of attempt" in text for text in abandoned)
    assert target.ids() == [1, 2, 3]


@THOROUGH
def test_a_server_that_restarts_before_a_task_sends_rows_is_waited_for(
    mortal: MortalServer, mortal_target: Table, recovery: str
) -> None:
    """The tasks have one attempt."""
    local = LocalDriver(mortal_target.sink(retry_deadline="60 seconds"), recovery)
    local.run_epoch(0, [rows(1)])

    def restart() -> None:
        mortal.kill()
        # It does not answer yet.
        mortal.launch()

    with once_at("after open target", restart):
        local.run_epoch(1, [rows(2), rows(3)])
    assert mortal_target.ids() == [1, 2, 3]


@THOROUGH
def test_a_server_that_stays_away_is_named_after_the_deadline(
    mortal: MortalServer, mortal_target: Table, recovery: str
) -> None:
    sink = mortal_target.sink(retry_deadline="0.3 seconds")
    run(sink, recovery, 0, rows(1))
    with crash_at("after COMMITTING"):
        run(sink, recovery, 1, rows(2))
    mortal.kill()
    with pytest.raises(TransientError, match=r"(?s)failed for 0.3 s.*the next run of the query finishes"):
        run(sink, recovery, 1, rows(2))
