"""The files of a growing part: their names, and how they are checked, opened, truncated and removed.

The name of a part is `part-00003.jsonl`. The segments of a part that rolls are `part-00003_0000000000.jsonl`, …. Names
sort by part and then by age, byte by byte, because `_` comes after `.`. The file without a number is the oldest.

A process that changes these files holds the lock of the part or of the register.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict, Field

from outfall.errors import TargetLostError, TargetNotEmptyError, TransientError
from outfall.filesystems import sync_directory
from outfall.trace_points import reached

_TAIL = 1 << 16
"""Bytes before an offset that are compared around a truncation."""

_SEGMENT = re.compile(r"(part-\d{5,})_(\d{10,})((?:\.\w+)+)")


def part_name(index: int, suffix: str) -> str:
    """Return the name of a part, which is also the name of its file if it does not roll."""
    return f"part-{index:05d}{suffix}"


def part_index(part: str) -> int:
    """Return the index of a part."""
    return int(part[len("part-") : part.index(".")])


def file_name(part: str, segment: int | None) -> str:
    """Return the file name of a segment of a part, or of the file without a number."""
    if segment is None:
        return part
    stem, _, suffix = part.partition(".")
    return f"{stem}_{segment:010d}.{suffix}"


def following(segment: int | None) -> int:
    """Return the number of the next segment."""
    return 0 if segment is None else segment + 1


def segments_among(names: Iterable[str]) -> dict[str, list[int]]:
    """Return the sorted segment numbers of each part that has segments."""
    found: dict[str, list[int]] = {}
    for name in names:
        match = _SEGMENT.fullmatch(name)
        if match is not None:
            found.setdefault(match[1] + match[3], []).append(int(match[2]))
    return {part: sorted(numbers) for part, numbers in found.items()}


class FileState(BaseModel):
    """The recorded position of a growing part."""

    model_config = ConfigDict(frozen=True)

    offset: int = Field(ge=0)
    """The length in bytes of the current file."""
    segment: int | None = Field(default=None, ge=0)
    """The current segment; `None` for the file without a number, which is older than all segments."""
    since: float | None = None
    """The time of its creation in seconds since 1970, if it is known."""
    shape: str | None = None
    """The common properties of its rows, see `outfall.formats.shape`, if they are known."""


@dataclass(frozen=True)
class PartFiles:
    """The files of one part in a directory.

    The part's state names the current file. Later files are from failed attempts. Earlier files are final: they are not
    read, and may be missing.
    """

    directory: str
    part: str

    def path(self, segment: int | None) -> str:
        """Return the path of a segment, or of the file without a number."""
        return f"{self.directory}/{file_name(self.part, segment)}"

    def size(self, segment: int | None) -> int | None:
        """Return a file's length in bytes; `None` if there is no file."""
        try:
            return os.stat(self.path(segment)).st_size
        except FileNotFoundError:
            return None

    def check(self, segment: int | None, offset: int) -> int:
        """Return the length of a file; raise `TargetLostError` if it is missing or shorter than `offset` bytes."""
        size = self.size(segment)
        if (size or 0) < offset:
            raise self._lost(segment, offset, size)
        return size or 0

    def open(self, segment: int | None, offset: int) -> int:
        """Open a file that must hold at least `offset` bytes. It is created only if no byte of it is recorded.

        Raises `TargetLostError`, without a change, if it is shorter or missing.
        """
        try:
            # Appending never leaves a hole if another program truncates the file between a check and a write.
            fd = os.open(self.path(segment), os.O_RDWR | os.O_APPEND | (0 if offset else os.O_CREAT), 0o666)
        except FileNotFoundError as error:
            raise self._lost(segment, offset, None) from error
        size = os.fstat(fd).st_size
        if size < offset:
            os.close(fd)
            raise self._lost(segment, offset, size)
        return fd

    def create(self, segment: int) -> int:
        """Create a segment and open it. Raises `TargetNotEmptyError` if a file with its name exists."""
        path = self.path(segment)
        try:
            return os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_EXCL, 0o666)
        except FileExistsError as error:
            raise TargetNotEmptyError(
                f"{path} exists and was created by another writer",
                part=self.part,
                why="it has the name of the part's next segment, and segments of failed attempts have no gaps",
                do="find the writer and move the file to another location",
            ) from error

    def check_end(self, fd: int, segment: int | None, offset: int) -> None:
        """Check that an open file still has its name, and that it ends where its writer does.

        Raises `TargetLostError` if it is shorter, missing or replaced, and `TransientError` if it is longer.
        """
        path = self.path(segment)
        try:
            found = os.stat(path)
        except FileNotFoundError as error:
            raise self._changed(segment, offset, "is missing") from error
        if found.st_size < offset:
            raise self._changed(segment, offset, f"holds {found.st_size} bytes")
        if not os.path.samestat(found, os.fstat(fd)):
            raise self._changed(segment, offset, "was replaced by another file")
        if found.st_size > offset:
            raise TransientError(
                f"{path} holds {found.st_size} bytes, but {offset} were written",
                part=self.part,
                why="another program appended to it during the epoch",
                do="stop that program; the next attempt truncates what it appended",
            )

    def has_later(self, segment: int | None) -> bool:
        """Return whether a segment follows a file."""
        return os.access(self.path(following(segment)), os.F_OK)

    def later(self, segment: int | None) -> Sequence[int]:
        """Return the segments after a file.

        Failed attempts leave no gaps: the name of a segment is durable before the next one is created, and segments are
        removed from the end.
        """
        end = following(segment)
        while os.access(self.path(end), os.F_OK):
            end += 1
        return range(following(segment), end)

    def remove(self, segments: Sequence[int]) -> None:
        """Remove segments durably, the last one first, so that a power loss leaves no gap either."""
        for segment in reversed(segments):
            with suppress(FileNotFoundError):
                os.unlink(self.path(segment))
            reached("file: later segment removed")
            sync_directory(self.directory)
            reached("file: removal synced")

    def remove_empty(self, segment: int | None) -> None:
        """Remove a file if it is empty."""
        if self.size(segment) == 0:
            os.unlink(self.path(segment))

    def cut_back(
        self, segment: int | None, offset: int, later: Sequence[int] | None = None, *, again: bool = False
    ) -> int:
        """Truncate the part durably to its recorded position; return the length of its file before, in bytes.

        The current file has `offset` recorded bytes; `later` has the segments after it, if they are known. With
        `again`, an earlier call may have died, so the result is synced even if nothing is left to do. Raises
        `TargetLostError`, without a change, if the file is shorter or missing.
        """
        size = self.check(segment, offset)
        self.remove(self.later(segment) if later is None else later)
        if size != offset or (again and self.size(segment) is not None):
            fd = self.open(segment, offset)
            try:
                self.cut(fd, segment, offset)
                os.fsync(fd)
            finally:
                os.close(fd)
        if again:
            sync_directory(self.directory)
        return size

    def cut(self, fd: int, segment: int | None, offset: int) -> bool:
        """Truncate an open file to its recorded length; return whether it was longer.

        Raises `TargetLostError` if it is shorter, or another program truncated it at this moment.
        """
        size = os.fstat(fd).st_size
        if size == offset:
            return False
        tail = _tail(fd, offset)
        reached("file: cutting")
        if len(tail) < min(offset, _TAIL):
            raise self._lost(segment, offset, os.fstat(fd).st_size)
        os.ftruncate(fd, offset)
        if _tail(fd, offset) != tail:
            # The file had become shorter, so the call above extended it. Undo that, or the next check would pass.
            raise self._lost(segment, offset, _remove_padding(fd, offset))
        reached("file: cut")
        return True

    def _lost(self, segment: int | None, expected: int, actual: int | None) -> TargetLostError:
        path = self.path(segment)
        return TargetLostError(
            f"{path} holds {actual} bytes, but {expected} were recorded"
            if actual is not None
            else f"{path} is missing, but {expected} bytes of it were recorded",
            part=self.part,
            why="another program truncated, replaced or deleted the file; it was not changed now",
            do="restore the file, or start the query with a new checkpoint and a new path;"
            " and exclude the path from programs such as logrotate",
        )

    def _changed(self, segment: int | None, written: int, now: str) -> TargetLostError:
        return TargetLostError(
            f"{self.path(segment)} {now}, but {written} bytes of it were written",
            part=self.part,
            why="another program truncated, replaced or deleted the file during the epoch; it was not changed now",
            do="exclude the path from programs such as logrotate, and start again: the epoch is written again, or the"
            " query names the recorded bytes that are missing",
        )


def _tail(fd: int, end: int) -> bytes:
    """Return the bytes before an offset; fewer if the file is shorter."""
    length = min(end, _TAIL)
    return os.pread(fd, length, end - length)


def _remove_padding(fd: int, end: int) -> int:
    """Remove NUL bytes from the end of a file; return its length."""
    while end and not _tail(fd, end).rstrip(b"\0"):
        end -= min(end, _TAIL)
    tail = _tail(fd, end)
    end -= len(tail) - len(tail.rstrip(b"\0"))
    os.ftruncate(fd, end)
    return end
