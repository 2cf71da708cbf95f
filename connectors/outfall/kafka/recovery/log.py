"""A log in two Kafka topics, without the broker's transactions: entries in one, large states in the other."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing

from outfall.errors import RecordError
from outfall.kafka.partition import CHUNK, Partition
from outfall.kafka.recovery.keys import CopyKey, EntryKey, StateKey, heartbeat_key, own_name, written_here
from outfall.kafka.recovery.progress import ProgressTail
from outfall.recovery.log import EntryExistsError, LogEntry, RecoveryLog, heartbeat_generation, missing_state
from outfall.trace_points import reached


class KafkaLog(RecoveryLog):
    """Appends by writing and reading back: the order of the partition determines the winner.

    Three facts: a partition is totally ordered, and all readers see the same order. Compaction removes a record only
    after a later record has its key, and each key is reused by tombstones only. The newest entry never gets a
    tombstone. See `ProgressView` for the rule, and docs/recovery-kafka.md for the whole argument.
    """

    def __init__(
        self,
        step_id: str,
        progress: Partition,
        states: Partition,
        *,
        timeout: float,
        chunk: int = CHUNK,
        release: Callable[[KafkaLog], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Send no request yet.

        `progress` has the entries, and `states` the large states. `timeout` is the maximum number of seconds to read to
        the end, and to wait for the outcome of a record; `chunk` the maximum bytes per record. `release` takes the log
        when it is closed, to use it again; without it the log is shut. `clock` returns seconds that only grow.
        """
        self._tail = ProgressTail(step_id, progress, timeout, clock, sleep)
        self._large = LargeStates(self._tail, states, chunk)
        self._partitions = progress, states
        self._chunk = chunk
        self._release = release

    def read(self, *, last: int | None = None, known: Mapping[int, bytes] | None = None) -> list[LogEntry]:
        if last is not None and last < 0:
            raise ValueError(f"last must not be negative, not {last}")
        numbers = self.numbers()
        return self._tail.view.entries(numbers if last is None else numbers[max(0, len(numbers) - last) :])

    def numbers(self) -> list[int]:
        return self._tail.catch_up().numbers()

    def append(self, data: bytes, *, after: int) -> int:
        self._prepare()
        self._require_newest(self._tail.catch_up().newest, after)
        reached("log: newest checked")
        pieces = split(data, self._chunk)
        key = EntryKey.new(self._tail.step_id, after + 1, 0 if len(pieces) == 1 else len(pieces))
        if key.chunks:
            self._tail.partition.write([(str(key.chunk(index)), piece) for index, piece in enumerate(pieces)])
            reached("log: chunks written")
        self._tail.resolve(key, b"" if key.chunks else data)
        if self._tail.view.has(key) and self._tail.view.newest == key.number:
            return key.number
        raise EntryExistsError(key.number)

    def clean_up(self, *, keep: Collection[int], states: Collection[str], generation: int) -> None:
        view = self._tail.catch_up()
        below = min(max(keep, default=0), view.newest)
        # Each group is acknowledged before the next. A reader must never see a stray without the entry that made it
        # one, an entry without its chunks, or the pieces of a copy without the copy.
        self._tail.write_tombstones(list(view.strays), "log: strays cleaned up")
        spent = [key for number, (key, _) in view.counted.items() if number < below and number not in keep]
        self._tail.write_tombstones(spent, "log: entry cleaned up")
        view = self._tail.catch_up()
        self._tail.write_tombstones(view.dead_pieces(), "log: chunks cleaned up")
        copy = view.spent_copy()
        self._tail.write_tombstones([] if copy is None else [copy], "log: copy cleaned up")
        self._large.clean_up(states, generation)
        self._delete_heartbeats(generation)

    def write_state(self, name: str, data: bytes, *, generation: int) -> str:
        self._prepare()
        return self._large.write(name, data, generation)

    def read_state(self, name: str) -> bytes:
        return self._large.read(name)

    def restore(self, entries: Sequence[LogEntry], states: Mapping[str, bytes]) -> None:
        """Copy another log into this one. One record at the end makes all entries valid; until then this log is empty.

        Raises `RecordError` if another writer wrote to this log before that record.
        """
        self._prepare()
        self._tail.catch_up()
        for name, data in states.items():
            self._large.restore(name, data)
        if entries and not self._tail.view.newest:
            self._restore_entries(entries)
        if self._tail.view.entries(self._tail.view.numbers()) != list(entries):
            raise RecordError(
                f"the log in {self._tail.partition.name} differs from the log that was copied",
                step=self._tail.step_id,
                why="another writer wrote to it meanwhile",
                do="stop the other writer, and copy to a prefix without records of this step",
            )

    def set_heartbeat(self, name: str, data: bytes | None) -> None:
        self._prepare()
        self._tail.partition.write([(heartbeat_key(self._tail.step_id, name), data)])

    def heartbeats(self) -> list[bytes]:
        self._tail.catch_up()
        return list(self._tail.heartbeats.values())

    def _delete_heartbeats(self, generation: float) -> None:
        step = self._tail.step_id
        spent = [name for name in self._tail.heartbeats if (heartbeat_generation(name) or 0) < generation]
        if spent:
            self._tail.partition.write([(heartbeat_key(step, name), None) for name in spent])

    def erase(self) -> None:
        """Write tombstones for every record of this step. The topics remain, and compaction removes the records."""
        self._tail.forget()  # after a failed call there may be more records than the view contains
        view = self._tail.catch_up()
        # Strays first: without the entry that made it one, a stray would become valid. Then the copy with all its
        # pieces, then the entries from the oldest to the newest, and last the records that have no effect without them.
        self._tail.write_tombstones(list(view.strays), "log: strays erased")
        self._tail.write_tombstones([] if view.copy is None else [view.copy], "log: copy erased")
        for key, _ in list(view.counted.values()):
            self._tail.write_tombstones([key], "log: entry erased")
        self._tail.write_tombstones(list(view.pieces), "log: chunks erased")
        self._large.erase()
        self._delete_heartbeats(math.inf)
        self._tail.forget()

    def close(self) -> None:
        if self._release is None or self._tail.stale:
            self.shut()
        else:
            self._release(self)

    def shut(self) -> None:
        """Close the connections."""
        for partition in self._partitions:
            partition.close()

    def _prepare(self) -> None:
        for partition in self._partitions:
            partition.prepare()

    def _restore_entries(self, entries: Sequence[LogEntry]) -> None:
        copy = CopyKey.new(self._tail.step_id, max(entry.number for entry in entries))
        for entry in entries:
            pieces = split(entry.data, self._chunk)
            keys = copy.pieces(entry.number, len(pieces))
            self._tail.partition.write([(str(key), piece) for key, piece in zip(keys, pieces, strict=True)])
            reached("log: entry restored")
        self._tail.resolve(copy, b"")

    def _require_newest(self, newest: int, after: int) -> None:
        if newest > after:
            raise EntryExistsError(after + 1)
        if newest < after:
            raise self._tail.replaced(f"entry {after} is missing from it, and the newest is now {newest}")


