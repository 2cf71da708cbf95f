"""The rule of the log in Kafka, against drivers that come between each other, crash, hear nothing, and compaction."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outfall.errors import TransientError
from outfall.recovery import EntryExistsError
from outfall.recovery.kafka.log import KafkaLog
from tests.unit.support.kafka_partition import Faults, Topic, memory_log
from tests.unit.support.schedules import Killed, Pause, every_schedule, play


def judged(topic: Topic) -> dict[int, bytes]:
    """What counts, by the simplest rule, from all that was ever written: who first took the next number has it."""
    counted: dict[int, bytes] = {}
    for record in topic.history:
        _, kind, number, *_ = record.key.split("/")
        if kind == "entry" and record.value is not None and int(number) == len(counted) + 1:
            counted[int(number)] = whole(topic, record.key)
    return counted


def whole(topic: Topic, key: str) -> bytes:
    step, _, number, token, chunks = key.split("/")
    values = {record.key: record.value for record in reversed(topic.history) if record.value is not None}
    if chunks == "0":
        return values[key] or b""
    return b"".join(values[f"{step}/chunk/{number}/{token}/{index}"] or b"" for index in range(int(chunks)))


def swept(topic: Topic) -> set[int]:
    """The numbers whose counting entry was given a tombstone."""
    first: dict[int, str] = {}
    for record in topic.history:
        _, kind, number, *_ = record.key.split("/")
        if kind == "entry" and record.value is not None and int(number) == len(first) + 1:
            first[int(number)] = record.key
    buried = {record.key for record in topic.history if record.value is None}
    return {number for number, key in first.items() if key in buried}


@dataclass
class Story:
    """What the drivers of one topic did, held against what counts."""

    topic: Topic = field(default_factory=Topic)
    states: Topic = field(default_factory=Topic)
    chunk: int = 4
    names: int = 0

    def driver(self, pause: Pause, *, rounds: int = 2, faults: Faults | None = None, sweeps: bool = True) -> None:
        """Take the step over, go on until fenced, and take it over again, as restarts of a query do."""
        log = memory_log(self.topic, self.states, pause=pause, faults=faults, chunk=self.chunk)
        with suppress(EntryExistsError, TransientError):
            newest = self.read(log)
            for _ in range(rounds):
                newest = self.append(log, newest)
                if sweeps:
                    self.sweep(log, newest)

    def read(self, log: KafkaLog) -> int:
        me, before = id(log), judged(self.topic)
        self.topic.reading_since[me] = self.topic.now
        try:
            found = {entry.number: entry.data for entry in log.read()}
        finally:
            del self.topic.reading_since[me]
        after, gone = judged(self.topic), swept(self.topic)
        assert found.items() <= after.items(), "an entry was read that does not count"
        assert before.keys() - gone <= found.keys(), "an entry that counts was not read"
        newest = max(found, default=0)
        assert newest >= max(before, default=0)
        return newest

    def append(self, log: KafkaLog, after: int) -> int:
        me = id(log)
        self.names += 1
        data = f"{self.names}".encode() * (1 + self.names % 2 * 8)
        self.topic.reading_since[me] = self.topic.now
        try:
            number = log.append(data, after=after)
        except EntryExistsError:
            taken = judged(self.topic)
            assert taken.get(after + 1) != data or after + 2 in taken, "the entry counts and nobody went on"
            assert after + 1 in taken
            raise
        finally:
            del self.topic.reading_since[me]
        assert number == after + 1
        assert judged(self.topic)[number] == data
        return number

    def sweep(self, log: KafkaLog, newest: int) -> None:
        me = id(log)
        self.topic.reading_since[me] = self.topic.now
        try:
            log.sweep(keep=[newest], states=[], generation=newest)
        finally:
            del self.topic.reading_since[me]

    def check(self) -> None:
        """A reader that was never here finds what counts, whatever compaction has removed."""
        for _ in range(2):
            found = {entry.number: entry.data for entry in memory_log(self.topic, chunk=self.chunk).read()}
            gone = swept(self.topic)
            assert found == {number: data for number, data in judged(self.topic).items() if number not in gone}
            assert not judged(self.topic) or max(judged(self.topic)) not in gone, "the newest was swept"
            self.topic.compact()
        numbers = [int(r.key.split("/")[2]) for r in self.topic.history if "/entry/" in r.key and r.value is not None]
        assert all(number <= len(judged(self.topic)) for number in numbers), "a writer left a hole"


def test_two_drivers_in_every_order_of_their_steps() -> None:
    def run(choose: Callable[[int], int]) -> None:
        story = Story(chunk=100)
        play([lambda pause: story.driver(pause, rounds=1, sweeps=False)] * 2, choose, lambda: None)
        assert len(judged(story.topic)) in (1, 2)
        story.check()

    assert every_schedule(run) > 1_000


def test_a_reader_beside_a_driver_that_sweeps_and_a_broker_that_compacts_in_every_order() -> None:
    def run(choose: Callable[[int], int]) -> None:
        story = Story(chunk=100)
        memory_log(story.topic).append(b"old", after=0)
        # A driver that slept wakes up: too late.
        story.topic.land((f"sink/entry/{1:020d}/{'f' * 32}/0", b"stray"))

        def reader(pause: Pause) -> None:
            story.read(memory_log(story.topic, pause=pause))

        def others(pause: Pause) -> None:
            log = memory_log(story.topic)
            log.append(b"new", after=1)
            pause()
            log.sweep(keep=[2], states=[], generation=2)
            while removable := story.topic.removable():
                pause()
                story.topic.remove(removable[choose(len(removable))])

        play([reader, others], choose, lambda: None)
        story.check()

    assert every_schedule(run) > 500


FATES = st.lists(st.sampled_from(["well", "well", "lost", "landed", "late"]), max_size=8)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_drivers_that_crash_and_hear_nothing_over_a_log_that_is_compacted(data: st.DataObject) -> None:
    play_at_random(data)


@pytest.mark.long
@settings(max_examples=3_000, deadline=None)
@given(st.data())
def test_drivers_that_crash_and_hear_nothing_for_long(data: st.DataObject) -> None:
    play_at_random(data)


def play_at_random(data: st.DataObject) -> None:
    story = Story()
    fates = [data.draw(FATES, label="fates") for _ in range(3)]
    ends = data.draw(st.lists(st.integers(3, 60), min_size=3, max_size=3), label="crashes")
    chance = data.draw(st.randoms(use_true_random=False))

    def between() -> None:
        if story.topic.late and chance.random() < 0.2:
            story.topic.arrive()
        if chance.random() < 0.5 and (removable := story.topic.removable()):
            story.topic.remove(chance.choice(removable))

    def driver(me: int) -> Callable[[Pause], None]:
        def job(pause: Pause) -> None:
            left = ends[me]

            def mortal() -> None:
                nonlocal left
                left -= 1
                if left == 0:
                    raise Killed
                pause()

            faults = Faults(list(fates[me]))
            with suppress(Killed):
                story.driver(mortal, rounds=3, faults=faults)
            # And starts again, for good.
            story.driver(pause, rounds=3)

        return job

    play([driver(me) for me in range(3)], chance.randrange, between)
    story.check()
