"""A standby that lags is promoted: each row is in the table once, or the query is refused before a row moves."""

from __future__ import annotations

import itertools
import threading
from typing import Any

import pytest

from outfall.errors import TargetLostError, TransientError
from tests.integration.postgres.support import Target
from tests.integration.support.sql import listening
from tests.integration.support.waiting import until
from tests.peers.support.failovers import LOST, MOMENTS, TABLE, lose_rows, once, refusals, write
from tests.peers.support.postgres_pair import NAME, Pair, at

END_OTHERS = "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE application_name = 'outfall'"
DELIVERIES: dict[str, dict[str, Any]] = {
    "append": {},
    "upsert": {"write_mode": "upsert", "key_columns": "id"},
    "source offsets": {"offset_columns": "id"},
    "parts": {"parts": 2, "offset_keys": "ledger"},
}


@pytest.mark.parametrize(
    ("delivery", "lost", "moment"),
    [
        pytest.param(*case, marks=[] if case == ("source offsets", LOST[1], "before BEGIN") else pytest.mark.long)
        for case in itertools.product(("source offsets", "parts"), LOST, MOMENTS)
    ],
)
def test_rows_that_a_failover_loses_are_missed_before_others_are_written(
    pair: Pair, recovery: str, delivery: str, lost: str, moment: str
) -> None:
    lose_rows(pair, recovery, DELIVERIES[delivery], lost, moment)


@pytest.mark.parametrize(
    ("delivery", "moment"),
    [
        pytest.param(*case, marks=[] if case == ("append", "after open target") else pytest.mark.long)
        for case in itertools.product(
            ["append", "source offsets", "parts"],
            ["before BEGIN", "after BEGIN", "after open target", "after PREPARED"],
        )
    ],
)
def test_an_old_primary_that_comes_back_and_takes_writes_gets_none(
    pair: Pair, recovery: str, delivery: str, moment: str
) -> None:
    """The DSN prefers it, and it is at epoch 0; the query went on with its successor."""
    dsn = pair.new_database()
    target = Target(dsn, TABLE)
    sink = target.sink(**DELIVERIES[delivery])
    write(sink, recovery, 0, 0)
    pair.standby.catch_up()
    pair.fail_over()
    write(sink, recovery, 1, 1)

    def split() -> None:
        pair.primary.start()
        Target(at(dsn, pair.standby), END_OTHERS)

    with listening(once(moment, split)):
        errors = refusals(sink, recovery, 2, 2)
    if errors:
        assert isinstance(errors[-1], TargetLostError)
    else:
        # The epoch was in the successor already, and only recorded afterwards.
        assert (delivery, moment) == ("parts", "after PREPARED")
    # By the source's offsets a task publishes without the ledger, which its driver then finds to be another one.
    assert Target(at(dsn, pair.primary), "SELECT 1").ids() in ([[0], [0, 2]] if delivery == "source offsets" else [[0]])
    pair.primary.kill()
    assert refusals(sink, recovery, 2, 2) == []
    assert Target(at(dsn, pair.standby), "SELECT 1").ids() == [0, 1, 2]


@pytest.mark.long
def test_a_commit_that_waits_for_a_standby_is_neither_lost_nor_repeated(pair: Pair, recovery: str) -> None:
    """With a synchronous standby that does not answer, a COMMIT is done on the primary, and nobody is told."""
    dsn = pair.new_database()
    target = Target(dsn, TABLE)
    write(target.sink(), recovery, 0, 0)
    target.run(f"ALTER SYSTEM SET synchronous_standby_names = '{NAME}'")
    target.run("SELECT pg_reload_conf()")
    write(target.sink(), recovery, 1, 1)
    waiting = "SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event = 'SyncRep'"

    def cut() -> None:
        pair.standby.lag()
        killer.start()

    def kill_while_it_waits() -> None:
        # Connected before, since the DSN is read again for each connection.
        until(lambda: Target(at(dsn, pair.primary), "SELECT 1").run(waiting)[0][0], "a COMMIT waiting", 60)
        pair.primary.kill()
        pair.standby.promote()

    killer = threading.Thread(target=kill_while_it_waits)
    with listening(once("sql: before COMMIT", cut)):
        errors = refusals(target.sink(), recovery, 2, 2)
    killer.join(60)
    assert [error for error in errors if isinstance(error, TargetLostError)] == []
    # Nothing that was confirmed is lost: epoch 2 is written again where it is not.
    assert refusals(target.sink(), recovery, 3, 3) == []
    assert target.ids() == [0, 1, 2, 3]


@pytest.mark.parametrize("delivery", [pytest.param(name, marks=pytest.mark.long) for name in DELIVERIES])
def test_a_commit_whose_wait_for_a_synchronous_standby_is_canceled_is_not_taken_for_one(
    pair: Pair, recovery: str, delivery: str
) -> None:
    """The server confirms it with a warning, and a failover would lose it."""
    dsn = pair.new_database()
    target = Target(dsn, TABLE)
    sink = target.sink(**DELIVERIES[delivery])
    write(sink, recovery, 0, 0)
    target.run(f"ALTER SYSTEM SET synchronous_standby_names = '{NAME}'")
    target.run("SELECT pg_reload_conf()")
    over = threading.Event()

    def cancel() -> None:
        while not over.wait(0.05):
            target.run("SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'")

    canceling = threading.Thread(target=cancel)
    canceling.start()
    try:
        hurried = target.sink(**DELIVERIES[delivery], retry_deadline="2 seconds")
        with listening(once("sql: before COMMIT", pair.standby.lag)), pytest.raises(TransientError) as told:
            write(hurried, recovery, 1, 1)
    finally:
        over.set()
        canceling.join(60)
    assert "stopped waiting for its synchronous standby" in str(told.value)
    pair.standby.catch_up()
    assert refusals(sink, recovery, 1, 1) == []
    pair.fail_over()
    write(sink, recovery, 2, 2)
    assert target.ids() == [0, 1, 2]