class LargeStates:
    """The large states of one step."""

    def __init__(self, tail: ProgressTail, partition: Partition, chunk: int) -> None:
        """Send no request yet."""
        self._tail = tail
        self._partition = partition
        self._chunk = chunk

    def write(self, label: str, data: bytes, generation: int) -> str:
        """Write a state durably; return its key."""
        pieces = split(data, self._chunk)
        key = StateKey.new(self._tail.step_id, label, generation, len(pieces))
        return key.stored_name(self._put(key, pieces))

    def restore(self, name: str, data: bytes) -> None:
        """Write a state whose name comes from another log, unless it exists here."""
        own, pieces = own_name(name), split(data, self._chunk)
        if self._tail.view.place(own) is None:
            announced = StateKey(self._tail.step_id, own, len(pieces))
            placed = StateKey(announced.step, own, len(pieces), self._put(announced, pieces))
            self._tail.partition.write([(str(placed), b"")])
            reached("log: state placed")

    def read(self, name: str) -> bytes:
        """Return a state. Raises `RecordError` if it does not exist."""
        found = self._where_its_name_says(name)
        if found is None:
            found = self._where_it_was_placed(name)
        if found is None:
            raise missing_state(name, where=self._partition.name, step_id=self._tail.step_id)
        return found

    def clean_up(self, keep: Collection[str], generation: int) -> None:
        """Remove the states of lower generations, except those to keep."""
        kept = {own_name(name) for name in keep}
        spent = [key for key in self._tail.view.states if key.generation < generation and key.name not in kept]
        self._write_tombstones(spent, "log: state cleaned up")

    def erase(self) -> None:
        """Remove all states."""
        self._write_tombstones(list(self._tail.view.states), "log: state erased")

    def _write_tombstones(self, keys: list[StateKey], step: str) -> None:
        if keys:
            # Their announcements last, so that the next erase completes an interrupted one.
            self._partition.write([(piece, None) for piece in dict.fromkeys(p for key in keys for p in key.pieces())])
            self._tail.write_tombstones(keys, step)

    def _put(self, key: StateKey, pieces: list[bytes]) -> int:
        """Announce a state and write it; return the offset of its first piece."""
        # Announced first, so that a clean-up finds the pieces of a write that crashed.
        self._tail.partition.write([(str(key), str(sum(map(len, pieces))).encode())])
        reached("log: state announced")
        offsets = self._partition.write(list(zip(key.pieces(), pieces, strict=True)))
        reached("log: state durable")
        return offsets[0]

    def _where_its_name_says(self, name: str) -> bytes | None:
        key = written_here(self._tail.step_id, name)
        if key is None or key.offset is None:
            return None
        start, _ = self._partition.bounds()
        if key.offset < start:
            return None
        # In a topic that the log was copied to, this offset has another record.
        return self._from(key, key.offset, only_there=True)

    def _where_it_was_placed(self, name: str) -> bytes | None:
        """Check the location that a copy recorded, and then the whole topic, which may be a copy of records."""
        key = self._tail.catch_up().place(own_name(name)) or written_here(self._tail.step_id, name)
        if key is None:
            return None
        start, _ = self._partition.bounds()
        for begin in {max(key.offset or 0, start): None, start: None}:
            found = self._from(key, begin)
            if found is not None:
                return found
        return None

    def _from(self, key: StateKey, start: int, *, only_there: bool = False) -> bytes | None:
        """Collect the pieces of a state from an offset on; with `only_there` the first must be at that offset."""
        wanted = key.pieces()
        missing = set(wanted)
        found: dict[str, bytes] = {}
        _, end = self._partition.bounds()
        if start >= end:
            return None
        with closing(self._tail.within(self._tail.deadline(), self._partition.records(start, end))) as records:
            for record in records:
                if record.key in missing and record.value is not None:
                    found[record.key] = record.value
                    missing.remove(record.key)
                elif only_there and not found:
                    return None
                if not missing:
                    return b"".join(found[piece] for piece in wanted)
        return None


def split(data: bytes, size: int) -> list[bytes]:
    """Return the pieces of a value for records of this size: at least one."""
    return [data[start : start + size] for start in range(0, len(data), size)] or [b""]
