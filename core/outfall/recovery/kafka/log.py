"""A log in two topics of Kafka, right without the broker's transactions."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator

from outfall.errors import RecordError, TransientError
from outfall.recovery.kafka.keys import EntryKey, StateKey
from outfall.recovery.kafka.partition import DeliveryUnknownError, Partition, Record
from outfall.recovery.kafka.view import ProgressView
from outfall.recovery.log import EntryExistsError, LogEntry, RecoveryLog
from outfall.steps import reached

CHUNK = 512 * 1024
"""Bytes of an entry or a state that go into one record; more are split. Brokers take 1 MiB by default."""

_PAUSE = 0.05


class KafkaLog(RecoveryLog):
    """Appends by writing and reading back: the order of the partition decides who came first.

    Three facts: a partition is totally ordered, and readers see the same order; compaction removes only what has a
    later record of its key, and no key of ours is used twice but for its tombstones; nobody gives the newest entry a
    tombstone. Where the rule is, see `ProgressView`; the whole argument is in docs/recovery-kafka.md.
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
        """Read and write nothing yet.

        Args:
            step_id: the step.
            progress: where entries are.
            states: where large states are.
            timeout: seconds that reading to the end may take, and waiting for what became of a record.
            chunk: bytes that go into one record.
            release: takes the log when it is closed, to be used again; left out, it is shut.
            clock: seconds that only grow.
            sleep: waits so many seconds.
        """
        self._step_id = step_id
        self._progress = progress
        self._states = states
        self._timeout = timeout
        self._chunk = chunk
        self._release = release
        self._stale = False
        self._clock = clock
        self._sleep = sleep
        self._view = ProgressView(step_id)
        self._position: int | None = None

    def read(self, *, last: int | None = None) -> list[LogEntry]:
        if last is not None and last < 0:
            raise ValueError(f"last must not be negative, not {last}")
        numbers = self.numbers()
        return self._view.entries(numbers if last is None else numbers[max(0, len(numbers) - last) :])

    def numbers(self) -> list[int]:
        self._catch_up()
        return self._view.numbers()

    def append(self, data: bytes, *, after: int) -> int:
        self._prepare()
        self._catch_up()
        self._require_newest(after)
        reached("log: newest checked")
        pieces = _pieces(data, self._chunk)
        key = EntryKey.new(self._step_id, after + 1, 0 if len(pieces) == 1 else len(pieces))
        if key.chunks:
            self._progress.write([(str(key.chunk(index)), piece) for index, piece in enumerate(pieces)])
            reached("log: chunks written")
        try:
            (offset,) = self._progress.write([(str(key), b"" if key.chunks else data)])
        except DeliveryUnknownError as error:
            self._await_verdict(key, error)
        else:
            reached("log: entry written")
            self._catch_up(until=offset + 1)
        return self._verdict(key)

    def sweep(self, *, keep: Collection[int], states: Collection[str], generation: int) -> None:
        self._catch_up()
        view = self._view
        below = min(max(keep, default=0), view.newest)
        # Each step is acknowledged before the next: a reader must never see a stray without the entry that made it
        # one, nor an entry without its chunks.
        if view.strays:
            self._bury([str(key) for key in view.strays])
            reached("log: strays swept")
        spent = [key for number, (key, _) in view.counted.items() if number < below and number not in keep]
        if spent:
            self._bury([str(key) for key in spent])
            reached("log: entry swept")
        self._catch_up()
        if dead := view.dead_chunks():
            self._bury([str(key) for key in dead])
            reached("log: chunks swept")
        self._sweep_states(states, generation)

    def write_state(self, name: str, data: bytes, *, generation: int) -> str:
        self._prepare()
        pieces = _pieces(data, self._chunk)
        key = StateKey.new(self._step_id, name, generation, len(pieces))
        # Announced first, so that a sweep finds what a crash leaves half written.
        self._progress.write([(str(key), str(len(data)).encode())])
        reached("log: state announced")
        offsets = self._states.write(list(zip(key.pieces(), pieces, strict=True)))
        reached("log: state durable")
        return key.stored_name(offsets[0])

    def read_state(self, name: str) -> bytes:
        key, offset = StateKey.stored(self._step_id, name)
        start, end = self._states.bounds()
        # Elsewhere only in a copy of the topic, made record by record.
        for begin in {min(max(offset, start), end): None, start: None}:
            found = self._pieces_from(key, begin, end)
            if found is not None:
                return found
        raise RecordError(
            f"the state {name!r} is not in {self._states.name}",
            step=self._step_id,
            why="a record names it, and no sweep removes what is recorded",
            do="restore the recovery data from a copy, both topics",
        )

    def close(self) -> None:
        if self._release is None or self._stale:
            self.shut()
        else:
            self._release(self)

    def shut(self) -> None:
        """Close the connections."""
        self._progress.close()
        self._states.close()

    def _prepare(self) -> None:
        self._progress.prepare()
        self._states.prepare()

    def _catch_up(self, *, until: int = 0) -> None:
        """Read to the end, and judge.

        The end is fixed before reading. Meanwhile others may have appended, swept and compacted away what was the
        newest entry at that end. So the end is asked for again until nothing can have come: up to the new one there
        is no offset that a record of this step has, or had.

        Raises:
            TransientError: the end does not hold still, or is not as far as `until`, within the deadline.
            RecordError: the topic was emptied or replaced.
        """
        deadline = self._clock() + self._timeout
        fresh: list[Record] = []
        position = self._position
        while True:
            start, end = self._progress.bounds()
            if position is not None and end < position:
                raise self._replaced(f"it ends at offset {end}, and was read up to {position}")
            begin = start if position is None else position
            came = list(self._until(deadline, self._progress.records(begin, end)))
            ours = [record for record in came if self._view.is_ours(record)]
            fresh += ours
            held_still = not ours and len(came) == end - begin
            position = end
            if held_still and end >= until:
                break
            if self._clock() >= deadline:
                raise self._restless(end, until)
            if held_still:
                self._sleep(_PAUSE)
        self._view.extend(fresh)
        # A topic that nobody has made yet may get a first offset of its own.
        self._position = position or None

    def _until(self, deadline: float, records: Iterator[Record]) -> Iterator[Record]:
        """Read under the deadline: tombstones may be removed some time after what they remove."""
        for record in records:
            if self._clock() >= deadline:
                raise self._restless(record.offset, 0)
            yield record

    def _require_newest(self, after: int) -> None:
        newest = self._view.newest
        if newest > after:
            raise EntryExistsError(after + 1)
        if newest < after:
            raise self._replaced(f"entry {after} is gone from it, where the newest is now {newest}")

    def _verdict(self, key: EntryKey) -> int:
        if self._view.has(key) and self._view.newest == key.number:
            return key.number
        raise EntryExistsError(key.number)

    def _await_verdict(self, key: EntryKey, error: DeliveryUnknownError) -> None:
        """Read until the record is seen, or another of its number that makes it too late; else give up as unknown."""
        deadline = self._clock() + self._timeout
        while True:
            self._catch_up()
            if self._view.newest >= key.number:
                return
            if self._clock() >= deadline:
                raise error
            self._sleep(_PAUSE)

    def _bury(self, keys: list[str]) -> None:
        self._progress.write([(key, None) for key in keys])

    def _sweep_states(self, keep: Collection[str], generation: int) -> None:
        kept = {StateKey.stored(self._step_id, name)[0].name for name in keep}
        spent = [key for key in self._view.states if key.generation < generation and key.name not in kept]
        if not spent:
            return
        # What announces them last, so that a sweep that was cut short is made good by the next.
        self._states.write([(piece, None) for key in spent for piece in key.pieces()])
        self._bury([str(key) for key in spent])
        reached("log: state swept")

    def _pieces_from(self, key: StateKey, start: int, end: int) -> bytes | None:
        wanted = dict.fromkeys(key.pieces())
        missing = set(wanted)
        found: dict[str, bytes] = {}
        deadline = self._clock() + self._timeout
        for record in self._until(deadline, self._states.records(start, end)):
            if record.key in missing and record.value is not None:
                found[record.key] = record.value
                missing.remove(record.key)
            if not missing:
                return b"".join(found[piece] for piece in wanted)
        return None

    def _replaced(self, what: str) -> RecordError:
        self._stale = True
        return RecordError(
            f"the topic {self._progress.name} was replaced: {what}",
            step=self._step_id,
            why="it was emptied, deleted or restored while the query ran",
            do="restore the topics from a copy, or start the query with a new checkpoint and a new prefix",
        )

    def _restless(self, end: int, until: int) -> TransientError:
        behind = f"it ends at offset {end}, and a record was written at {until - 1}" if end < until else ""
        return TransientError(
            f"reading {self._progress.name} to its end took longer than {self._timeout:g} s",
            step=self._step_id,
            why=behind or "it is long, or others write to it all the time",
            do="see whether it is compacted and whether another query uses this prefix, or give a longer timeout",
        )


def _pieces(data: bytes, size: int) -> list[bytes]:
    return [data[start : start + size] for start in range(0, len(data), size)] or [b""]
