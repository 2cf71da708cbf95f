"""Large states: their pieces in a topic of their own, announced in that of progress."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import closing

from outfall.errors import RecordError
from outfall.kafka.keys import StateKey, own_name, written_here
from outfall.kafka.partition import Partition
from outfall.kafka.tail import ProgressTail
from outfall.trace_points import reached


class LargeStates:
    """The large states of one step."""

    def __init__(self, tail: ProgressTail, partition: Partition, chunk: int) -> None:
        """Read and write nothing yet."""
        self._tail = tail
        self._partition = partition
        self._chunk = chunk

    def write(self, label: str, data: bytes, generation: int) -> str:
        """Write a state durably; returns the name to read it back with."""
        pieces = split(data, self._chunk)
        key = StateKey.new(self._tail.step_id, label, generation, len(pieces))
        return key.stored_name(self._put(key, pieces))

    def restore(self, name: str, data: bytes) -> None:
        """Write a state that has its name from another log, unless it is here."""
        own, pieces = own_name(name), split(data, self._chunk)
        if self._tail.view.place(own) is None:
            announced = StateKey(self._tail.step_id, own, len(pieces))
            placed = StateKey(announced.step, own, len(pieces), self._put(announced, pieces))
            self._tail.partition.write([(str(placed), b"")])
            reached("log: state placed")

    def read(self, name: str) -> bytes:
        """Return a state.

        Raises:
            RecordError: it is not there.
        """
        found = self._where_its_name_says(name)
        if found is None:
            found = self._where_it_was_placed(name)
        if found is None:
            raise RecordError(
                f"the state {name!r} is not in {self._partition.name}",
                step=self._tail.step_id,
                why="a record names it, and no sweep removes what is recorded",
                do="restore the recovery data from a copy, both topics",
            )
        return found

    def sweep(self, keep: Collection[str], generation: int) -> None:
        """Remove the states of lower generations that are not to be kept."""
        kept = {own_name(name) for name in keep}
        spent = [key for key in self._tail.view.states if key.generation < generation and key.name not in kept]
        self._bury(spent, "log: state swept")

    def erase(self) -> None:
        """Remove all states."""
        self._bury(list(self._tail.view.states), "log: state erased")

    def _bury(self, keys: list[StateKey], step: str) -> None:
        if keys:
            # What announces them last, so that what was cut short is made good by the next.
            self._partition.write([(piece, None) for piece in dict.fromkeys(p for key in keys for p in key.pieces())])
            self._tail.bury(keys, step)

    def _put(self, key: StateKey, pieces: list[bytes]) -> int:
        """Announce a state and write it; returns the offset of its first piece."""
        # Announced first, so that a sweep finds what a crash leaves half written.
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
        # In another topic that it was copied to, something else lies there.
        return self._from(key, key.offset, only_there=True)

    def _where_it_was_placed(self, name: str) -> bytes | None:
        """Look where a copy has put it, and then everywhere: the topic may be a copy, made record by record."""
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
        """Collect the pieces of a state from an offset on; with `only_there` its first must lie at that offset."""
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
    """Return what goes into records of this size: one at least."""
    return [data[start : start + size] for start in range(0, len(data), size)] or [b""]
