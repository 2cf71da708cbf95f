"""Buffers rows for batches of the configured size."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from datetime import timedelta
from functools import cached_property
from itertools import accumulate
from typing import Any, Protocol

import pyarrow as pa
from pydantic import ByteSize, Field

from outfall.errors import ValueRefusedError
from outfall.options import Duration, SinkOptions
from outfall.values import rows_to_batch


class BatchLimits(SinkOptions):
    """When a batch is complete: at the first limit reached. The options of `format("outfall")`."""

    owner = "BatchingSink"

    batch_size: int = Field(default=1000, ge=1, description="Number of rows in a batch.")
    flush_interval: Duration = Field(
        default=timedelta(seconds=30),
        description="Maximum age of the oldest row in a batch. The batch is then written.",
    )
    batch_bytes: ByteSize | None = Field(
        default=None, gt=0, description="Maximum size of a batch in Arrow memory. A larger row becomes its own batch."
    )


class BatchingOptions(BatchLimits):
    """When a batch is complete, and whether it is buffered across epochs."""

    across_epochs: bool = Field(
        default=False,
        description="Whether an incomplete batch is buffered across epochs. A change needs a new checkpoint.",
    )


class Buffer:
    """Chunks in order. Determines which batch is due; a batch stays buffered until `drop`."""

    def __init__(self, options: BatchingOptions) -> None:
        """Start empty."""
        self._options = options
        self._chunks: list[Any] = []
        self._run = 0
        """Number of chunks at the front whose columns fit into one batch."""
        self.rows = 0
        self._size = 0
        self._oldest: list[tuple[int, float]] = []
        """The arrival times, each with the first row that it applies to, counted from the oldest buffered row."""

    @property
    def oldest(self) -> float | None:
        """When the oldest row arrived, in seconds since 1970; `None` if there is none."""
        return self._oldest[0][1] if self._oldest else None

    @property
    def chunks(self) -> list[Any]:
        """The buffered chunks."""
        return list(self._chunks)

    def add(self, chunk: Any, time: float) -> None:
        """Add rows that arrived at `time`, in seconds since 1970."""
        if not chunk.rows:
            return
        self._oldest.append((self.rows, time))
        self._chunks.append(chunk)
        self._extend_run()
        self.rows += chunk.rows
        self._size += self._measured(chunk)

    def due(self, now: float, *, everything: bool = False) -> Any | None:
        """Return the next batch to write, `None` if none is due. With `everything` the rest is due too."""
        if not self._chunks:
            return None
        options = self._options
        full = self.rows >= options.batch_size
        full |= options.batch_bytes is not None and self._size >= options.batch_bytes
        aged = now - self._oldest[0][1] >= options.flush_interval.total_seconds()
        if not (full or aged or everything or self._run < len(self._chunks)):
            return None
        return self._cut(self._chunks[: self._run])

    def drop(self, rows: int) -> None:
        """Remove the oldest rows, after they are written."""
        left = rows
        while left:
            first = self._chunks[0]
            if first.rows > left:
                self._chunks[0] = first.cut(left, first.rows)
                self._size += self._measured(self._chunks[0]) - self._measured(first)
                left = 0
            else:
                left -= first.rows
                self._size -= self._measured(first)
                del self._chunks[0]
                self._run -= 1
        self._extend_run()
        self.rows -= rows
        moved = [(max(0, start - rows), time) for start, time in self._oldest]
        # Several arrivals may now begin at the first row; the last one applies.
        self._oldest = [
            item for index, item in enumerate(moved) if item[0] or index + 1 == len(moved) or moved[index + 1][0]
        ]
        if not self.rows:
            self._oldest = []

    def _measured(self, chunk: Any) -> int:
        return chunk.size if self._options.batch_bytes is not None else 0

    def _extend_run(self) -> None:
        """Check the chunks after the run. Those in it are not checked again, because many may be buffered."""
        while self._run < len(self._chunks) and self._chunks[0].joins(self._chunks[self._run]):
            self._run += 1

    def _cut(self, run: Sequence[Any]) -> Any:
        """The first rows of a run, as many as the limits allow, at least one."""
        rows = self._options.batch_size
        size: int | None = self._options.batch_bytes
        taken: list[Any] = []
        for chunk in run:
            part = chunk if chunk.rows <= rows else chunk.cut(0, rows)
            if size is not None:
                part = _within(part, size, at_least=0 if taken else 1)
                size -= part.size if part.rows else 0
            if part.rows:
                taken.append(part)
            rows -= part.rows
            if part.rows < chunk.rows or not rows:
                break
        return taken[0] if len(taken) == 1 else taken[0].join(taken[1:])


def _within(chunk: Any, size: int, *, at_least: int) -> Any:
    """The longest prefix of a chunk with at most `size` bytes."""
    if chunk.size <= size:
        return chunk
    low, high = at_least, chunk.rows
    while low < high:
        middle = (low + high + 1) // 2
        if chunk.cut(0, middle).size <= size:
            low = middle
        else:
            high = middle - 1
    return chunk.cut(0, low)


class Chunk(Protocol):
    """Rows that arrived together."""

    @property
    def rows(self) -> int:
        """Number of rows."""

    @property
    def size(self) -> int:
        """Bytes of the rows in Arrow memory."""

    def cut(self, start: int, end: int) -> Chunk:
        """A slice of the rows, without a copy."""

    def joins(self, other: Chunk) -> bool:
        """Whether the other rows can be in the same batch."""

    def join(self, others: Sequence[Any]) -> Chunk:
        """All rows as one chunk."""


class ArrowChunk:
    """Rows of an Arrow batch."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        """Use the batch."""
        self.batch = batch

    @property
    def rows(self) -> int:
        """Number of rows."""
        return int(self.batch.num_rows)

    @property
    def size(self) -> int:
        """Bytes of the rows."""
        return int(self.batch.nbytes)

    def cut(self, start: int, end: int) -> ArrowChunk:
        """Slice the batch."""
        return ArrowChunk(self.batch.slice(start, end - start))

    def joins(self, other: Any) -> bool:
        """Whether the columns are the same."""
        return bool(self.batch.schema.equals(other.batch.schema))

    def join(self, others: Sequence[ArrowChunk]) -> ArrowChunk:
        """Copy them into one batch."""
        table = pa.Table.from_batches([self.batch, *(other.batch for other in others)]).combine_chunks()
        (batch,) = table.to_batches()
        return ArrowChunk(batch)


class ValueChunk:
    """Values of a partition that takes no Arrow batches, or a slice of them."""

    def __init__(self, values: list[Any]) -> None:
        """Use the values."""
        self._values = _Values(values)
        self._start, self._end = 0, len(values)

    @property
    def values(self) -> list[Any]:
        """The values as a list."""
        return self._values.all[self._start : self._end]

    @property
    def rows(self) -> int:
        """Number of values."""
        return self._end - self._start

    @property
    def size(self) -> int:
        """The bytes that Arrow would need; for values that Arrow does not support, the length of their text."""
        return self._values.size(self._start, self._end)

    def cut(self, start: int, end: int) -> ValueChunk:
        """A slice: a list is created only for values that are passed on."""
        found = copy.copy(self)
        found._start, found._end = self._start + start, self._start + end
        return found

    def joins(self, other: Chunk) -> bool:
        """Always."""
        return True

    def join(self, others: Sequence[ValueChunk]) -> ValueChunk:
        """Concatenate the lists."""
        return ValueChunk([value for chunk in (self, *others) for value in chunk.values])


class _Values:
    """Values that arrived together, measured once, on demand."""

    def __init__(self, values: list[Any]) -> None:
        self.all = values

    def size(self, start: int, end: int) -> int:
        if self._as_arrow is not None:
            return int(self._as_arrow.slice(start, end - start).nbytes)
        return self._lengths[end] - self._lengths[start]

    @cached_property
    def _as_arrow(self) -> pa.RecordBatch | None:
        try:
            return rows_to_batch(self.all)
        except ValueRefusedError:
            return None

    @cached_property
    def _lengths(self) -> list[int]:
        """Total length of the texts of the first values."""
        return list(accumulate((len(repr(value)) for value in self.all), initial=0))
