"""What the recipe names under "After an accident": each is noticed, and its way out ends in equal tables."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from tests.integration.support.waiting import until
from tests.peers.support.apache_kafka import add_partitions, make_again, topic_id
from tests.peers.support.changed_tables import Tables
from tests.peers.support.debezium_stream import Stream, seconds

pytestmark = pytest.mark.long
Start = Callable[[str, str], Stream]
SNAPSHOTS = int(os.environ.get("OUTFALL_TEST_KILLS", "3"))
_PARTITIONS = 4
_SECONDS = 60
WAYS = [("postgres", "mysql"), ("mysql", "postgres")]


@pytest.fixture
def start(brokers: str, orders: Callable[[str], Tables], tmp_path: Path) -> Start:
    """Starts a stream from a database to another, with the topic's id and partitions pinned."""

    def started(source: str, target: str) -> Stream:
        stream = Stream(tmp_path, brokers, orders(source), orders(target), seed=7, exactly_once=True)
        stream.connect(skipped_operations="none")
        until(lambda: topic_id(brokers, stream.topic), "the topic", _SECONDS)
        stream.drive()
        stream.table.change(20)
        stream.catch_up()
        stream.pin()
        return stream

    return started


@pytest.mark.parametrize(("source", "target"), WAYS)
def test_partitions_that_are_added_between_two_runs(start: Start, brokers: str, source: str, target: str) -> None:
    with closing(start(source, target)) as stream:
        stream.worker.kill()
        stream.kill_driver()
        add_partitions(brokers, stream.topic)
        stream.drive()
        assert f"has {_PARTITIONS + 3} partitions, and not {_PARTITIONS}" in stream.refused()
        stream.life |= {"partitions": _PARTITIONS + 3, "generation": 2}
        stream.drive()
        stream.worker.start()
        stream.table.change(40)
        stream.catch_up()


@pytest.mark.parametrize(("source", "target"), WAYS)
def test_partitions_that_are_added_while_rows_change(start: Start, brokers: str, source: str, target: str) -> None:
    with closing(start(source, target)) as stream:
        add_partitions(brokers, stream.topic)
        # Started again, it learns of them at once.
        stream.worker.kill()
        stream.table.change(20)
        stream.worker.start()
        stream.table.change(40)
        assert f"the topic has more than {_PARTITIONS} partitions" in stream.refused()
        # Keys have moved already, so nothing orders what this generation reads of them: the next one repairs it.
        stream.life |= {"partitions": _PARTITIONS + 3, "generation": 2}
        stream.drive()
        stream.read_to_the_end()
        stream.kill_driver()
        stream.life["generation"] = 3
        stream.drive()
        stream.repair()
        stream.catch_up()
        stream.table.change(20)
        stream.catch_up()


@pytest.mark.parametrize(("source", "target"), WAYS)
def test_a_topic_that_is_made_again(start: Start, brokers: str, source: str, target: str) -> None:
    with closing(start(source, target)) as stream:
        stream.worker.kill()
        stream.kill_driver()
        stream.table.change(20)
        make_again(brokers, stream.topic)
        stream.drive()
        assert "It was created again" in stream.refused()
        stream.life |= {"topic_id": topic_id(brokers, stream.topic), "generation": 2}
        stream.checkpoint += 1
        stream.drive()
        stream.worker.start()
        stream.repair()
        stream.table.change(20)
        stream.catch_up()


@pytest.mark.parametrize(("source", "target"), WAYS)
def test_a_truncation(start: Start, source: str, target: str) -> None:
    with closing(start(source, target)) as stream:
        stream.table.source.run("TRUNCATE TABLE orders")
        stream.table.change(20)
        assert "it is a truncation" in stream.refused()
        stream.life["generation"] = 2
        stream.drive(on_truncate="ignore")
        stream.repair()
        stream.catch_up()
        stream.table.change(20)
        stream.catch_up()


@pytest.mark.parametrize("target", ["postgres", "mysql"])
def test_a_changed_key_whose_long_value_is_not_sent(start: Start, target: str) -> None:
    with closing(start("postgres", target)) as stream:
        copy, source = stream.copy, stream.table.source
        assert isinstance(copy, Tables)
        source.run("INSERT INTO orders VALUES (900, 'a', 1, now(), repeat('long', 1000))")
        stream.catch_up()
        source.run("UPDATE orders SET id = 901 WHERE id = 900", "UPDATE orders SET city = 'b' WHERE id = 901")

        def refused() -> list[str]:
            stream.check_runs()
            return sorted(reason for (reason,) in copy.read("SELECT reason FROM refused"))

        until(lambda: len(refused()) == 2, "two dead letters", _SECONDS)
        update, creation = refused()
        assert update.startswith("a value that the update did not change is neither in the table")
        assert creation.startswith("the key of its row was changed")
        assert "incremental snapshot of this key" in creation
        stream.table.snapshot("id = 901")
        stream.catch_up()
        source.send_all_values()
        source.run("UPDATE orders SET id = 902 WHERE id = 901")
        stream.catch_up()
        assert len(refused()) == 2


@pytest.mark.parametrize(("source", "target"), WAYS)
def test_records_that_are_gone_before_they_are_read(start: Start, brokers: str, source: str, target: str) -> None:
    with closing(start(source, target)) as stream:
        stream.kill_driver()
        stream.table.change(40)
        stream.wait_for_topics()
        ends = [TopicPartition(stream.topic, number, -1) for number in range(_PARTITIONS)]
        client = AdminClient({"bootstrap.servers": brokers})
        for gone in client.delete_records(ends).values():
            gone.result(_SECONDS)
        stream.drive()
        assert "failOnDataLoss" in stream.refused()
        stream.life["generation"] = 2
        stream.checkpoint += 1
        stream.drive()
        stream.repair()
        stream.table.change(20)
        stream.catch_up()


@pytest.mark.parametrize(("source", "target"), WAYS)
def test_a_worker_that_is_killed_before_its_first_offsets(
    brokers: str, orders: Callable[[str], Tables], tmp_path: Path, source: str, target: str
) -> None:
    stream = Stream(tmp_path, brokers, orders(source), orders(target), seed=8, flush=600)
    with closing(stream):
        stream.connect()
        for _ in range(SNAPSHOTS):
            # Without offsets, each start takes another snapshot.
            seconds(stream.chance, 1)
            stream.worker.kill()
            stream.table.change(10)
            stream.worker.start()
        stream.drive()
        stream.read_to_the_end()
        left, found = set(stream.table.source.rows()), set(stream.copy.rows())
        assert left <= found, "a row is missing, or is an older one"
        # What was deleted before a snapshot is never delivered.
        assert not {row[0] for row in left} & {row[0] for row in found - left}
        stream.kill_driver()
        stream.life["generation"] = 2
        stream.drive()
        stream.repair()
        stream.catch_up()
