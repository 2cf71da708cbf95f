"""A partition in memory, with compaction at its most disorderly, answers that get lost, and records that come late."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field

from outfall.errors import RecordError
from outfall.kafka.partition import DeliveryUnknownError, Partition, TopicRecord, Write
from outfall.kafka.recovery.log import KafkaLog
from outfall.kafka.recovery.progress import steps_in
from outfall.recovery import RecoveryConfig, RecoveryLog
from outfall.testing.memory_log import ByReference

_COMPACTED_AT = 300
"""How many records a broker in memory keeps before it compacts by itself, as one does."""


@dataclass
class Topic:
    """What the broker has. `history` is what it ever had: only the tests' own judgement reads it."""

    kept: dict[int, TopicRecord] = field(default_factory=dict)
    history: list[TopicRecord] = field(default_factory=list)
    remembers: bool = True
    """Whether there is a history."""
    end: int = 0
    """The offset of the next record."""
    lock: threading.RLock = field(default_factory=threading.RLock)
    late: list[Write] = field(default_factory=list)
    """Sent by a writer that was told nothing; may still arrive."""
    now: int = 0
    """Counts what has happened."""
    emptied_at: dict[int, int] = field(default_factory=dict)
    """Since when a tombstone has nothing before it to hide."""
    reading_since: dict[int, int] = field(default_factory=dict)
    """When each reader that is reading began: tombstones are kept for longer than any reading takes."""

    def land(self, write: Write) -> int:
        with self.lock:
            record = TopicRecord(self.end, *write)
            self.end += 1
            if self.remembers:
                self.history.append(record)
            self.kept[record.offset] = record
            self.now += 1
            return record.offset

    def arrive(self) -> None:
        """Let the oldest late record arrive."""
        self.land(self.late.pop(0))

    def removable(self) -> list[int]:
        """What compaction may remove: in no order, and singly, since readers may come between any two of its steps."""
        last = {record.key: record.offset for record in self.kept.values()}
        first: dict[str, int] = {}
        for record in self.kept.values():
            first.setdefault(record.key, record.offset)
        newest = max(self.kept, default=-1)
        superseded = [offset for offset, record in self.kept.items() if last[record.key] != offset]
        for offset, record in self.kept.items():
            if record.value is None and first[record.key] == offset:
                self.emptied_at.setdefault(offset, self.now)
        oldest = min(self.reading_since.values(), default=self.now + 1)
        expired = [
            offset
            for offset, since in self.emptied_at.items()
            if offset in self.kept and offset != newest and since < oldest and offset not in superseded
        ]
        return sorted({*superseded, *expired})

    def remove(self, offset: int) -> None:
        del self.kept[offset]
        self.now += 1

    def compact(self) -> None:
        """Compact everything that may be."""
        with self.lock:
            while removable := self.removable():
                for offset in removable:
                    self.remove(offset)


@dataclass
class Faults:
    """What becomes of the next writes: `"lost"`, `"landed"` or `"late"`, the answer missing; then all well."""

    next: list[str] = field(default_factory=list)


class MemoryPartition(Partition):
    """One reader's and writer's way to a topic. `pause` is called before everything that others could come between."""

    def __init__(self, topic: Topic, pause: Callable[[], None] = lambda: None, faults: Faults | None = None) -> None:
        self._topic = topic
        self._pause = pause
        self._faults = faults or Faults()
        self.asked = 0

    @property
    def name(self) -> str:
        return "memory-progress"

    def prepare(self) -> None:
        pass

    def bounds(self) -> tuple[int, int]:
        self._pause()
        self.asked += 1
        return 0, self._topic.end

    def records(self, start: int, end: int) -> Generator[TopicRecord]:
        if start > self._topic.end:
            raise RecordError("out of range")
        with self._topic.lock:
            offsets = [offset for offset in self._topic.kept if start <= offset < end]
        for offset in offsets:
            # It may be compacted away meanwhile.
            record = self._topic.kept.get(offset)
            if record is not None:
                yield record
                if offset + 1 < end:
                    self._pause()

    def write(self, writes: Sequence[Write]) -> list[int]:
        offsets = []
        unknown = False
        for write in writes:
            self._pause()
            fate = self._faults.next.pop(0) if self._faults.next else "well"
            if fate in ("well", "landed"):
                offsets.append(self._topic.land(write))
            if fate == "late":
                self._topic.late.append(write)
            unknown = unknown or fate != "well"
        if unknown:
            raise DeliveryUnknownError("no answer came")
        return offsets

    def close(self) -> None:
        pass


class Time:
    """Time that passes when somebody sleeps."""

    def __init__(self, pause: Callable[[], None] = lambda: None) -> None:
        self.seconds = 0.0
        self._pause = pause

    def __call__(self) -> float:
        return self.seconds

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds
        self._pause()


def memory_log(
    topic: Topic,
    states: Topic | None = None,
    *,
    step: str = "sink",
    pause: Callable[[], None] = lambda: None,
    faults: Faults | None = None,
    chunk: int = 1 << 20,
) -> KafkaLog:
    time = Time(pause)
    return KafkaLog(
        step,
        MemoryPartition(topic, pause, faults),
        MemoryPartition(states or Topic(), pause, faults),
        timeout=0.1,
        chunk=chunk,
        clock=time,
        sleep=time.sleep,
    )


class MemoryKafka(ByReference, RecoveryConfig):
    """Topics in this process, opened as a configuration does."""

    def __init__(self) -> None:
        self.progress, self.states = Topic(remembers=False), Topic(remembers=False)

    def open(self, step_id: str) -> RecoveryLog:
        if len(self.progress.kept) + len(self.states.kept) > _COMPACTED_AT:
            self.compact()
        return memory_log(self.progress, self.states, step=step_id)

    def steps(self) -> Sequence[str]:
        return steps_in(MemoryPartition(self.progress))

    def compact(self) -> None:
        """Compact everything that may be."""
        for topic in (self.progress, self.states):
            topic.compact()

    def compacted_bytes(self) -> int:
        """Compact everything that may be, and measure the rest."""
        self.compact()
        kept = [*self.progress.kept.values(), *self.states.kept.values()]
        return sum(len(record.key) + len(record.value or b"") for record in kept)

    def url(self) -> str:
        return f"test-kafka://{id(self)}"
