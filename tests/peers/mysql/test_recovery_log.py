"""The log in MariaDB and in MySQL when a replica that lags is promoted: nothing goes on in silence."""

from __future__ import annotations

from contextlib import closing

import pytest

from outfall.errors import OutfallError, RecordError
from outfall.mysql import MySQLRecoveryConfig
from outfall.protocol.step import EpochOptions
from outfall.recovery import EntryExistsError, history
from outfall.testing import LocalDriver
from outfall.testing.recovery_contract import once_at
from tests.integration.support.sql_logs import STEPS, filled
from tests.peers.support.galera import Galera
from tests.peers.support.replica_pair import Pair
from tests.unit.support.command import done, failed
from tests.unit.support.warehouse import PlainSink


@pytest.fixture
def database(pair: Pair) -> str:
    return pair.client.new_database()


@pytest.fixture
def recovery(pair: Pair, database: str) -> MySQLRecoveryConfig:
    """The log, at the address of both servers."""
    return pair.client.location(database, timeout=10)


def write(recovery: MySQLRecoveryConfig, *epochs: int) -> None:
    """Run batch jobs, which may skip numbers."""
    for epoch in epochs:
        LocalDriver(PlainSink(), recovery, options=EpochOptions(any_later=True)).run_epoch(epoch, [[epoch]])


def test_entries_that_are_lost_are_refused_by_name_until_the_server_is_accepted(
    pair: Pair, recovery: MySQLRecoveryConfig
) -> None:
    """Without the server's name, epoch 2 would follow epoch 0."""
    write(recovery, 0)
    pair.lag()
    write(recovery, 1)
    pair.fail_over()
    for epoch in (1, 2):
        with pytest.raises(RecordError, match=r"(?s)id 1 .*id 2 .*outfall accept"):
            write(recovery, epoch)
    text = failed("accept", recovery.url(), "sink")
    assert "last completed epoch here: 0" in text
    assert "Run each epoch after 0 again, in order" in text
    assert "accepted" in done("accept", recovery.url(), "sink", "--yes")
    write(recovery, 1, 2)
    assert [summary.epoch for summary in history(recovery)] == [0, 1, 2]


@pytest.mark.parametrize("step", STEPS)
def test_a_server_that_is_replaced_within_an_append_gets_no_entry_of_it(
    pair: Pair, recovery: MySQLRecoveryConfig, database: str, step: str
) -> None:
    log = filled(recovery, 1)
    pair.lag()
    with once_at(step, pair.fail_over), pytest.raises(OutfallError, match="outfall accept"):
        log.append(b"2", after=1)
    assert pair.client.run("SELECT number FROM recovery_entries", database) == [("1",)]


def test_a_promotion_that_lost_nothing_is_accepted_and_goes_on(pair: Pair, recovery: MySQLRecoveryConfig) -> None:
    write(recovery, 0, 1)
    pair.catch_up()
    pair.fail_over()
    with closing(recovery.open("sink")) as log, pytest.raises(RecordError, match="another server"):
        log.read()
    assert "last completed epoch here: 1" in done("accept", recovery.url(), "sink", "--yes")
    write(recovery, 2)
    assert [summary.epoch for summary in history(recovery)] == [0, 1, 2]


def test_of_two_creators_on_two_nodes_of_galera_at_one_moment_one_wins(cluster: Galera) -> None:
    first, second = cluster.clients
    database = first.new_database()
    with closing(first.location(database, timeout=20).open("made")) as log:
        log.append(b"1", after=0)
    here, there = (node.location(database, timeout=20).open("sink") for node in (first, second))
    with (
        once_at("log: before commit", lambda: there.append(b"2", after=0)),
        pytest.raises((EntryExistsError, RecordError)),
    ):
        here.append(b"1", after=0)
    rows = "SELECT number, data FROM recovery_entries WHERE log LIKE '%sink'"
    assert [node.run(rows, database) for node in (first, second)] == [[("1", "2")]] * 2


def test_another_node_of_galera_is_another_server(cluster: Galera) -> None:
    first, second = cluster.clients
    database = first.new_database()
    write(first.location(database, timeout=20), 0)
    with pytest.raises(RecordError, match=r"(?s)id 1 .*id 2 .*outfall accept"):
        write(second.location(database, timeout=20), 1)
