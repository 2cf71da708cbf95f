"""Writes the rows of one attempt: one open file or object per partition, and the next one when one is full or old."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from operator import attrgetter
from typing import Any, Generic, TypeVar

import pyarrow as pa

from outfall.errors import TransientError
from outfall.sinks import StatelessSinkPartition
from outfall.values import rows_to_batch

K = TypeVar("K", bound=Hashable)
"""The partition of a row."""
E = TypeVar("E")
"""An output that was ended."""
C = TypeVar("C")
"""A committable."""

Split = Callable[[pa.RecordBatch], Iterable[tuple[K, pa.RecordBatch]]]
"""Returns each partition of the rows of a batch, and its rows in their order."""

_LOOK_AFTER = 256
"""The number of partitions of a batch after which held memory is bounded: each may have an overhead."""


class AllOrBroken:
    """Rejects all calls after a failure.

    Rows of a batch may be lost, and a second fsync may succeed although the first one lost the data.
    """

    _broken = False
    _closed = False

    @contextmanager
    def _all_or_broken(self) -> Iterator[None]:
        if self._broken or self._closed:
            raise TransientError(
                "this attempt cannot continue to write",
                why="its file is closed" if self._closed else "an earlier write or fsync of it failed",
                do="retry the task",
            )
        self._broken = True
        yield
        self._broken = False


class AttemptWriter(AllOrBroken, StatelessSinkPartition[Any], Generic[K, C]):
    """Splits the rows of one attempt by partition. An attempt that fails leaves nothing that can be published."""

    def __init__(self, split: Split[K]) -> None:
        self._split = split
        self._handed_over = False

    def write_batch(self, values: list[Any]) -> None:
        self.write_record_batch(rows_to_batch(values))

    def write_record_batch(self, batch: pa.RecordBatch) -> None:
        """Write each row to its partition."""
        with self._translated_errors(), self._all_or_broken():
            if batch.num_rows:
                self._take(batch)

    def prepare_commit(self) -> list[C]:
        """Make all rows durable, and return them as committables."""
        with self._translated_errors(), self._all_or_broken():
            committables = self._finish()
        self._handed_over = True
        return committables

    def close(self) -> None:
        """Release everything, and remove what a failed attempt has written. The next clean-up removes what remains."""
        if not self._closed:
            self._closed = True
            self._release(failed=not self._handed_over)

    def _take(self, batch: pa.RecordBatch) -> None:
        """Write the rows of a batch, of which there is at least one."""
        for count, (key, rows) in enumerate(self._split(batch), 1):
            self._write(key, rows)
            if count % _LOOK_AFTER == 0:
                self._bound_held()
        self._bound_kept()
        self._bound_held()

    @abstractmethod
    def _write(self, key: K, rows: pa.RecordBatch) -> None:
        """Write at least one row, all of one partition."""

    def _bound_kept(self) -> None:
        """Write rows if formats buffer too many of them. A batch adds no more than its own."""

    @abstractmethod
    def _bound_held(self) -> None:
        """Write bytes if all partitions together buffer too many."""

    @abstractmethod
    def _finish(self) -> list[C]:
        """Make all rows durable, and return the committables. Nothing is written afterwards."""

    @abstractmethod
    def _release(self, *, failed: bool) -> None:
        """Release everything; remove what was written if the attempt has `failed`. Called once."""

    def _translated_errors(self) -> AbstractContextManager[object]:
        """Translate errors of the store."""
        return nullcontext()


class Output(ABC, Generic[E]):
    """One file or object that is being written. It gets at least one row. After an error, only `close` is called."""

    @property
    @abstractmethod
    def kept(self) -> int:
        """The memory of rows that the format buffers until `spill`, such as row groups, in bytes."""

    @property
    def held(self) -> int:
        """The other memory, which only its end releases, in bytes."""
        return 0

    @property
    def full(self) -> bool:
        """Whether to end it after a write."""
        return False

    def takes(self, rows: pa.RecordBatch) -> bool:
        """Return whether more rows can follow in it; otherwise another one begins."""
        return True

    @abstractmethod
    def write_record_batch(self, batch: pa.RecordBatch) -> None:
        """Write rows of its partition."""

    @abstractmethod
    def spill(self) -> None:
        """Write the rows that the format buffers."""

    @abstractmethod
    def end(self) -> E:
        """Write the rest, and release it. It is durable at the latest when all outputs are handed over."""

    def close(self) -> None:
        """Release it without its end, because its attempt failed."""


class OutputWriter(AttemptWriter[K, C], Generic[K, E, C]):
    """Writes one output per partition. An attempt without rows begins none."""

    def __init__(
        self,
        split: Split[K],
        *,
        most_kept: int = 256 << 20,
        most_held: int | None = None,
        most_open: int | None = None,
    ) -> None:
        """Bound what all open outputs buffer together (see `Output`), in bytes, and their number.

        `most_kept`: the largest are spilled. `most_held`: the largest but the last one are ended. `most_open`: the
        least recently written one is ended before another one begins.
        """
        super().__init__(split)
        self._most_kept = most_kept
        self._most_held = most_held
        self._most_open = most_open
        self._open: OrderedDict[K, Output[E]] = OrderedDict()
        """The least recently written first."""
        self._ended: list[E] = []

    def close(self) -> None:
        with ExitStack() as stack:  # The writer continues after an error.
            stack.callback(super().close)
            while self._open:
                stack.callback(self._open.popitem()[1].close)

    @abstractmethod
    def _begin(self, key: K, rows: pa.RecordBatch) -> Output[E]:
        """Begin an output of a partition, for these rows and later ones."""

    @abstractmethod
    def _hand_over(self, ended: list[E]) -> list[C]:
        """Make all outputs and their names durable, and return them as committables."""

    def _write(self, key: K, rows: pa.RecordBatch) -> None:
        output = self._open.get(key)
        if output is not None and not output.takes(rows):
            self._end(key)
            output = None
        if output is None:
            while self._most_open is not None and len(self._open) >= self._most_open:
                self._end(next(iter(self._open)))
            output = self._open[key] = self._begin(key, rows)
        self._open.move_to_end(key)
        output.write_record_batch(rows)
        if output.full:
            self._end(key)

    def _end(self, key: K) -> None:
        self._ended.append(self._open[key].end())
        del self._open[key]

    def _bound_kept(self) -> None:
        kept = attrgetter("kept")
        while sum(map(kept, self._open.values())) > self._most_kept:
            max(self._open.values(), key=kept).spill()

    def _bound_held(self) -> None:
        if self._most_held is None:
            return
        while len(self._open) > 1 and sum(output.held for output in self._open.values()) > self._most_held:
            self._end(max(self._open, key=lambda key: self._open[key].held))

    def _finish(self) -> list[C]:
        for key in list(self._open):
            self._end(key)
        return self._hand_over(self._ended)
