"""The progress topic as one step's log reads and writes it: to the end, judged, under a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from contextlib import closing

from outfall.errors import RecordError, TransientError
from outfall.kafka.keys import CopyKey, EntryKey, ProgressKey
from outfall.kafka.partition import DeliveryUnknownError, Partition, Record
from outfall.kafka.view import ProgressView
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
        self.stale = False
        """Whether the topic was found replaced, so that what was read is of no use."""
        self._timeout = timeout
        self._clock = clock
        self._sleep = sleep
        self._position: int | None = None

    def catch_up(self, *, until: int = 0) -> ProgressView:
        """Read to the end, and judge.

        The end is fixed before reading. Meanwhile others may have appended, swept and compacted away what was the
        newest entry at that end. So the end is asked for again until nothing can have come: up to the new one there
        is no offset that a record of this step has, or had.

        Raises:
            TransientError: the end does not hold still, or is not as far as `until`, within the deadline.
            RecordError: the topic was emptied or replaced, or the log erased.
        """
        deadline = self.deadline()
        fresh: list[Record] = []
        position = self._position
        while True:
            start, end = self.partition.bounds()
            if position is not None and end < position:
                raise self.replaced(f"it ends at offset {end}, and was read up to {position}")
            begin = start if position is None else position
            came = list(self.within(deadline, self.partition.records(begin, end)))
            ours = [record for record in came if self.view.is_ours(record)]
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

    def forget(self) -> None:
        """Begin again with nothing read."""
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

    def within(self, deadline: float, records: Generator[Record]) -> Generator[Record]:
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
