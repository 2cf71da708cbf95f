"""One growing file in one attempt."""

from __future__ import annotations

import os

import pyarrow as pa
from pydantic import BaseModel, ConfigDict, Field

from outfall.capabilities import WriterId, WriterInitContext
from outfall.encode import FormatOptions
from outfall.errors import TargetLostError
from outfall.file.buffered import BufferedPartition
from outfall.file.disk import explained, sync_directory, write_all
from outfall.file.fence import WriterRecord, refuse_stale, stale
from outfall.file.layout import Layout
from outfall.file.locked import HeldFile, Patience, held
from outfall.sinks import StatefulSinkPartition
from outfall.steps import reached


class FileState(BaseModel):
    """How far a growing file counts."""

    model_config = ConfigDict(frozen=True)

    offset: int = Field(ge=0)
    """Length in bytes."""


class GrowingPart(BufferedPartition, StatefulSinkPartition[object, FileState]):
    """Appends to a part after its offset, as long as the part's lock file says that it is the writer.

    The lock is held only while bytes are checked and written, never in between: an attempt that is stopped almost never
    stops holding it, and when it wakes it finds that the part is no longer its own.
    """

    def __init__(
        self,
        layout: Layout,
        part: str,
        options: FormatOptions,
        offset: int,
        context: WriterInitContext,
        patience: Patience,
    ) -> None:
        self._path = layout.data(part)
        self._lock = layout.lock(part)
        self._part = part
        self._patience = patience
        self._mine = WriterRecord(context.incarnation, WriterId(context.generation, context.epoch, context.attempt))
        self._offset = offset
        self._dirty = False
        # Whoever created the file may have died before its name was durable.
        self._name_dirty = offset == 0
        with explained("opening", self._path, part):
            self._fd = self._take_over()
        super().__init__(options, context.metrics, start=offset == 0)

    def snapshot(self) -> FileState:
        """Return the offset, once all bytes before it are durable and the file's name is, too."""
        self.finish()
        return FileState(offset=self._offset)

    def _take_over(self) -> int:
        with held(self._lock, self._patience) as file:
            refuse_stale(WriterRecord.parse(file.read()), self._mine, self._part)
            fd = open_part(self._path, self._part, self._offset)
            try:
                file.write(self._mine.line())
                reached("file: part taken over")
                self._dirty = cut(fd, self._offset)
            except BaseException:
                os.close(fd)
                raise
            return fd

    def _store(self, buffers: list[pa.Buffer]) -> None:
        with explained("writing", self._path, self._part), held(self._lock, self._patience) as file:
            self._check_still_mine(file)
            reached("file: writing")
            self._dirty = True
            self._offset += write_all(self._fd, buffers, self._offset)
            reached("file: written")

    def _check_still_mine(self, file: HeldFile) -> None:
        found = WriterRecord.parse(file.read())
        if found != self._mine:
            raise stale(found, self._mine, self._part)

    def _sync(self) -> None:
        with explained("syncing", self._path, self._part):
            if self._dirty:
                reached("file: syncing")
                os.fsync(self._fd)
                self._dirty = False
                reached("file: synced")
            if self._name_dirty:
                sync_directory(os.path.dirname(self._path))
                self._name_dirty = False
                reached("file: directory synced")

    def _release(self) -> None:
        os.close(self._fd)


def open_part(path: str, part: str, offset: int) -> int:
    """Open a part that must hold at least `offset` bytes. It is created only when nothing of it is recorded.

    Raises:
        TargetLostError: it is shorter or missing, and was left as it is.
    """
    try:
        fd = os.open(path, os.O_RDWR | (0 if offset else os.O_CREAT), 0o666)
    except FileNotFoundError as error:
        raise lost(path, part, offset, None) from error
    size = os.fstat(fd).st_size
    if size < offset:
        os.close(fd)
        raise lost(path, part, offset, size)
    return fd


def cut(fd: int, offset: int) -> bool:
    """Cut a file that is longer than what counts of it; return whether it was."""
    if os.fstat(fd).st_size == offset:
        return False
    reached("file: cutting")
    os.ftruncate(fd, offset)
    reached("file: cut")
    return True


def cut_to(path: str, part: str, offset: int) -> int:
    """Cut a part that nobody writes back to its offset, durably. The caller holds its lock.

    Returns:
        The bytes that it held before.

    Raises:
        TargetLostError: it is shorter or missing, and was left as it is.
    """
    try:
        size = os.stat(path).st_size
    except FileNotFoundError:
        size = 0
    if size == offset:
        return size
    fd = open_part(path, part, offset)
    try:
        cut(fd, offset)
        os.fsync(fd)
    finally:
        os.close(fd)
    return size


def lost(path: str, part: str, expected: int, actual: int | None) -> TargetLostError:
    """Make the error of a part that lost bytes."""
    return TargetLostError(
        f"{path} holds {actual} bytes, but {expected} were recorded"
        if actual is not None
        else f"{path} is missing, but {expected} bytes of it were recorded",
        part=part,
        why="the file was cut, replaced or deleted after its epoch was completed; it was left as it is",
        do="restore the file, or start the query with a new checkpoint and a new path",
    )
