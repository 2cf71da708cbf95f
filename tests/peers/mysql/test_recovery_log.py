"""The log in MariaDB and in MySQL when a replica that lags is promoted: nothing goes on in silence."""

from __future__ import annotations

from contextlib import closing

import pytest

from outfall.errors import RecordError
from outfall.mysql import MySQLRecoveryConfig
from outfall.protocol.step import EpochOptions
from outfall.recovery import EntryExistsError
from outfall.testing import LocalDriver
from outfall.testing.recovery_contract import once_at
from tests.peers.support.galera import Galera
from tests.unit.support.warehouse import PlainSink


def write(recovery: MySQLRecoveryConfig, *epochs: int) -> None:
    """Run batch jobs, which may skip numbers."""
    for epoch in epochs:
        LocalDriver(PlainSink(), recovery, options=EpochOptions(any_later=True)).run_epoch(epoch, [[epoch]])


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
