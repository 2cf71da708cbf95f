"""The records of a ledger topic: the newest of each key counts, and a tombstone removes it."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest

from outfall.errors import FencedError, RecordError, TransientError
from outfall.kafka.partition import Partition, TopicRecord
from outfall.kafka.parts.cluster import LedgerTopic
from outfall.kafka.parts.ledger import (
    KafkaStepRecord,
    Ledger,
    PartRecord,
    StepName,
    beyond,
    check_not_ended,
    empty_row,
    written,
)
from outfall.part_ledger.checks import PartContext, PartRow
from tests.unit.support.kafka_cluster import ABORTED, COMMITTED, Broker, Entry, MemoryLedger, MemoryTopic, Transaction

OURS = StepName("ours", "sink", "events")
STEP = KafkaStepRecord(generation=3, token="three", parts=2)


class Noting(MemoryLedger):
    """Notes from where to where it is read."""

    def __init__(self, broker: Broker, reads: list[tuple[int, int]]) -> None:
        super().__init__(broker, lambda: None, committed=True)
        self._reads = reads

    def records(self, start: int, end: int) -> Generator[TopicRecord]:
        self._reads.append((start, end))
        yield from super().records(start, end)


class NotingTopic(MemoryTopic):
    def __init__(self, broker: Broker, reads: list[tuple[int, int]]) -> None:
        super().__init__(broker, lambda: None)
        self._reads = reads

    @property
    def committed(self) -> Partition:
        return Noting(self.broker, self._reads)


class Topic:
    """A ledger, whose records a test writes."""

    def __init__(self) -> None:
        self.broker = Broker()
        self.reads: list[tuple[int, int]] = []
        self.ledger = self.reader()

    def reader(self) -> Ledger:
        return Ledger("ledger", self.topic(), OURS)

    def topic(self) -> LedgerTopic:
        return NotingTopic(self.broker, self.reads)

    def write(self, key: str, record: Any, state: str = COMMITTED) -> int:
        name, value = written(key, record) if not isinstance(record, bytes) else (key, record)
        self.broker.ledger.append(Entry(Transaction("p", state), name, value))
        return len(self.broker.ledger) - 1

    def open(self) -> Transaction:
        """Begin a transaction that stays open."""
        self.write("ours/sink/events/9", part(9), "open")
        return self.broker.ledger[-1].transaction


def part(epoch: int) -> PartRecord:
    return PartRecord.of(PartRow("0", 3, epoch, 1, 10, 5, 77), "three", f"commit {epoch}")


def test_the_newest_record_of_each_key_counts_and_a_tombstone_removes_it() -> None:
    topic = Topic()
    topic.write(OURS.key, STEP)
    topic.write(f"{OURS.key}/0", part(1))
    topic.write(f"{OURS.key}/1", part(1))
    offset = topic.write(f"{OURS.key}/0", part(2))
    end = topic.ledger.read()
    assert end == 4
    assert topic.ledger.step() == STEP
    assert {name: found.record.epoch for name, found in topic.ledger.parts().items()} == {"0": 2, "1": 1}
    assert topic.ledger.parts()["0"].offset == offset
    assert topic.ledger.parts()["0"].record.row("0") == PartRow("0", 3, 2, 1, 10, 5, 77)

    topic.write(f"{OURS.key}/0", None)
    topic.write(f"{OURS.key}/7", None)  # of what never was
    topic.ledger.read()
    assert set(topic.ledger.parts()) == {"1"}
    topic.write(OURS.key, None)
    topic.ledger.read()
    assert topic.ledger.step() is None
    topic.write(OURS.key, None)
    topic.ledger.read()
    assert set(topic.ledger.parts()) == {"1"}


def test_records_of_other_steps_topics_and_incarnations_are_told_apart() -> None:
    topic = Topic()
    for key in ("theirs/sink/events", "ours/other/events", "ours/sink/other"):
        topic.write(key, STEP.model_copy(update={"generation": 9}))
        topic.write(f"{key}/0", part(9))
    topic.write("theirs/sink/events/1", part(8))
    topic.ledger.read()
    assert topic.ledger.step() is None
    assert topic.ledger.parts() == {}
    assert topic.ledger.incarnations() == {"theirs"}
    assert set(topic.ledger.parts("theirs")) == {"0", "1"}
    theirs = topic.ledger.step("theirs")
    assert theirs is not None
    assert theirs.generation == 9
    topic.write("only/sink/events/1", part(8))
    topic.ledger.read()
    assert topic.ledger.incarnations() == {"theirs", "only"}


@pytest.mark.parametrize("key", ["ours/sink/events", "ours/sink/events/0"])
def test_a_record_of_another_program_is_refused(key: str) -> None:
    topic = Topic()
    topic.write(key, b'{"generation": "x"}')
    with pytest.raises(RecordError, match=f"the record {key} at offset 0 of the ledger ledger cannot be read"):
        topic.ledger.read()


def test_nothing_is_read_twice_unless_an_earlier_start_is_asked_for() -> None:
    topic = Topic()
    for epoch in range(4):
        topic.write(f"{OURS.key}/{epoch}", part(epoch))
    topic.ledger.read(2)
    assert set(topic.ledger.parts()) == {"2", "3"}
    topic.ledger.read(3)
    topic.write(f"{OURS.key}/4", part(4))
    topic.ledger.read(2)
    topic.ledger.read(2)
    assert topic.reads == [(2, 4), (4, 5)]
    topic.ledger.read(1)
    assert set(topic.ledger.parts()) == {"1", "2", "3", "4"}
    assert topic.reads[2:] == [(1, 5)]
    topic.ledger.read(0)
    assert set(topic.ledger.parts()) == {"0", "1", "2", "3", "4"}


def test_a_read_without_waiting_ends_before_an_open_transaction() -> None:
    topic = Topic()
    topic.write(f"{OURS.key}/0", part(1))
    assert topic.ledger.is_stable()
    transaction = topic.open()
    assert not topic.ledger.is_stable()
    topic.ledger.read_stable()
    assert set(topic.ledger.parts()) == {"0"}
    with pytest.raises(TransientError, match="cannot be read to its end, only to offset 1"):
        topic.ledger.read()
    transaction.state = ABORTED
    topic.ledger.read()
    assert set(topic.ledger.parts()) == {"0"}
    assert topic.ledger.is_stable()


def test_an_offset_beyond_the_end_of_a_topic_shows_that_it_is_another_one() -> None:
    topic = Topic()
    topic.write(f"{OURS.key}/0", part(1))
    assert [beyond(offset, topic.topic()) for offset in (None, 0, 1, 2)] == [False, False, True, True]


def test_a_step_that_another_checkpoint_has_ended_stops() -> None:
    place = PartContext("events", "sink", 4)
    for fine in (None, STEP):
        check_not_ended(fine, place)
    with pytest.raises(FencedError, match="another query has permanently taken over events") as caught:
        check_not_ended(STEP.model_copy(update={"ended_by": "theirs"}), place, "1")
    assert (caught.value.step, caught.value.epoch, caught.value.part) == ("sink", 4, "1")


def test_names_and_rows_of_parts() -> None:
    assert OURS.transactional_id("prefix", "driver") == "prefix/ours/sink/events/driver"
    assert empty_row("3") == PartRow("3", 0, None, 0, 0, 0, 0)
    assert PartRecord.of(empty_row("3"), "t", "c").epoch == 0
    assert STEP.ready
    assert (STEP.record.generation, STEP.record.token, STEP.record.epoch) == (3, "three", None)
