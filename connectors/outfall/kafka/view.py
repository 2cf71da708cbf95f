"""Which records count: the rule by which every reader numbers the same entries and ignores the rest."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from outfall.errors import RecordError
from outfall.kafka.keys import ChunkKey, CopiedKey, CopyKey, EntryKey, ProgressKey, StateKey, parse_key
from outfall.kafka.partition import Record
from outfall.recovery.log import LogEntry


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
        """Whether the newest entry was seen and is buried, with none after it, which no sweep does."""
        return self.newest > 0 and self.newest not in self.counted

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
