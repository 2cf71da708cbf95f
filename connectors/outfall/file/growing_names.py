"""Names of growing files: `part-00003.jsonl`, and of a part that rolls its segments, `part-00003_0000000000.jsonl`, ….

Byte by byte they sort by part and then by age: `_` comes after `.`, and the file without a number is older than all.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

_SEGMENT = re.compile(r"(part-\d{5,})_(\d{10,})((?:\.\w+)+)")


def part_name(index: int, suffix: str) -> str:
    """Name a part; so is the file of one that does not roll."""
    return f"part-{index:05d}{suffix}"


def part_index(part: str) -> int:
    """Return the index of a part."""
    return int(part[len("part-") : part.index(".")])


def file_name(part: str, segment: int | None) -> str:
    """Name a file of a part: one of its segments, or the file without a number."""
    if segment is None:
        return part
    stem, _, suffix = part.partition(".")
    return f"{stem}_{segment:010d}.{suffix}"


def following(segment: int | None) -> int:
    """Return the number of the segment that comes next."""
    return 0 if segment is None else segment + 1


def segments_among(names: Iterable[str]) -> dict[str, list[int]]:
    """Return the numbers of the segments of each part that has some, in their order."""
    found: dict[str, list[int]] = {}
    for name in names:
        match = _SEGMENT.fullmatch(name)
        if match is not None:
            found.setdefault(match[1] + match[3], []).append(int(match[2]))
    return {part: sorted(numbers) for part, numbers in found.items()}
