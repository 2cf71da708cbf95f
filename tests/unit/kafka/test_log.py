"""The log in Kafka over a partition in memory: entries, cleans up, large states, and what is kept."""

from __future__ import annotations

import os
from collections.abc import Generator

import pytest

from outfall.errors import RecordError, TransientError
from outfall.kafka.partition import TopicRecord
from outfall.kafka.recovery.log import KafkaLog
from outfall.recovery import EntryExistsError, LogEntry
from outfall.testing.local_engine import LocalDriver
from outfall.testing.memory_log import ByReference
from outfall.testing.recovery_contract import once_at
from tests.unit.support.kafka_partition import Faults, MemoryKafka, MemoryPartition, Time, Topic, memory_log


@pytest.fixture
def topic() -> Topic:
    return Topic()


@pytest.fixture
def states() -> Topic:
    return Topic()


def filled(topic: Topic, count: int) -> KafkaLog:
    log = memory_log(topic)
    for number in range(count):
        log.append(b"%d" % (number + 1), after=number)
    return log


def test_reading_and_cleaning_up_a_log_that_nobody_wrote_writes_nothing(topic: Topic) -> None:
    log = memory_log(topic)
    assert log.read() == []
    log.clean_up(keep=[], states=[], generation=9)
    assert topic.history == []


def test_a_number_freed_by_a_clean_up_is_refused_after_a_compaction_too(topic: Topic) -> None:
    filled(topic, 5).clean_up(keep=[5], states=[], generation=0)
    topic.compact()
    for after in range(5):
        with pytest.raises(EntryExistsError):
            memory_log(topic).append(b"late", after=after)
    assert memory_log(topic).append(b"next", after=5) == 6


def test_who_is_passed_before_it_reads_its_own_entry_stops(topic: Topic) -> None:
    older, newer = memory_log(topic), memory_log(topic)
    with once_at("log: entry written", lambda: newer.append(b"2", after=1)), pytest.raises(EntryExistsError):
        older.append(b"1", after=0)
    assert newer.numbers() == [1, 2]


def test_a_topic_that_is_shorter_than_it_was_is_refused(topic: Topic) -> None:
    log = filled(topic, 2)
    topic.kept.clear()
    topic.end = 0
    with pytest.raises(RecordError, match="replaced: it ends at offset 0, and was read up to 2"):
        log.append(b"x", after=2)
    assert topic.kept == {}


@pytest.mark.parametrize(
    ("last", "expected"),
    [(0, []), (1, [7]), (3, [4, 6, 7]), (4, [2, 4, 6, 7]), (9, [2, 4, 6, 7]), (None, [2, 4, 6, 7])],
)
def test_read_gives_the_newest_across_gaps(topic: Topic, last: int | None, expected: list[int]) -> None:
    log = filled(topic, 7)
    log.clean_up(keep=[2, 4, 6], states=[], generation=0)
    log.clean_up(keep=[2, 4, 6, 7], states=[], generation=0)
    assert [entry.number for entry in log.read(last=last)] == expected
    topic.compact()
    assert [entry.number for entry in memory_log(topic).read(last=last)] == expected


def test_the_newest_entry_is_never_cleaned_up(topic: Topic) -> None:
    filled(topic, 3).clean_up(keep=[99], states=[], generation=0)
    assert memory_log(topic).numbers() == [3]


def test_an_older_driver_is_rejected_on_every_write_not_only_at_its_start(topic: Topic) -> None:
    older = filled(topic, 1)
    newer = memory_log(topic)
    newer.append(b"BEGIN of the newer", after=1)
    for after in (1, 1):
        with pytest.raises(EntryExistsError):
            older.append(b"PREPARED of the older", after=after)
    with once_at("log: newest checked", lambda: newer.append(b"PREPARED", after=2)), pytest.raises(EntryExistsError):
        older.append(b"between its look and its write", after=2)
    assert [entry.data for entry in memory_log(topic).read()] == [b"1", b"BEGIN of the newer", b"PREPARED"]


def test_an_entry_whose_confirmation_is_lost_is_found_by_reading_back(topic: Topic) -> None:
    log = memory_log(topic, faults=Faults(["landed"]))
    assert log.append(b"there", after=0) == 1
    assert memory_log(topic).read() == [LogEntry(1, b"there")]


