"""The seen offsets of a source, in bounded memory, and the new rows of a batch."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import BaseModel

MOST_RANGES = 1024
"""Maximum number of ranges per source partition, unless its window needs more."""


class SeenOffsets(BaseModel):
    """The seen offsets of one source partition.

    Every gap is stored while there are few: a Kafka transaction marker leaves one that is never filled. If there are
    too many, the oldest ranges below the window are discarded. Whether an offset up to `floor` was seen is then
    unknown.
    """

    floor: int = -1
    ranges: list[tuple[int, int]] = []
    """First and last offset of each range, in order; ranges do not touch."""

    def overlapping(self, first: int, last: int) -> Sequence[tuple[int, int]]:
        """The ranges with offsets from `first` to `last`."""
        start = bisect_left(self.ranges, first, key=lambda known: known[1])
        end = bisect_right(self.ranges, last, key=lambda known: known[0])
        return self.ranges[start:end]

    def add(self, runs: Sequence[tuple[int, int]]) -> None:
        """Add runs of unseen offsets, in order."""
        if self.ranges and runs and runs[0][0] <= self.ranges[-1][1]:
            runs = sorted([*self.ranges, *runs])
            self.ranges = []
        for first, last in runs:
            if self.ranges and self.ranges[-1][1] + 1 >= first:
                self.ranges[-1] = self.ranges[-1][0], max(last, self.ranges[-1][1])
            else:
                self.ranges.append((first, last))

    def forget(self, window: int) -> None:
        """Discard the oldest ranges if there are too many, but none that overlaps the last `window` offsets."""
        if len(self.ranges) <= MOST_RANGES:
            return
        reaching = bisect_left(self.ranges, self.ranges[-1][1] - window, key=lambda known: known[1])
        # Half of them, so that the next range does not cause another pass.
        given_up = min(reaching, len(self.ranges) - MOST_RANGES // 2)
        if given_up > 0:
            self.floor = self.ranges[given_up - 1][1]
            self.ranges = self.ranges[given_up:]


class SeenState(BaseModel):
    """The offsets of each source partition of one part, by the partition's name."""

    partitions: dict[str, SeenOffsets] = {}
    offset: str | None = None
    """Their column; `None` if unknown."""
    source_partition: list[str] | None = None
    """The columns that identify the source partitions; `None` if unknown."""
    key: str | None = None
    """The column that routed the rows to the parts; `None` if unknown."""


def split_by_seen(offsets: pa.Array, positions: pa.Array | None, seen: SeenOffsets) -> SplitRows:
    """Split the rows of one source partition, at least one.

    Their `offsets` are int64 and not NULL. `positions` are theirs in the batch; `None` if it has all of them. `seen`
    are the offsets seen before, and is not changed.
    """
    positions = _range(0, len(offsets)) if positions is None else positions
    if not _ascending(offsets):
        order = pc.sort_indices(offsets)  # stable, so that the first of equal rows is kept
        offsets, positions = offsets.take(order), positions.take(order)
        first_of_equals = pa.concat_arrays([pa.array([True]), pc.greater(offsets[1:], offsets[:-1])])
        offsets, positions = offsets.filter(first_of_equals), positions.filter(first_of_equals)
    view = memoryview(offsets.buffers()[1]).cast("q")[offsets.offset : offsets.offset + len(offsets)]
    known = bisect_right(view, seen.floor)
    kept = list(_unseen(view, known, seen))
    runs = [run for start, end in kept for run in _runs(offsets.slice(start, end - start))]
    new = [positions.slice(start, end - start) for start, end in kept]
    return SplitRows(pa.concat_arrays(new) if new else positions.slice(0, 0), positions.slice(0, known), runs)


@dataclass(frozen=True)
class SplitRows:
    """The rows of one source partition by outcome, with their positions in the batch."""

    new: pa.Array
    below: pa.Array
    runs: Sequence[tuple[int, int]]
    """The new offsets."""


def _unseen(view: Sequence[int], start: int, seen: SeenOffsets) -> Iterator[tuple[int, int]]:
    """The runs of sorted offsets, from the index `start` on, between the seen ranges."""
    if start == len(view):
        return
    for first, last in seen.overlapping(view[start], view[-1]):
        end = bisect_left(view, first, start)
        if end > start:
            yield start, end
        start = bisect_right(view, last, max(start, end))
    if start < len(view):
        yield start, len(view)


def _runs(offsets: pa.Array) -> Sequence[tuple[int, int]]:
    """First and last of each run of consecutive numbers in an ascending array."""
    last = len(offsets) - 1
    if offsets[last].as_py() - offsets[0].as_py() == last:
        return [(offsets[0].as_py(), offsets[last].as_py())]
    breaks = pc.indices_nonzero(pc.not_equal(pc.subtract(offsets[1:], offsets[:-1]), 1))
    ends = pa.concat_arrays([breaks.cast(pa.int64()), pa.array([last], pa.int64())])
    starts = pa.concat_arrays([pa.array([0], pa.int64()), pc.add(ends[:-1], 1)])
    pairs: Any = zip(offsets.take(starts).to_pylist(), offsets.take(ends).to_pylist(), strict=True)
    return list(pairs)


def _ascending(offsets: pa.Array) -> bool:
    return len(offsets) < 2 or bool(pc.all(pc.greater(offsets[1:], offsets[:-1])).as_py())


def _range(start: int, end: int) -> pa.Array:
    return pa.array(range(start, end), pa.int64())
