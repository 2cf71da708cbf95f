"""The progress topic as one step's log reads and writes it: to the end, under a deadline, and which records count."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, field

from outfall.errors import RecordError, TransientError
from outfall.kafka.partition import DeliveryUnknownError, Partition, TopicRecord
from outfall.kafka.recovery.keys import (
    ChunkKey,
    CopiedKey,
    CopyKey,
    EntryKey,
    ProgressKey,
    StateKey,
    heartbeat_of,
    parse_key,
)
from outfall.recovery.log import LogEntry, is_step_id
from outfall.trace_points import reached

_PAUSE = 0.05


class ProgressTail:
    """Where a reader is in the topic, and what it has made of it."""

    def __init__(
        self,
        step_id: str,
        partition: Partition,
        timeout: float,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Read nothing yet; for the arguments see `KafkaLog`."""
        self.step_id = step_id
        self.partition = partition
        self.view = ProgressView(step_id)
        self.heartbeats: dict[str, bytes] = {}
        """Those of this step, by name."""
        self.stale = False
        """Whether the topic was found replaced, so that what was read is of no use."""
        self._timeout = timeout
        self._clock = clock
        self._sleep = sleep
        self._position: int | None = None

    def catch_up(self, *, until: int = 0) -> ProgressView:
        """Read to the end, and judge.

        The end is fixed before reading. Meanwhile others may have appended, cleaned up and compacted away what was the
        newest entry at that end. So the end is asked for again until nothing can have come: up to the new one there
        is no offset that a record of this step has, or had.

        Raises:
            TransientError: the end does not hold still, or is not as far as `until`, within the deadline.
            RecordError: the topic was emptied or replaced, or the log erased.
        """
        deadline = self.deadline()
        fresh: list[TopicRecord] = []
        position = self._position
        while True:
            start, end = self.partition.bounds()
            if position is not None and end < position:
                raise self.replaced(f"it ends at offset {end}, and was read up to {position}")
            begin = start if position is None else position
            came = list(self.within(deadline, self.partition.records(begin, end)))
            ours = [record for record in came if self.view.is_ours(record)]
            self._keep_heartbeats(came)
            fresh += ours
            held_still = not ours and len(came) == end - begin
            position = end
            if held_still and end >= until:
                break
            if self._clock() >= deadline:
                raise self._restless(end, until)
            if held_still:
                self._sleep(_PAUSE)
        self.view.extend(fresh)
        # A topic that nobody has made yet may get a first offset of its own.
        self._position = position or None
        if self.view.is_erased:
            raise self._erased()
        return self.view

    def _keep_heartbeats(self, came: Iterable[TopicRecord]) -> None:
        for record in came:
            name = heartbeat_of(self.step_id, record.key)
            if name is not None and record.value is not None:
                self.heartbeats[name] = record.value
            elif name is not None:
                self.heartbeats.pop(name, None)

    def forget(self) -> None:
        """Begin again with nothing read."""
        self.heartbeats.clear()
        self.view = ProgressView(self.step_id)
        self._position = None

    def settle(self, key: EntryKey | CopyKey, value: bytes) -> None:
        """Write a record that is judged by what came before it, and read on until it is judged.

        Raises:
            DeliveryUnknownError: it was not seen, nor another that makes it too late, within the deadline.
        """
        try:
            (offset,) = self.partition.write([(str(key), value)])
        except DeliveryUnknownError as error:
            self._await(key, error)
        else:
            reached(f"log: {'entry' if isinstance(key, EntryKey) else 'copy'} written")
            self.catch_up(until=offset + 1)

    def bury(self, keys: Sequence[ProgressKey], step: str) -> None:
        """Write the tombstones of some keys, if any, and wait until they are acknowledged; then the step is reached."""
        if keys:
            self.partition.write([(str(key), None) for key in keys])
            # They may be compacted away before they are read here.
            self.view.forget(keys)
            reached(step)

    def deadline(self) -> float:
        """Return when what begins now must be over."""
        return self._clock() + self._timeout

    def within(self, deadline: float, records: Generator[TopicRecord]) -> Generator[TopicRecord]:
        """Read under the deadline: tombstones may be removed some time after what they remove.

        The reading ends here, however this ends: an error that somebody keeps would keep it open, and end it in the
        middle of a later one.
        """
        with closing(records):
            for record in records:
                if self._clock() >= deadline:
                    raise self._restless(record.offset, 0)
                yield record

    def replaced(self, what: str) -> RecordError:
        """Say that the topic is another one now."""
        self.stale = True
        return RecordError(
            f"the topic {self.partition.name} was replaced: {what}",
            step=self.step_id,
            why="it was emptied, deleted or restored while the query ran",
            do="restore the topics from a copy, or start the query with a new checkpoint and a new prefix",
        )

    def _erased(self) -> RecordError:
        self.stale = True
        return RecordError(
            f"the log in {self.partition.name} was erased",
            step=self.step_id,
            why="its newest entry is gone; outfall reset does that",
            do="start the query anew; if nobody meant to reset it, restore the topics from a copy first",
        )

    def _await(self, key: EntryKey | CopyKey, error: DeliveryUnknownError) -> None:
        deadline = self.deadline()
        while not self.catch_up().is_judged(key):
            if self._clock() >= deadline:
                raise error
            self._sleep(_PAUSE)

    def _restless(self, end: int, until: int) -> TransientError:
        behind = f"it ends at offset {end}, and a record was written at {until - 1}" if end < until else ""
        return TransientError(
            f"reading {self.partition.name} to its end took longer than {self._timeout:g} s",
            step=self.step_id,
            why=behind or "it is long, or others write to it all the time",
            do="see whether it is compacted and whether another query uses this prefix, or give a longer timeout",
        )