def test_an_entry_that_may_still_come_is_an_error_and_counts_or_not_by_when_it_comes(topic: Topic) -> None:
    log = memory_log(topic, faults=Faults(["late"]))
    with pytest.raises(TransientError, match="no answer"):
        log.append(b"late", after=0)
    assert memory_log(topic).read() == []
    topic.arrive()
    assert log.read() == [LogEntry(1, b"late")]

    with pytest.raises(TransientError, match="no answer"):
        memory_log(topic, faults=Faults(["late"])).append(b"too late", after=1)
    assert memory_log(topic).append(b"in time", after=1) == 2
    topic.arrive()
    assert memory_log(topic).read() == [LogEntry(1, b"late"), LogEntry(2, b"in time")]


def test_a_writer_that_hears_nothing_stops_when_it_sees_another_of_its_number(topic: Topic) -> None:
    log = memory_log(topic, faults=Faults(["late"]))
    with (
        once_at("log: newest checked", lambda: memory_log(topic).append(b"first", after=0)),
        pytest.raises(EntryExistsError),
    ):
        log.append(b"second", after=0)


def test_a_confirmed_entry_that_cannot_be_read_back_is_an_error_not_a_hang(
    topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = memory_log(topic)
    monkeypatch.setattr(MemoryPartition, "bounds", lambda self: (0, 0))
    with pytest.raises(TransientError, match="a record was written at 0"):
        log.append(b"x", after=0)


def test_a_log_that_never_holds_still_is_an_error_not_a_hang(topic: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    time = Time()
    log = KafkaLog("sink", MemoryPartition(topic), MemoryPartition(Topic()), timeout=1, clock=time, sleep=time.sleep)

    def restless(self: MemoryPartition) -> tuple[int, int]:
        time.seconds += 0.1
        topic.land((f"sink/entry/{1:020d}/{len(topic.history):032x}/0", b"x"))
        return 0, len(topic.history)

    monkeypatch.setattr(MemoryPartition, "bounds", restless)
    with pytest.raises(TransientError, match="to its end took longer than 1 s"):
        log.read()


@pytest.mark.parametrize("size", [10, 11, 25])
def test_an_entry_longer_than_a_record_is_split(topic: Topic, size: int) -> None:
    data = os.urandom(size)
    log = memory_log(topic, chunk=10)
    log.append(data, after=0)
    assert max(len(record.value or b"") for record in topic.history) <= 10
    assert memory_log(topic, chunk=10).read() == [LogEntry(1, data)]
    log.append(b"next", after=1)
    log.clean_up(keep=[2], states=[], generation=2)
    topic.compact()
    assert memory_log(topic).read() == [LogEntry(2, b"next")]
    assert [record.key.split("/")[1] for record in topic.kept.values() if record.value is not None] == ["entry"]


def test_chunks_of_an_entry_that_never_came_are_cleaned_up_when_it_can_no_longer_count(topic: Topic) -> None:
    crashed = memory_log(topic, chunk=4, faults=Faults(["well", "well", "lost"]))
    with pytest.raises(TransientError):
        crashed.append(b"12345678", after=0)
    log = memory_log(topic)
    log.clean_up(keep=[], states=[], generation=1)
    assert len(topic.kept) == 2, "its entry may still come"
    log.append(b"other", after=0)
    log.clean_up(keep=[1], states=[], generation=1)
    topic.compact()
    assert [record.key.split("/")[1] for record in topic.kept.values() if record.value is not None] == ["entry"]


def test_a_key_of_a_newer_release_is_refused(topic: Topic) -> None:
    filled(topic, 1)
    topic.land(("sink/vote/1", b"x"))
    with pytest.raises(RecordError, match=r"'sink/vote/1' of an unknown kind.*newer"):
        memory_log(topic).read()


def test_keys_of_others_are_none_of_our_business(topic: Topic) -> None:
    for key in ("", "x", "sink", "sinks/entry/1/x/0"):
        topic.land((key, b"x"))
    assert memory_log(topic).append(b"x", after=0) == 1


def test_a_large_state_is_given_back(topic: Topic, states: Topic) -> None:
    data = os.urandom(1_000_000)
    name = memory_log(topic, states, chunk=100_000).write_state("part/../ä 1", data, generation=3)
    assert name.startswith("g3-part_.._")
    assert len(name) < 200
    assert memory_log(topic, states).read_state(name) == data
    empty = memory_log(topic, states).write_state("p", b"", generation=3)
    assert memory_log(topic, states).read_state(empty) == b""


def test_a_state_is_found_in_a_copy_of_its_topic_where_offsets_differ(topic: Topic, states: Topic) -> None:
    log = memory_log(topic, states)
    for _ in range(3):
        name = log.write_state("p", b"state", generation=1)
    copy = Topic()
    for record in list(states.history)[1:]:
        copy.land((record.key, record.value))
    assert memory_log(topic, copy).read_state(name) == b"state"


def test_a_state_is_announced_before_it_is_written_so_that_a_crash_leaves_nothing_for_ever(
    topic: Topic, states: Topic
) -> None:
    log = memory_log(topic, states, chunk=4, faults=Faults(["well", "well", "lost"]))
    filled(topic, 1)
    with pytest.raises(TransientError):
        log.write_state("p", b"12345678", generation=1)
    assert len(states.kept) == 1
    memory_log(topic, states).clean_up(keep=[1], states=[], generation=2)
    states.compact()
    assert [record for record in states.kept.values() if record.value is not None] == []
    assert not any("/state/" in r.key for r in _compacted(topic) if r.value is not None)


def _compacted(topic: Topic) -> list[TopicRecord]:
    topic.compact()
    return list(topic.kept.values())


def test_states_are_cleaned_up_by_generation(topic: Topic, states: Topic) -> None:
    log = memory_log(topic, states)
    filled(topic, 2)
    stored = {generation: log.write_state("p", b"x", generation=generation) for generation in (1, 2, 9, 10)}
    kept = log.write_state("q", b"y", generation=1)
    log.clean_up(keep=[1, 2], states=[kept], generation=10)
    states.compact()
    reader = memory_log(topic, states)
    assert (reader.read_state(kept), reader.read_state(stored[10])) == (b"y", b"x")
    for generation in (1, 2, 9):
        with pytest.raises(RecordError, match=r"is not in .*restore"):
            reader.read_state(stored[generation])


@pytest.mark.parametrize("name", ["", "..", "../x.state", f"g1-p-{'0' * 32}.state.1", f"g1-../x-{'0' * 32}.state.0-1"])
def test_a_name_that_is_no_state_is_refused(topic: Topic, name: str) -> None:
    with pytest.raises(RecordError, match="not a valid name of a state"):
        memory_log(topic).read_state(name)


class Shelf(ByReference):
    """A sink of one part whose state is large."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.found: list[str] = []

    def list_parts(self) -> list[str]:
        return ["p"]

    def part_fn(self, key: str) -> int:
        return 0

    def build_part(self, step_id: str, for_part: str, resume_state: str | None) -> Shelf:
        if resume_state is not None:
            self.found.append(resume_state)
        return self

    def write_batch(self, values: list[object]) -> None:
        pass

    def snapshot(self) -> str:
        return "s" * self.size

    def close(self) -> None:
        pass


def run_epochs(recovery: MemoryKafka, epochs: int, *, size: int, compact_every: int) -> list[int]:
    """Run epochs, compact now and then, and return how many records are kept then."""
    kept = []
    driver = LocalDriver(Shelf(size), recovery)
    for epoch in range(epochs):
        driver.run_epoch(epoch, [[("p", epoch)]])
        if epoch % compact_every == compact_every - 1:
            recovery.progress.compact()
            recovery.states.compact()
            kept.append(len(recovery.progress.kept) + len(recovery.states.kept))
    return kept


def test_large_states_come_back_and_leave_nothing_behind() -> None:
    recovery = MemoryKafka()
    kept = run_epochs(recovery, 30, size=70_000, compact_every=10)
    assert kept == [kept[0], kept[0] + 10, kept[0] + 20], "one more COMPLETED for each epoch, and no state"
    values = [record for record in recovery.states.kept.values() if record.value is not None]
    assert [len(record.value or b"") for record in values] == [70_002]


class OneReading(MemoryPartition):
    """Counts the readings that are under way."""

    under_way = 0

    def records(self, start: int, end: int) -> Generator[TopicRecord]:
        self.under_way += 1
        try:
            yield from super().records(start, end)
        finally:
            self.under_way -= 1


def test_a_reading_that_ran_out_of_time_is_over_while_its_error_is_kept(topic: Topic, states: Topic) -> None:
    filled(topic, 3)
    partition, time = OneReading(topic), Time()
    log = KafkaLog("sink", partition, MemoryPartition(states), timeout=0.0, clock=time, sleep=time.sleep)
    with pytest.raises(TransientError, match="took longer than") as kept:
        log.read()
    assert kept.value.__traceback__ is not None
    assert partition.under_way == 0
