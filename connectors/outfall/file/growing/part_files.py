"""The files of a growing part: named, checked, opened, cut and removed.

Their names are `part-00003.jsonl`, and of a part that rolls its segments `part-00003_0000000000.jsonl`, …: byte by byte
they sort by part and then by age, since `_` comes after `.`, and the file without a number is older than all.

Who changes them holds the part or the register.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict, Field

from outfall.errors import TargetLostError, TargetNotEmptyError
from outfall.filesystems import sync_directory
from outfall.trace_points import reached

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


class FileState(BaseModel):
    """How far a growing part counts."""

    model_config = ConfigDict(frozen=True)

    offset: int = Field(ge=0)
    """Length in bytes of the file that is written."""
    segment: int | None = Field(default=None, ge=0)
    """Which segment that is; `None` for the file without a number, which is older than all segments."""
    since: float | None = None
    """When it was begun, in seconds since 1970, if that is known."""
    shape: str | None = None
    """What its rows have in common, as `outfall.formats.shape` says it, if that is known."""


@dataclass(frozen=True)
class PartFiles:
    """The files of one part in a directory.

    The one that the part's state names is written. All later ones came from attempts that do not count. Earlier ones
    are final: they are not looked at, and may be gone.
    """

    directory: str
    part: str

    def path(self, segment: int | None) -> str:
        """Return where a segment, or the file without a number, is."""
        return f"{self.directory}/{file_name(self.part, segment)}"

    def size(self, segment: int | None) -> int | None:
        """Return a file's length in bytes; `None` when there is no file."""
        try:
            return os.stat(self.path(segment)).st_size
        except FileNotFoundError:
            return None

    def check(self, segment: int | None, offset: int) -> int:
        """Return the length of a file, which must hold at least `offset` bytes.

        Raises:
            TargetLostError: it is shorter or missing.
        """
        size = self.size(segment)
        if (size or 0) < offset:
            raise self._lost(segment, offset, size)
        return size or 0

    def open(self, segment: int | None, offset: int) -> int:
        """Open a file that must hold at least `offset` bytes. It is created only when nothing of it is recorded.

        Raises:
            TargetLostError: it is shorter or missing, and was left as it is.
        """
        try:
            fd = os.open(self.path(segment), os.O_RDWR | (0 if offset else os.O_CREAT), 0o666)
        except FileNotFoundError as error:
            raise self._lost(segment, offset, None) from error
        size = os.fstat(fd).st_size
        if size < offset:
            os.close(fd)
            raise self._lost(segment, offset, size)
        return fd

    def create(self, segment: int) -> int:
        """Create a segment and open it.

        Raises:
            TargetNotEmptyError: a file has its name.
        """
        path = self.path(segment)
        try:
            return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
        except FileExistsError as error:
            raise TargetNotEmptyError(
                f"{path} exists and is not ours",
                part=self.part,
                why="it would be the part's next segment, and what an attempt of ours leaves behind has no gaps",
                do="find out who wrote it and move it away",
            ) from error

    def has_later(self, segment: int | None) -> bool:
        """Tell whether there is a segment after a file."""
        return os.access(self.path(following(segment)), os.F_OK)

    def later(self, segment: int | None) -> Sequence[int]:
        """Return the segments after a file.

        Attempts leave no gaps: a segment's name is durable before the next one is created, and they are removed from
        the end.
        """
        end = following(segment)
        while os.access(self.path(end), os.F_OK):
            end += 1
        return range(following(segment), end)

    def remove(self, segments: Sequence[int]) -> None:
        """Remove segments, the last one first, each durably, so that a power loss leaves no gap either."""
        for segment in reversed(segments):
            with suppress(FileNotFoundError):
                os.unlink(self.path(segment))
            reached("file: later segment removed")
            sync_directory(self.directory)
            reached("file: removal synced")

    def remove_empty(self, segment: int | None) -> None:
        """Remove a file that holds nothing."""
        if self.size(segment) == 0:
            os.unlink(self.path(segment))

    def cut_back(
        self, segment: int | None, offset: int, later: Sequence[int] | None = None, *, again: bool = False
    ) -> int:
        """Take back, durably, what nobody's state names.

        Args:
            segment: the file that the part's state names.
            offset: how much of it counts.
            later: the segments after it, where they are known.
            again: whether somebody may have begun this and died, so that it is to be made durable if all is taken back.

        Returns:
            The bytes that the file held before.

        Raises:
            TargetLostError: it is shorter or missing, and was left as it is.
        """
        size = self.check(segment, offset)
        self.remove(self.later(segment) if later is None else later)
        if size != offset or (again and self.size(segment) is not None):
            fd = self.open(segment, offset)
            try:
                cut(fd, offset)
                os.fsync(fd)
            finally:
                os.close(fd)
        if again:
            sync_directory(self.directory)
        return size

    def _lost(self, segment: int | None, expected: int, actual: int | None) -> TargetLostError:
        path = self.path(segment)
        return TargetLostError(
            f"{path} holds {actual} bytes, but {expected} were recorded"
            if actual is not None
            else f"{path} is missing, but {expected} bytes of it were recorded",
            part=self.part,
            why="the file was cut, replaced or deleted after its epoch was completed; it was left as it is",
            do="restore the file, or start the query with a new checkpoint and a new path",
        )


def cut(fd: int, offset: int) -> bool:
    """Cut a file that is longer than what counts of it; return whether it was."""
    if os.fstat(fd).st_size == offset:
        return False
    reached("file: cutting")
    os.ftruncate(fd, offset)
    reached("file: cut")
    return True
