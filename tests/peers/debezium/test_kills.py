"""Kafka Connect with Debezium: whatever is killed, the copy of a table becomes like the table."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import closing
from itertools import product
from pathlib import Path

import pytest

from tests.peers.support.changed_tables import Tables
from tests.peers.support.debezium_stream import StayingRows, Stream
from tests.peers.support.order_copies import Copy

KILLS = int(os.environ.get("OUTFALL_TEST_KILLS", "4"))
"""How often each path is killed, with a snapshot before each kill: at least 40 over each source and target at 20."""
SEED = int(os.environ.get("OUTFALL_TEST_SEED", "20261127"))
DATABASES = ("postgres", "mysql")
OTHERS = ("delta", "iceberg", "redis", "opensearch")
"""Targets that compare the sequence, and are given all values."""
QUICK = ("postgres", "postgres", "exactly-once")
"""What there is time for before each merge."""
MODES = ("standalone", "exactly-once")

PATHS = [
    pytest.param(*path, id="-".join(path), marks=() if path == QUICK else pytest.mark.long)
    for path in [
        *product(DATABASES, DATABASES, MODES),
        *((source, target, mode) for target in OTHERS for source, mode in zip(DATABASES, MODES, strict=True)),
    ]
]


@pytest.mark.parametrize(("source", "target", "mode"), PATHS)
def test_a_copy_becomes_like_its_table_whatever_is_killed(
    brokers: str,
    orders: Callable[[str], Tables],
    copy: Callable[[str], Copy],
    tmp_path: Path,
    source: str,
    target: str,
    mode: str,
) -> None:
    stream = Stream(tmp_path, brokers, orders(source), copy(target), SEED, exactly_once=mode == "exactly-once")
    with closing(stream):
        with stream.table.open_transaction():
            stream.connect()
            stream.drive()
            stream.wait_for(100)
        stream.table.change(20)
        stream.catch_up()
        staying = StayingRows(stream.copy)
        try:
            for number in range(2 * KILLS):
                if sum(stream.kills.values()) == KILLS:
                    break
                if number % 4 == 1:
                    # Else it may be killed before it has begun.
                    stream.wait_for_epoch()
                stream.kill(number)
            stream.catch_up()
        finally:
            staying.stop()
        assert staying.gone == []
        print(
            f"\n{source} to {target}, {mode}: {stream.kills} killed, {stream.ended} ended by Spark, {KILLS} snapshots"
        )
        assert sum(stream.kills.values()) == KILLS
