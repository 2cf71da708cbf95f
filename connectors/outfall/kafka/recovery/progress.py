"""The progress topic as one step's log uses it: reads to the end under a deadline, and the rule of valid records."""

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
    """A reader's position in the topic, and its view of the records."""

    def __init__(
        self,
        step_id: str,
        partition: Partition,
        timeout: float,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Read nothing yet; see `KafkaLog` for the arguments."""
        self.step_id = step_id
        self.partition = partition
        self.view = ProgressView(step_id)
        self.heartbeats: dict[str, bytes] = {}
        """The heartbeats of this step, by name."""
        self.stale = False
        """Whether the topic was replaced, so that the view is useless."""
        self._timeout = timeout
        self._clock = clock
        self._sleep = sleep
        self._position: int | None = None

    def catch_up(self, *, until: int = 0) -> ProgressView:
        """Read to the end and update the view.

        The end is fixed before the read. Meanwhile others may have appended records, cleaned up the newest entry before
        that end, and had it compacted. The end is therefore queried again, until the range up to the new end has no
        offset of a present or former record of this step.

        Raises `TransientError` if the end keeps moving, or does not reach `until`, within the deadline, and
        `RecordError` if the topic was emptied or replaced, or the log was erased.
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
        # A topic that does not exist yet may get its own first offset.
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
        """Start again with an empty view."""
        self.heartbeats.clear()
        self.view = ProgressView(self.step_id)
        self._position = None

    def resolve(self, key: EntryKey | CopyKey, value: bytes) -> None:
        """Write a record whose validity depends on earlier records, and read on until it is determined.

        Raises `DeliveryUnknownError` if neither the record nor one that makes it a stray was read within the deadline.
        """
        try:
            (offset,) = self.partition.write([(str(key), value)])
        except DeliveryUnknownError as error:
            self._await(key, error)
        else:
            reached(f"log: {'entry' if isinstance(key, EntryKey) else 'copy'} written")
            self.catch_up(until=offset + 1)

    def write_tombstones(self, keys: Sequence[ProgressKey], step: str) -> None:
        """Write the tombstones of some keys, if any, and wait for the acknowledgments; then report the trace point."""
        if keys:
            self.partition.write([(str(key), None) for key in keys])
            # They may be compacted before they are read here.
            self.view.forget(keys)
            reached(step)

    def deadline(self) -> float:
        """Return the deadline of an operation that begins now."""
        return self._clock() + self._timeout

    def within(self, deadline: float, records: Generator[TopicRecord]) -> Generator[TopicRecord]:
        """Read under the deadline: tombstones may be removed some time after the records that they remove.

        The read ends here in any case. An error that its caller keeps would otherwise keep the read open, and close it
        in the middle of a later one.
        """
        with closing(records):
            for record in records:
                if self._clock() >= deadline:
                    raise self._restless(record.offset, 0)
                yield record

    def replaced(self, what: str) -> RecordError:
        """Return the error for a topic that was replaced."""
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
            why="its newest entry is missing; outfall reset removes it",
            do="start the query again; if the reset was not intended, first restore the topics from a copy",
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
            why=behind or "it is long, or others keep writing to it",
            do="check whether it is compacted and whether another query uses this prefix, or raise the timeout",
        )


@dataclass
class ProgressView:
    """The records of one step, in the order of the partition, with their validity.

    An entry is valid if its number is larger than that of every valid entry before it. A writer uses the number after
    the newest entry it has read. If another writer has appended that number first, the entry is a stray, whenever it
    arrives. A copy of another log is valid if no valid record precedes it, and makes all entries of that log valid at
    once. Tombstones are applied first. A decision is final: a reader that was there knows more than one that comes
    after a compaction.

    docs/recovery-kafka.md argues why compaction changes no decision.
    """

    step: str
    counted: dict[int, tuple[EntryKey | CopiedKey, bytes]] = field(default_factory=dict)
    """The valid entries that still exist, in the order of their numbers."""
    strays: dict[EntryKey | CopyKey, None] = field(default_factory=dict)
    """The strays, in the order of the partition."""
    pieces: dict[ChunkKey | CopiedKey, bytes] = field(default_factory=dict)
    """Pieces of entries: valid, not yet decided, and strays."""
    states: dict[StateKey, None] = field(default_factory=dict)
    """The large states that were announced or located and still exist."""
    copy: CopyKey | None = None
    """The copy that this log began with, until it is removed."""
    newest: int = 0
    """The largest valid number."""

    @property
    def is_erased(self) -> bool:
        """Whether the newest entry was read and has a tombstone, with no later entry. Clean-up never does this."""
        return self.newest > 0 and self.newest not in self.counted

    def is_ours(self, record: TopicRecord) -> bool:
        """Whether a record belongs to this step."""
        return record.key.startswith(f"{self.step}/")

    def extend(self, records: Iterable[TopicRecord]) -> None:
        """Add records: all of this step, from the end of the last call up to one moment.

        Raises `RecordError` if a key has an unknown kind.
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
        """Remove records that have a tombstone now."""
        for key in keys:
            self._remove(key)

    def numbers(self) -> list[int]:
        """Return the numbers of the existing entries, ascending."""
        return list(self.counted)

    def entries(self, numbers: Sequence[int]) -> list[LogEntry]:
        """Return entries, assembled from their chunks. Raises `RecordError` if a chunk is missing."""
        return [LogEntry(number, self._whole(*self.counted[number])) for number in numbers]

    def has(self, key: EntryKey | CopiedKey) -> bool:
        """Whether exactly this entry is valid and still exists."""
        return key.number in self.counted and self.counted[key.number][0] == key

    def is_judged(self, key: EntryKey | CopyKey) -> bool:
        """Whether the record was read, or another one that makes it a stray whenever it arrives."""
        return self.newest > 0 if isinstance(key, CopyKey) else self.newest >= key.number

    def dead_pieces(self) -> list[ChunkKey | CopiedKey]:
        """Return the pieces of entries that are strays or removed, and never become valid."""
        owners = {(key.number, key.token) for key, _ in self.counted.values() if isinstance(key, EntryKey)}
        return [key for key in self.pieces if self._is_dead(key, owners)]

    def spent_copy(self) -> CopyKey | None:
        """Return the copy that this log began with, once no piece of it is left and later entries are valid."""
        copy = self.copy
        if copy is None or self.newest <= copy.number:
            return None
        return None if any(isinstance(key, CopiedKey) and key.copy == copy for key in self.pieces) else copy

    def place(self, name: str) -> StateKey | None:
        """Return the key with the location of a state whose name comes from another log."""
        return next((key for key in self.states if key.name == name and key.offset is not None), None)

    def _kept(self, records: Iterable[TopicRecord]) -> dict[ProgressKey, bytes]:
        """Remove the records that have a tombstone, new and old."""
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
                why="they are written before it and removed after it, so another program has removed them",
                do="restore the recovery data from a copy",
            )
        return b"".join(found)


def steps_in(progress: Partition) -> list[str]:
    """Return the ids of the steps that have a record without a tombstone, sorted. Reads the whole topic.

    Raises `TransientError` if the broker did not return it in time.
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
        # A record that was removed and compacted during the read has a successor after the end.
        position, (_, end) = end, progress.bounds()
    return sorted({step for step in (key.split("/")[0] for key in live) if is_step_id(step)})
