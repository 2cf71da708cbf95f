"""Which offsets of a source partition were seen: merged ranges, in memory that is bounded between epochs."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

from pydantic import BaseModel

MOST_RANGES = 1024
"""How many ranges are kept for a source partition, unless its window needs more."""


class SeenOffsets(BaseModel):
    """The offsets of one source partition that were seen.

    Every gap is kept as such while there are few: a transaction marker of Kafka leaves one that is never filled. When
    there are too many, the oldest ranges below the window are given up: of an offset that is not above `floor`
    nobody knows whether it was seen.
    """

    floor: int = -1
    ranges: list[tuple[int, int]] = []
    """First and last offset of each range, in order; none of them touch."""

    def overlapping(self, first: int, last: int) -> Sequence[tuple[int, int]]:
        """The ranges that have offsets from `first` to `last`."""
        start = bisect_left(self.ranges, first, key=lambda known: known[1])
        end = bisect_right(self.ranges, last, key=lambda known: known[0])
        return self.ranges[start:end]

    def add(self, runs: Sequence[tuple[int, int]]) -> None:
        """Take in runs of offsets that were not seen before, in order."""
        if self.ranges and runs and runs[0][0] <= self.ranges[-1][1]:
            runs = sorted([*self.ranges, *runs])
            self.ranges = []
        for first, last in runs:
            if self.ranges and self.ranges[-1][1] + 1 >= first:
                self.ranges[-1] = self.ranges[-1][0], max(last, self.ranges[-1][1])
            else:
                self.ranges.append((first, last))

    def forget(self, window: int) -> None:
        """Give up the oldest ranges if there are too many, none that reaches into the last `window` offsets."""
        if len(self.ranges) <= MOST_RANGES:
            return
        reaching = bisect_left(self.ranges, self.ranges[-1][1] - window, key=lambda known: known[1])
        # Half of them, so that it need not be done again with the next one.
        given_up = min(reaching, len(self.ranges) - MOST_RANGES // 2)
        if given_up > 0:
            self.floor = self.ranges[given_up - 1][1]
            self.ranges = self.ranges[given_up:]


class SeenState(BaseModel):
    """The offsets of each source partition of one part, by the partition's name."""

    partitions: dict[str, SeenOffsets] = {}
    offset: str | None = None
    """The column that they are from; `None` where it is not known."""
    source_partition: list[str] | None = None
    """The columns that name the source partitions; `None` where they are not known."""
    key: str | None = None
    """The column that routed the rows to the parts; `None` where it is not known."""
