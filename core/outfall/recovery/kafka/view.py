"""Which records count: the rule by which every reader numbers the same entries and ignores the rest."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from outfall.errors import RecordError
from outfall.recovery.kafka.keys import ChunkKey, EntryKey, ProgressKey, StateKey, parse_key
from outfall.recovery.kafka.partition import Record
from outfall.recovery.log import LogEntry


@dataclass
class ProgressView:
    """The records of one step, in the order of the partition, judged.

    An entry counts when its number is larger than that of every entry that counts before it. A writer wants the number
    after the newest entry it has read; so an entry that comes when somebody else has gone on from there is too late,
    whoever wrote it, and whenever it arrives. Tombstones are applied before anything is judged. What has been judged
    once is not judged again: a reader that was there knows more than one that comes after a compaction.

    docs/recovery-kafka.md has the argument why compaction changes no judgement.
    """

    step: str
    counted: dict[int, tuple[EntryKey, bytes]] = field(default_factory=dict)
    """By number, in this order: the entries that count and are kept."""
    strays: set[EntryKey] = field(default_factory=set)
    """Entries that came too late."""
    chunks: dict[ChunkKey, bytes] = field(default_factory=dict)
    states: set[StateKey] = field(default_factory=set)
    """The large states that were announced and are kept."""
    newest: int = 0
    """The largest number that counts."""

    def is_ours(self, record: Record) -> bool:
        """Whether a record is of this step."""
        return record.key.startswith(f"{self.step}/")

    def extend(self, records: Iterable[Record]) -> None:
        """Judge more records: all of this step from where the last call ended up to one moment.

        Raises:
            RecordError: a key is of a kind that this version does not know.
        """
        for key, value in self._kept(records).items():
            match key:
                case EntryKey():
                    self._judge(key, value)
                case ChunkKey():
                    self.chunks[key] = value
                case StateKey():
                    self.states.add(key)

    def numbers(self) -> list[int]:
        """Return the numbers of the entries that are kept, ascending."""
        return list(self.counted)

    def entries(self, numbers: Sequence[int]) -> list[LogEntry]:
        """Return entries, put together of their chunks.

        Raises:
            RecordError: a chunk is missing.
        """
        return [LogEntry(number, self._whole(*self.counted[number])) for number in numbers]

    def has(self, key: EntryKey) -> bool:
        """Whether this very entry counts and is kept."""
        return key.number in self.counted and self.counted[key.number][0] == key

    def dead_chunks(self) -> list[ChunkKey]:
        """Return the chunks of entries that do not count and never will."""
        owners = {(key.number, key.token) for key, _ in self.counted.values()}
        return [key for key in self.chunks if key.number <= self.newest and (key.number, key.token) not in owners]

    def _kept(self, records: Iterable[Record]) -> dict[ProgressKey, bytes]:
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
            self.strays.add(key)

    def _remove(self, key: ProgressKey) -> None:
        match key:
            case EntryKey():
                self.strays.discard(key)
                if self.has(key):
                    del self.counted[key.number]
            case ChunkKey():
                self.chunks.pop(key, None)
            case StateKey():
                self.states.discard(key)

    def _whole(self, key: EntryKey, value: bytes) -> bytes:
        if not key.chunks:
            return value
        pieces = [self.chunks.get(key.chunk(index)) for index in range(key.chunks)]
        if None in pieces:
            raise RecordError(
                f"recovery entry {key.number} lacks {pieces.count(None)} of its {key.chunks} chunks",
                step=self.step,
                why="they are written before it and removed after it, so somebody else has removed them",
                do="restore the recovery data from a copy",
            )
        return b"".join(piece for piece in pieces if piece is not None)
