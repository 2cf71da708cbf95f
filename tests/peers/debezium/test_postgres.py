"""Kafka Connect with Debezium on PostgreSQL: whatever is killed, the copy of a table becomes like the table."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from tests.integration.support.postgres import Server, own_server
from tests.peers.support.debezium_stream import StayingRows, Stream, seconds

KILLS = int(os.environ.get("OUTFALL_TEST_KILLS", "4"))
SEED = int(os.environ.get("OUTFALL_TEST_SEED", "20261127"))


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """A server whose changes can be read, for the tables and for their copies."""
    with own_server({"wal_level": "logical", "max_replication_slots": "20", "max_wal_senders": "20"}) as running:
        yield running


@pytest.mark.parametrize(
    "exactly_once",
    [pytest.param(False, id="standalone", marks=pytest.mark.long), pytest.param(True, id="exactly-once")],
)
def test_a_copy_becomes_like_its_table_whatever_is_killed(
    brokers: str, server: Server, tmp_path: Path, exactly_once: bool
) -> None:
    url = server.new_database()
    stream = Stream(tmp_path, brokers, server, url, SEED, exactly_once=exactly_once)
    with closing(stream):
        # A new slot would wait for the transaction, and what is written before its publication is never delivered.
        with psycopg.connect(stream.table.dsn, autocommit=True) as connection:
            connection.execute(f"CREATE PUBLICATION {stream.prefix} FOR TABLE orders, debezium_signal")
            connection.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (stream.prefix,))
        with stream.table.open_transaction():
            stream.connect()
            stream.drive()
            stream.wait_for(100)
        stream.table.change(20)
        stream.catch_up()
        staying = StayingRows(url)
        try:
            for number in range(KILLS):
                stream.table.snapshot()
                stream.table.change(40)
                seconds(stream.chance, 2)
                if number % 2 == 0:
                    stream.worker.kill()
                    stream.table.change(20)
                    stream.worker.start()
                else:
                    stream.kill_driver()
                    stream.table.change(20)
                    stream.drive()
                stream.check_runs()
            stream.catch_up()
        finally:
            staying.stop()
        assert staying.gone == []
