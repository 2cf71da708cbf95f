"""Parts the rows of an Arrow batch into those to write, those that were seen, and those below the window."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from outfall.wrappers.offset_set import SeenOffsets


@dataclass(frozen=True)
class Sieved:
    """What became of the rows of one source partition, by their positions in the batch."""

    new: pa.Array
    below: pa.Array
    runs: Sequence[tuple[int, int]]
    """The new offsets."""


def sieve(offsets: pa.Array, positions: pa.Array | None, seen: SeenOffsets) -> Sieved:
    """Part the rows of one source partition.

    Args:
        offsets: of its rows, as int64, none NULL, at least one.
        positions: of its rows in the batch; `None` when it has all of them.
        seen: what was seen before. Not changed.
    """
    positions = _range(0, len(offsets)) if positions is None else positions
    if not _ascending(offsets):
        order = pc.sort_indices(offsets)  # stable, so that the first of equal ones is kept
        offsets, positions = offsets.take(order), positions.take(order)
        first_of_equals = pa.concat_arrays([pa.array([True]), pc.greater(offsets[1:], offsets[:-1])])
        offsets, positions = offsets.filter(first_of_equals), positions.filter(first_of_equals)
    view = memoryview(offsets.buffers()[1]).cast("q")[offsets.offset : offsets.offset + len(offsets)]
    known = bisect_right(view, seen.floor)
    kept = list(_unseen(view, known, seen))
    runs = [run for start, end in kept for run in _runs(offsets.slice(start, end - start))]
    new = [positions.slice(start, end - start) for start, end in kept]
    return Sieved(pa.concat_arrays(new) if new else positions.slice(0, 0), positions.slice(0, known), runs)


def _unseen(view: Sequence[int], start: int, seen: SeenOffsets) -> Iterator[tuple[int, int]]:
    """The stretches of sorted offsets, from the index `start` on, between the ranges that were seen."""
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
