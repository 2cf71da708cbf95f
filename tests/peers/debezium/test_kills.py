"""Kafka Connect with Debezium: whatever is killed, the copy of a table becomes like the table."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import closing
from itertools import product
from pathlib import Path

import pytest

from tests.peers.support.changed_orders import Orders
from tests.peers.support.debezium_stream import StayingRows, Stream, seconds

KILLS = int(os.environ.get("OUTFALL_TEST_KILLS", "4"))
SEED = int(os.environ.get("OUTFALL_TEST_SEED", "20261127"))
DATABASES = ("postgres", "mysql")
QUICK = ("postgres", "postgres", "exactly-once")
"""What there is time for before each merge."""

PATHS = [
    pytest.param(*path, id="-".join(path), marks=() if path == QUICK else pytest.mark.long)
    for path in product(DATABASES, DATABASES, ("standalone", "exactly-once"))
]


@pytest.mark.parametrize(("source", "target", "mode"), PATHS)
def test_a_copy_becomes_like_its_table_whatever_is_killed(
    brokers: str, orders: Callable[[str], Orders], tmp_path: Path, source: str, target: str, mode: str
) -> None:
    stream = Stream(tmp_path, brokers, orders(source), orders(target), SEED, exactly_once=mode == "exactly-once")
    with closing(stream):
        with stream.table.open_transaction():
            stream.connect()
            stream.drive()
            stream.wait_for(100)
        stream.table.change(20)
        stream.catch_up()
        staying = StayingRows(stream.copy)
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
