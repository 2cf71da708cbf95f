"""All tables of a connector, which one query keeps like those of the source, whatever is killed."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from tests.integration.support.waiting import until
from tests.peers.support.apache_kafka import add_partitions, make_again
from tests.peers.support.changed_tables import ADDED, SHOP, Table, Tables
from tests.peers.support.debezium_stream import StayingRows, Stream
from tests.peers.support.epoch_reader import EpochReader

KILLS = int(os.environ.get("OUTFALL_TEST_KILLS", "2"))
"""How often each path is killed, with a snapshot of all tables before each kill."""
SEED = int(os.environ.get("OUTFALL_TEST_SEED", "20261128"))
Make = Callable[[str, Sequence[Table]], Tables]
Start = Callable[[str, str], Stream]
DATABASES = ("postgres", "mysql")
WAYS = [("postgres", "mysql"), ("mysql", "postgres")]
_SECONDS = 240
QUICK = ("postgres", "postgres", "exactly-once")
"""What there is time for before each merge."""
PATHS = [
    pytest.param(*path, id="-".join(path), marks=() if path == QUICK else pytest.mark.long)
    for path in product(DATABASES, DATABASES, ("standalone", "exactly-once"))
]


def stream_of(
    folder: Path, brokers: str, tables: Make, source: str, target: str, *, exactly_once: bool = True
) -> Stream:
    """Return a stream whose copies are made."""
    copies = tables(target, SHOP)
    copies.make_copies(SHOP)
    return Stream(folder, brokers, tables(source, SHOP), copies, SEED, exactly_once=exactly_once)


@pytest.mark.parametrize(("source", "target", "mode"), PATHS)
def test_all_tables_become_like_those_of_the_source_whatever_is_killed(
    brokers: str, tables: Make, tmp_path: Path, source: str, target: str, mode: str
) -> None:
    stream = stream_of(tmp_path, brokers, tables, source, target, exactly_once=mode == "exactly-once")
    # A repeated update of a row that was deleted since can be rejected, since it keeps a long value.
    exact = [table for table in SHOP if mode == "exactly-once" or table.long is None]
    with closing(stream):
        with stream.table.open_transaction():
            stream.connect()
            stream.drive()
            stream.wait_for(100)
        stream.table.change(20)
        stream.catch_up()
        staying, reader = StayingRows(stream.copy), EpochReader(stream, exact)
        try:
            for number in range(KILLS):
                stream.wait_for_epoch()
                stream.kill(number)
                if number == KILLS // 2:
                    stream.add(ADDED)
            stream.table.change(20)
            stream.catch_up()
        finally:
            staying.stop()
            reader.stop()
        assert staying.gone == []
        seen, different = reader.differences()
        assert different == []
        assert seen > 1
        print(
            f"\n{source} to {target}, {mode}: {stream.kills} killed, {stream.ended} ended by Spark, {seen} epochs seen"
        )


@pytest.fixture
def start(brokers: str, tables: Make, tmp_path: Path) -> Start:
    """Starts a stream from a database to another, with the ids and partitions of its topics pinned."""

    def started(source: str, target: str) -> Stream:
        stream = stream_of(tmp_path, brokers, tables, source, target)
        stream.connect(skipped_operations="none")
        stream.drive(on_truncate="ignore")
        stream.table.change(20)
        stream.catch_up()
        stream.pin()
        return stream

    return started


@pytest.mark.long
@pytest.mark.parametrize(("source", "target"), WAYS)
def test_one_topic_that_is_made_again_and_one_that_gets_partitions(
    start: Start, brokers: str, source: str, target: str
) -> None:
    with closing(start(source, target)) as stream:
        _, again, grown, *_ = stream.table.source.tables
        stop(stream)
        make_again(brokers, stream.topic_of(again))
        life = refused(stream, again, "it was created again")
        # The others go on where the old checkpoint has ended.
        from_its_beginning = {stream.topic_of(again): dict.fromkeys(map(str, range(life["partitions"])), 0)}
        stream.starting = json.dumps(stream.offsets() | from_its_beginning)
        stream.checkpoint += 1
        stream.drive()
        stream.worker.start()
        stream.repair(again)
        stream.table.change(20)
        stream.catch_up()
        stop(stream)
        add_partitions(brokers, stream.topic_of(grown))
        refused(stream, grown, "partitions, and not")
        stream.drive()
        stream.worker.start()
        stream.table.change(20)
        stream.catch_up()
        others = stream.lives.keys() - {stream.topic_of(again), stream.topic_of(grown)}
        assert {stream.lives[topic]["generation"] for topic in others} == {1}


@pytest.mark.long
@pytest.mark.parametrize(("source", "target"), WAYS)
def test_one_table_that_is_truncated_is_made_like_the_source_again_by_itself(
    start: Start, source: str, target: str
) -> None:
    with closing(start(source, target)) as stream:
        table = stream.table.source.tables[1]
        stream.table.source.run(f"TRUNCATE TABLE {stream.table.source.quoted(table.name)}")
        stream.table.change(10)
        stream.wait_for_epoch()
        stream.kill_driver()
        stream.lives[stream.topic_of(table)]["generation"] = 2
        stream.drive(on_truncate="ignore")
        stream.repair(table)
        stream.table.change(20)
        stream.catch_up()


@pytest.mark.long
@pytest.mark.parametrize("target", DATABASES)
def test_rows_that_one_table_refuses_leave_the_others_and_come_back_with_a_snapshot(start: Start, target: str) -> None:
    with closing(start("postgres", target)) as stream:
        source, copy = stream.table.source, stream.copy
        assert isinstance(copy, Tables)
        table = source.tables[1]
        name, note = source.quoted(table.name), source.quoted(str(table.long))
        copied = copy.quoted(table.name)
        copy.run(f"ALTER TABLE {copied} ADD CONSTRAINT bad CHECK (id <> 900)")
        source.run(f"INSERT INTO {name} VALUES (900, 1, 1, repeat('long', 1000))")
        stream.table.change(20)
        until(lambda: len(copy.read("SELECT reason FROM refused")) == 1, "the dead letter", _SECONDS)
        copy.run(f"ALTER TABLE {copied} DROP CONSTRAINT bad")
        # It keeps a value that nothing has.
        source.run(f"UPDATE {name} SET amount = 2 WHERE id = 900")
        until(lambda: len(copy.read("SELECT reason FROM refused")) == 2, "the second dead letter", _SECONDS)
        reasons = sorted(reason for (reason,) in copy.read("SELECT reason FROM refused"))
        assert any(
            reason.startswith("a value that the update did not change is neither in the table") for reason in reasons
        )
        wanted = [row for row in source.rows() if row[:2] != (table.name, "900")]
        until(lambda: copy.rows() == wanted, "the other rows", _SECONDS)
        stream.table.snapshot("id = 900", of=[table])
        stream.catch_up()
        source.run(f"UPDATE {name} SET {note} = 'short' WHERE id = 900")
        stream.catch_up()


@pytest.mark.long
@pytest.mark.parametrize(("source", "target"), WAYS)
def test_a_table_that_is_renamed_is_added_by_its_new_name(start: Start, source: str, target: str) -> None:
    with closing(start(source, target)) as stream:
        table = stream.table.source.tables[3]
        stream.add(replace(table, name="newCodes"), renamed=table)
        stream.table.change(20)
        stream.catch_up()


def stop(stream: Stream) -> None:
    """End worker and driver when all was read."""
    stream.read_to_the_end()
    stream.kill_worker()
    stream.kill_driver()


def refused(stream: Stream, table: Table, why: str) -> dict[str, Any]:
    """Let the driver end for a reason, and set what it says of a table's topic, which is returned."""
    stream.drive()
    text = stream.refused()
    assert why in text.lower(), text[-3000:]
    (found,) = set(re.findall(r"set (\{.*?\}\}) in TopicGenerations", text))
    entries: dict[str, dict[str, Any]] = json.loads(found)
    assert list(entries) == [stream.topic_of(table)]
    stream.lives |= entries
    return entries[stream.topic_of(table)]
