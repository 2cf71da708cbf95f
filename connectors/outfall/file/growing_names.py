"""Names of growing files: a part, and the segments that a part which rolls is made of."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

_NAME = re.compile(r"part-(\d{5,})(?:_(\d{10,}))?((?:\.\w+)+)")


@dataclass(frozen=True)
class GrowingName:
    """A part by its index, and a file of it.

    Byte by byte names sort by part and then by age: `_` comes after `.`, so the file without a number is the first.
    """

    index: int
    suffix: str
    segment: int | None = None
    """Which segment; `None` is the file that does not roll, and is older than segment 0."""

    @classmethod
    def parse(cls, name: str) -> Self | None:
        """Read a name; `None` for one that is not of this kind."""
        match = _NAME.fullmatch(name)
        if match is None:
            return None
        index, segment, suffix = match.groups()
        return cls(int(index), suffix, None if segment is None else int(segment))

    def at(self, segment: int | None) -> GrowingName:
        """Name another file of the part."""
        return GrowingName(self.index, self.suffix, segment)

    def next(self) -> GrowingName:
        """Name the file that follows."""
        return self.at(0 if self.segment is None else self.segment + 1)

    def __str__(self) -> str:
        segment = "" if self.segment is None else f"_{self.segment:010d}"
        return f"part-{self.index:05d}{segment}{self.suffix}"


def part_index(part: str) -> int:
    """Return the index of a part that is named by `GrowingName`."""
    return int(part[len("part-") : part.index(".")])


def newest_segments(names: Iterable[str], suffix: str) -> dict[int, int]:
    """Return the highest number among the segments of each part that has some, by the part's index."""
    newest: dict[int, int] = {}
    for text in names:
        name = GrowingName.parse(text)
        if name is not None and name.suffix == suffix and name.segment is not None:
            newest[name.index] = max(name.segment, newest.get(name.index, 0))
    return newest
