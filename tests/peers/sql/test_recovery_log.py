"""The log in a database when a replica that lags is promoted: nothing goes on in silence, and no row is lost."""

from __future__ import annotations

from contextlib import closing

import pytest

from outfall.errors import FencedError, OutfallError, RecordError
from outfall.protocol.step import EpochOptions
from outfall.recovery import RecoveryConfig, history
from outfall.testing import LocalDriver
from outfall.testing.recovery_contract import once_at
from tests.integration.support.sql import Table, rows
from tests.integration.support.sql_logs import STEPS, filled
from tests.peers.support.failovers import TABLE, Pair
from tests.unit.support.command import done, failed


@pytest.fixture
def target(pair: Pair) -> Table:
    return pair.table(TABLE)


@pytest.fixture
def recovery(target: Table) -> RecoveryConfig:
    """The log, in the database of the rows."""
    return target.location(timeout=10)


def write(target: Table, recovery: RecoveryConfig, *epochs: int) -> None:
    """Run batch jobs, which may skip numbers, with one row each: the number of its epoch."""
    for epoch in epochs:
        LocalDriver(target.sink(), recovery, options=EpochOptions(any_later=True)).run_epoch(epoch, [rows(epoch)])


def test_entries_and_rows_that_are_lost_together_are_refused_by_name(
    pair: Pair, target: Table, recovery: RecoveryConfig
) -> None:
    """A batch job may skip numbers, so that without the server's name epoch 2 would follow epoch 0."""
    write(target, recovery, 0)
    pair.lag()
    write(target, recovery, 1)
    pair.fail_over()
    assert target.ids() == [0]
    for epoch in (1, 2):
        with pytest.raises(RecordError, match=r"(?s)(timeline 0+1|id 1 ).*(timeline 0+2|id 2 ).*outfall accept"):
            write(target, recovery, epoch)
    text = failed("accept", recovery.url(), "sink")
    assert "last completed epoch here: 0" in text
    assert "Run each epoch after 0 again, in order" in text
    assert "accepted" in done("accept", recovery.url(), "sink", "--yes")
    write(target, recovery, 1, 2)
    assert target.ids() == [0, 1, 2]
    assert [summary.epoch for summary in history(recovery)] == [0, 1, 2]


@pytest.mark.parametrize("step", STEPS)
def test_a_server_that_is_replaced_within_an_append_gets_no_entry_of_it(
    pair: Pair, target: Table, recovery: RecoveryConfig, step: str
) -> None:
    log = filled(recovery, 1)
    pair.lag()
    with once_at(step, pair.fail_over), pytest.raises(OutfallError, match="outfall accept"):
        log.append(b"2", after=1)
    entries, _ = target.log_tables(recovery)
    assert target.read(f"SELECT number FROM {entries}") == [(1,)]


@pytest.mark.parametrize("step", ["after open target", "after PREPARED", "before COMPLETED"])
def test_a_driver_whose_server_is_replaced_within_an_epoch_stops_and_the_next_one_writes_each_row_once(
    pair: Pair, target: Table, recovery: RecoveryConfig, step: str
) -> None:
    write(target, recovery, 0)
    pair.lag()
    with once_at(step, pair.fail_over), pytest.raises((RecordError, FencedError)):
        write(target, recovery, 1)
    assert "accepted" in done("accept", recovery.url(), "sink", "--yes")
    write(target, recovery, 1)
    assert target.ids() == [0, 1]


def test_a_promotion_that_lost_nothing_is_accepted_and_goes_on(
    pair: Pair, target: Table, recovery: RecoveryConfig
) -> None:
    write(target, recovery, 0, 1)
    pair.catch_up()
    pair.fail_over()
    with closing(recovery.open("sink")) as log, pytest.raises(RecordError, match="another server"):
        log.read()
    assert [summary.epoch for summary in history(recovery)] == [0, 1]
    assert "last completed epoch here: 1" in done("accept", recovery.url(), "sink", "--yes")
    write(target, recovery, 2)
    assert target.ids() == [0, 1, 2]