@dataclass
class ProgressView:
    """The records of one step, in the order of the partition, judged.

    An entry counts when its number is larger than that of every entry that counts before it. A writer wants the number
    after the newest entry it has read; so an entry that comes when somebody else has gone on from there is too late,
    whoever wrote it, and whenever it arrives. A copy of another log counts when nothing counts before it, and then
    brings all that log's entries at once. Tombstones are applied before anything is judged. What has been judged once
    is not judged again: a reader that was there knows more than one that comes after a compaction.

    docs/recovery-kafka.md has the argument why compaction changes no judgement.
    """

    step: str
    counted: dict[int, tuple[EntryKey | CopiedKey, bytes]] = field(default_factory=dict)
    """By number, in this order: the entries that count and are kept."""
    strays: dict[EntryKey | CopyKey, None] = field(default_factory=dict)
    """What came too late, in the order of the partition, as all here."""
    pieces: dict[ChunkKey | CopiedKey, bytes] = field(default_factory=dict)
    """Of entries that count, that may come to count, and that do not."""
    states: dict[StateKey, None] = field(default_factory=dict)
    """The large states that were announced or placed, and are kept."""
    copy: CopyKey | None = None
    """The copy that this log began as, until it is spent."""
    newest: int = 0
    """The largest number that counts."""

    @property
    def is_erased(self) -> bool:
        """Whether the newest entry was seen and is buried, with none after it, which no clean-up does."""
        return self.newest > 0 and self.newest not in self.counted

    def is_ours(self, record: TopicRecord) -> bool:
        """Whether a record is of this step."""
        return record.key.startswith(f"{self.step}/")

    def extend(self, records: Iterable[TopicRecord]) -> None:
        """Judge more records: all of this step from where the last call ended up to one moment.

        Raises:
            RecordError: a key is of a kind that this version does not know.
        """
        for key, value in self._kept(records).items():
            match key:
                case EntryKey():
                    self._judge(key, value)
                case CopyKey():
                    self._judge_copy(key)
                case ChunkKey() | CopiedKey():
                    self.pieces[key] = value
                case StateKey():
                    self.states[key] = None

    def forget(self, keys: Iterable[ProgressKey]) -> None:
        """Take away what has a tombstone now."""
        for key in keys:
            self._remove(key)

    def numbers(self) -> list[int]:
        """Return the numbers of the entries that are kept, ascending."""
        return list(self.counted)

    def entries(self, numbers: Sequence[int]) -> list[LogEntry]:
        """Return entries, put together of their chunks.

        Raises:
            RecordError: a chunk is missing.
        """
        return [LogEntry(number, self._whole(*self.counted[number])) for number in numbers]

    def has(self, key: EntryKey | CopiedKey) -> bool:
        """Whether this very entry counts and is kept."""
        return key.number in self.counted and self.counted[key.number][0] == key

    def is_judged(self, key: EntryKey | CopyKey) -> bool:
        """Whether a record was read, or another that makes it too late whenever it comes."""
        return self.newest > 0 if isinstance(key, CopyKey) else self.newest >= key.number

    def dead_pieces(self) -> list[ChunkKey | CopiedKey]:
        """Return the pieces of entries that do not count, or are gone, and never will count."""
        owners = {(key.number, key.token) for key, _ in self.counted.values() if isinstance(key, EntryKey)}
        return [key for key in self.pieces if self._is_dead(key, owners)]

    def spent_copy(self) -> CopyKey | None:
        """Return the copy that this log began as when no piece of it is left and later entries count."""
        copy = self.copy
        if copy is None or self.newest <= copy.number:
            return None
        return None if any(isinstance(key, CopiedKey) and key.copy == copy for key in self.pieces) else copy

    def place(self, name: str) -> StateKey | None:
        """Return where a state lies that has its name from another log."""
        return next((key for key in self.states if key.name == name and key.offset is not None), None)

    def _kept(self, records: Iterable[TopicRecord]) -> dict[ProgressKey, bytes]:
        """Take away what has a tombstone, new and old."""
        kept: dict[ProgressKey, bytes] = {}
        for record in records:
            key = parse_key(self.step, record.key)
            if key is None:
                continue
            if record.value is None:
                kept.pop(key, None)
                self._remove(key)
            else:
                kept.setdefault(key, record.value)
        return kept

    def _judge(self, key: EntryKey, value: bytes) -> None:
        if key.number > self.newest:
            self.counted[key.number] = key, value
            self.newest = key.number
        else:
            self.strays[key] = None

    def _judge_copy(self, copy: CopyKey) -> None:
        if self.newest:
            self.strays[copy] = None
            return
        first = [(key, value) for key, value in self.pieces.items() if isinstance(key, CopiedKey) and key.index == 0]
        for key, value in sorted(first, key=lambda item: item[0].number):
            if key.copy == copy:
                self.counted[key.number] = key, value
        self.copy, self.newest = copy, copy.number

    def _is_dead(self, key: ChunkKey | CopiedKey, owners: set[tuple[int, str]]) -> bool:
        if isinstance(key, ChunkKey):
            return key.number <= self.newest and (key.number, key.token) not in owners
        return self.newest > 0 and not (key.copy == self.copy and self.has(key.copy.pieces(key.number, key.chunks)[0]))

    def _remove(self, key: ProgressKey) -> None:
        match key:
            case EntryKey():
                self.strays.pop(key, None)
                self._uncount(key)
            case CopyKey():
                self.strays.pop(key, None)
                self.copy = None if key == self.copy else self.copy
            case CopiedKey():
                self.pieces.pop(key, None)
                self._uncount(key)
            case ChunkKey():
                self.pieces.pop(key, None)
            case StateKey():
                self.states.pop(key, None)

    def _uncount(self, key: EntryKey | CopiedKey) -> None:
        if self.has(key):
            del self.counted[key.number]

    def _whole(self, key: EntryKey | CopiedKey, value: bytes) -> bytes:
        if isinstance(key, EntryKey) and not key.chunks:
            return value
        keys = key.all() if isinstance(key, CopiedKey) else [key.chunk(index) for index in range(key.chunks)]
        found = [piece for part in keys if (piece := self.pieces.get(part)) is not None]
        if len(found) < len(keys):
            raise RecordError(
                f"recovery entry {key.number} lacks {len(keys) - len(found)} of its {len(keys)} chunks",
                step=self.step,
                why="they are written before it and removed after it, so somebody else has removed them",
                do="restore the recovery data from a copy",
            )
        return b"".join(found)


def steps_in(progress: Partition) -> list[str]:
    """Return the ids of the steps that have a record without a tombstone, sorted. Reads the whole topic.

    Raises:
        TransientError: the broker did not give it in time.
    """
    live: set[str] = set()
    position, end = progress.bounds()
    while position < end:
        with closing(progress.records(position, end)) as records:
            for record in records:
                if record.value is None:
                    live.discard(record.key)
                else:
                    live.add(record.key)
        # What was buried while it was read, and compacted away, has a successor behind the end.
        position, (_, end) = end, progress.bounds()
    return sorted({step for step in (key.split("/")[0] for key in live) if is_step_id(step)})
