"""The log in PostgreSQL when a standby that lags is promoted: nothing goes on in silence, and no row is lost."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pytest

from outfall.errors import FencedError, RecordError, TargetAheadError
from outfall.postgres import PostgresRecoveryConfig
from outfall.protocol.step import EpochOptions
from outfall.recovery import history
from outfall.testing import LocalDriver
from outfall.testing.recovery_contract import once_at
from tests.integration.postgres.support import Target, rows
from tests.integration.support.postgres import location
from tests.peers.support.postgres_pair import Pair
from tests.unit.support.command import done, failed

TABLE = "CREATE TABLE t (id bigint PRIMARY KEY, name text)"


def write(target: Target, recovery: PostgresRecoveryConfig, epoch: int, **options: Any) -> None:
    """Run a batch job, which may skip numbers, with one row: the number of its epoch."""
    epochs = EpochOptions(any_later=True)
    LocalDriver(target.sink(**options), recovery, options=epochs).run_epoch(epoch, [rows(epoch)])


def lag(pair: Pair) -> None:
    """Let the standby have all until now, and nothing more."""
    pair.standby.catch_up()
    pair.standby.lag()


@pytest.fixture
def target(pair: Pair) -> Target:
    return Target(pair.new_database(), TABLE)


@pytest.fixture
def recovery(target: Target) -> PostgresRecoveryConfig:
    """The log, in the database of the rows."""
    return location(target.dsn, timeout=10)


def test_entries_and_rows_that_are_lost_together_are_refused_by_name(
    pair: Pair, target: Target, recovery: PostgresRecoveryConfig
) -> None:
    """A batch job may skip numbers, so that without the server's name epoch 2 would follow epoch 0."""
    write(target, recovery, 0)
    lag(pair)
    write(target, recovery, 1)
    pair.fail_over()
    assert target.run("SELECT id FROM t") == [(0,)]
    for epoch in (1, 2):
        with pytest.raises(RecordError, match=r"timeline 00000001.*timeline 00000002.*outfall accept"):
            write(target, recovery, epoch)
    text = failed("accept", recovery.url(), "sink")
    assert "last completed epoch here: 0" in text
    assert "Run each epoch after 0 again, in order" in text
    assert "accepted" in done("accept", recovery.url(), "sink", "--yes")
    for epoch in (1, 2):
        write(target, recovery, epoch)
    assert target.run("SELECT id FROM t ORDER BY id") == [(0,), (1,), (2,)]


def test_a_target_that_was_opened_on_the_new_server_with_a_begin_of_the_old_one_begins_anew(
    pair: Pair, target: Target, recovery: PostgresRecoveryConfig
) -> None:
    """The BEGIN is lost, and the record of the target is not: both ended with epoch 0, and the log is reset."""
    write(target, recovery, 0)
    lag(pair)
    with once_at("after BEGIN", pair.fail_over), pytest.raises(RecordError, match=r"outfall accept|is missing"):
        write(target, recovery, 1)
    done("accept", recovery.url(), "sink", "--yes")
    with pytest.raises(
        TargetAheadError, match=r"generation 5, epoch 0.*generation 1, completed epoch 0.*outfall reset"
    ):
        write(target, recovery, 1)
    done("reset", recovery.url(), "sink", "--yes")
    write(target, recovery, 1, on_existing="resume")
    assert target.run("SELECT id FROM t ORDER BY id") == [(0,), (1,)]


@pytest.mark.parametrize("step", ["after open target", "after PREPARED", "before COMPLETED"])
def test_a_driver_whose_server_is_replaced_within_an_epoch_stops_and_the_next_one_writes_each_row_once(
    pair: Pair, target: Target, recovery: PostgresRecoveryConfig, step: str
) -> None:
    write(target, recovery, 0)
    lag(pair)
    with once_at(step, pair.fail_over), pytest.raises((RecordError, FencedError)):
        write(target, recovery, 1)
    assert "accepted" in done("accept", recovery.url(), "sink", "--yes")
    write(target, recovery, 1)
    assert target.run("SELECT id FROM t ORDER BY id") == [(0,), (1,)]


def test_a_promotion_that_lost_nothing_is_accepted_and_goes_on(
    pair: Pair, target: Target, recovery: PostgresRecoveryConfig
) -> None:
    for epoch in (0, 1):
        write(target, recovery, epoch)
    pair.standby.catch_up()
    pair.fail_over()
    with closing(recovery.open("sink")) as log, pytest.raises(RecordError, match="another server"):
        log.read()
    assert [summary.epoch for summary in history(recovery)] == [0, 1]
    assert "last completed epoch here: 1" in done("accept", recovery.url(), "sink", "--yes")
    write(target, recovery, 2)
    assert target.run("SELECT id FROM t ORDER BY id") == [(0,), (1,), (2,)]
