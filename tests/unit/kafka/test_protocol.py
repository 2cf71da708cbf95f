"""The rule of the log in Kafka, against drivers that come between each other, crash, hear nothing, and compaction."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outfall import trace_points
from outfall.errors import RecordError, TransientError
from outfall.kafka.recovery.log import KafkaLog
from outfall.recovery import EntryExistsError, LogEntry
from tests.unit.support.kafka_partition import Faults, Topic, memory_log
from tests.unit.support.schedules import Killed, Pause, every_schedule, play

Judged = dict[int, tuple[str, bytes]]
COPIED = [LogEntry(2, b"two"), LogEntry(4, b"a long four"), LogEntry(5, b"")]


def judged(topic: Topic) -> Judged:
    """What counts, by the simplest rule, from all that was ever written: who first took the next number has it.

    By number: the key of the record that holds it, or of its first piece, and the entry.
    """
    values = {record.key: record.value for record in reversed(topic.history) if record.value is not None}
    counted: Judged = {}
    for record in topic.history:
        _, kind, number, *_ = record.key.split("/")
        if record.value is None:
            continue
        if kind == "entry" and int(number) == max(counted, default=0) + 1:
            counted[int(number)] = record.key, whole(values, record.key)
        if kind == "copy" and not counted:
            counted |= copied(values, record.key.replace("/copy/", "/copied/"))
    return counted


def whole(values: dict[str, bytes], key: str) -> bytes:
    step, _, number, token, chunks = key.split("/")
    if chunks == "0":
        return values[key]
    return b"".join(values[f"{step}/chunk/{number}/{token}/{index}"] for index in range(int(chunks)))


def copied(values: dict[str, bytes], prefix: str) -> Judged:
    found: Judged = {}
    for key in values:
        if key.startswith(f"{prefix}/"):
            number, index, chunks = key.removeprefix(f"{prefix}/").split("/")
            if index == "0":
                pieces = [values[f"{prefix}/{number}/{piece}/{chunks}"] for piece in range(int(chunks))]
                found[int(number)] = key, b"".join(pieces)
    return dict(sorted(found.items()))


def contents(topic: Topic) -> dict[int, bytes]:
    return {number: data for number, (_, data) in judged(topic).items()}


def cleaned_up(topic: Topic) -> set[int]:
    """The numbers whose counting entry was given a tombstone."""
    buried = {record.key for record in topic.history if record.value is None}
    return {number for number, (key, _) in judged(topic).items() if key in buried}


@dataclass
class Story:
    """What the drivers of one topic did, held against what counts."""

    topic: Topic = field(default_factory=Topic)
    states: Topic = field(default_factory=Topic)
    chunk: int = 4
    names: int = 0

    def driver(self, pause: Pause, *, rounds: int = 2, faults: Faults | None = None, cleans_up: bool = True) -> None:
        """Take the step over, go on until fenced, and take it over again, as restarts of a query do."""
        log = memory_log(self.topic, self.states, pause=pause, faults=faults, chunk=self.chunk)
        with suppress(EntryExistsError, TransientError):
            newest = self.read(log)
            for _ in range(rounds):
                newest = self.append(log, newest)
                if cleans_up:
                    self.clean_up(log, newest)

    def read(self, log: KafkaLog) -> int:
        me, before = id(log), contents(self.topic)
        self.topic.reading_since[me] = self.topic.now
        try:
            found = {entry.number: entry.data for entry in log.read()}
        finally:
            del self.topic.reading_since[me]
        after, gone = contents(self.topic), cleaned_up(self.topic)
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
            taken = contents(self.topic)
            assert taken.get(after + 1) != data or after + 2 in taken, "the entry counts and nobody went on"
            assert after < max(taken)
            raise
        finally:
            del self.topic.reading_since[me]
        assert number == after + 1
        assert contents(self.topic)[number] == data
        return number

    def clean_up(self, log: KafkaLog, newest: int) -> None:
        me = id(log)
        self.topic.reading_since[me] = self.topic.now
        try:
            log.clean_up(keep=[newest], states=[], generation=newest)
        finally:
            del self.topic.reading_since[me]

    def copy(self, pause: Pause, *, faults: Faults | None = None) -> None:
        """Bring another log here, which succeeds only when nobody wrote to this one before."""
        log = memory_log(self.topic, self.states, pause=pause, faults=faults, chunk=self.chunk)
        me = id(log)
        self.topic.reading_since[me] = self.topic.now
        before = contents(self.topic)
        try:
            log.restore(COPIED, {})
        except (RecordError, TransientError):
            return
        finally:
            del self.topic.reading_since[me]
        assert not before or before.items() >= {entry.number: entry.data for entry in COPIED}.items()
        assert contents(self.topic).items() >= {entry.number: entry.data for entry in COPIED}.items()

    def check(self) -> None:
        """A reader that was never here finds what counts, whatever compaction has removed."""
        for _ in range(2):
            found = {entry.number: entry.data for entry in memory_log(self.topic, chunk=self.chunk).read()}
            gone = cleaned_up(self.topic)
            assert found == {number: data for number, data in contents(self.topic).items() if number not in gone}
            assert not judged(self.topic) or max(judged(self.topic)) not in gone, "the newest was cleaned up"
            self.topic.compact()
        numbers = [int(r.key.split("/")[2]) for r in self.topic.history if "/entry/" in r.key and r.value is not None]
        assert all(number <= max(judged(self.topic)) for number in numbers), "a writer left a hole"


@pytest.mark.thorough
def test_two_drivers_in_every_order_of_their_steps() -> None:
    def run(choose: Callable[[int], int]) -> None:
        story = Story(chunk=100)
        play([lambda pause: story.driver(pause, rounds=1, cleans_up=False)] * 2, choose, lambda: None)
        assert len(judged(story.topic)) in (1, 2)
        story.check()

    assert every_schedule(run) > 1_000


@pytest.mark.thorough
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
            log.clean_up(keep=[2], states=[], generation=2)
            while removable := story.topic.removable():
                pause()
                story.topic.remove(removable[choose(len(removable))])

        play([reader, others], choose, lambda: None)
        story.check()

    assert every_schedule(run) > 500


def at_steps(job: Callable[[Pause], None]) -> Callable[[Pause], None]:
    """A job that others come between only where it names a step: after each of its records."""

    def stepping(pause: Pause) -> None:
        me = threading.current_thread()
        remove = trace_points.listen(lambda step: pause() if threading.current_thread() is me else None)
        try:
            job(lambda: None)
        finally:
            remove()

    return stepping


@pytest.mark.thorough
def test_a_reader_beside_a_copy_finds_nothing_or_all_of_it_in_every_order() -> None:
    def run(choose: Callable[[int], int]) -> None:
        story = Story()
        found: list[list[int]] = []

        def reader(pause: Pause) -> None:
            log = memory_log(story.topic, pause=pause)
            found.extend(log.numbers() for _ in range(2))

        play([reader, at_steps(story.copy)], choose, lambda: None)
        assert found in ([[], []], [[], [2, 4, 5]], [[2, 4, 5], [2, 4, 5]])
        story.check()

    assert every_schedule(run) > 100


@pytest.mark.thorough
def test_a_copy_beside_a_driver_that_begins_the_log_in_every_order_has_one_winner() -> None:
    winners = set()

    def run(choose: Callable[[int], int]) -> None:
        story = Story(chunk=100)
        driver = partial(story.driver, rounds=1, cleans_up=False)
        play([driver, at_steps(story.copy)], choose, lambda: None)
        winners.add(min(judged(story.topic)))
        story.check()

    assert every_schedule(run) > 100
    assert winners == {1, 2}


FATES = st.lists(st.sampled_from(["well", "well", "lost", "landed", "late"]), max_size=8)


@pytest.mark.thorough
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
    copies = data.draw(st.integers(0, 2), label="copies")
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

    def copier(pause: Pause) -> None:
        story.copy(pause, faults=Faults(list(fates[0])))
        story.copy(pause)

    play([*map(driver, range(3)), *[copier] * copies], chance.randrange, between)
    story.check()
