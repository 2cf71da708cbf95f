"""One growing file in one attempt."""

from __future__ import annotations

import os

import pyarrow as pa
from pydantic import BaseModel, ConfigDict, Field

from outfall.capabilities import SupportsFlush, WriterId, WriterInitContext
from outfall.encode import FormatOptions
from outfall.errors import TargetLostError
from outfall.file.buffered import BufferedPartition
from outfall.file.disk import explained, write_all
from outfall.file.fence import WriterRecord
from outfall.file.new_names import name_created, sync_name
from outfall.file.register import Register
from outfall.sinks import StatefulSinkPartition
from outfall.steps import reached


class FileState(BaseModel):
    """How far a growing file counts."""

    model_config = ConfigDict(frozen=True)

    offset: int = Field(ge=0)
    """Length in bytes."""


class GrowingPart(BufferedPartition, StatefulSinkPartition[object, FileState], SupportsFlush):
    """Appends to a part after its offset, as long as the register says that it is the writer.

    Locks are held only while bytes are checked and written, never in between: an attempt that is stopped almost never
    stops holding one, and when it wakes it finds that the part is no longer its own.
    """

    def __init__(
        self,
        register: Register,
        part: str,
        options: FormatOptions,
        offset: int,
        context: WriterInitContext,
    ) -> None:
        self._path = register.layout.data(part)
        self._register = register
        self._part = part
        self._mine = WriterRecord(context.incarnation, WriterId(context.generation, context.epoch, context.attempt))
        self._offset = offset
        self._dirty = False
        self._created: int | None = None
        with explained("opening", self._path, part):
            self._fd = self._take_over()
        if offset == 0:
            # Whoever created the file may have died before its name was durable.
            self._created = name_created()
        super().__init__(options, context.metrics, start=offset == 0)

    def flush(self, end_of_input: bool) -> None:
        """Write what is held back. A task does so for all its parts before it syncs the first: that is faster."""
        self.write_rest()

    def snapshot(self) -> FileState:
        """Return the offset, once all bytes before it are durable and the file's name is, too."""
        self.finish()
        return FileState(offset=self._offset)

    def _take_over(self) -> int:
        with self._register.writing(self._part) as held:
            held.take_over(self._mine)
            fd = open_part(self._path, self._part, self._offset)
            try:
                held.enter(self._mine)
                reached("file: part taken over")
                self._dirty = cut(fd, self._offset)
            except BaseException:
                os.close(fd)
                raise
            return fd

    def _store(self, buffers: list[pa.Buffer]) -> None:
        with explained("writing", self._path, self._part), self._register.writing(self._part) as held:
            held.check_still(self._mine)
            reached("file: writing")
            self._dirty = True
            self._offset += write_all(self._fd, buffers, self._offset)
            reached("file: written")

    def _sync(self) -> None:
        with explained("syncing", self._path, self._part):
            if self._dirty:
                reached("file: syncing")
                os.fsync(self._fd)
                self._dirty = False
                reached("file: synced")
            if self._created is not None:
                if sync_name(os.path.dirname(self._path), self._created):
                    reached("file: directory synced")
                self._created = None

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


def size_of(path: str) -> int | None:
    """Return a file's length in bytes; `None` when there is no file."""
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return None


def check_length(path: str, part: str, offset: int) -> int:
    """Return the length of a part, which must hold at least `offset` bytes.

    Raises:
        TargetLostError: it is shorter or missing.
    """
    size = size_of(path)
    if (size or 0) < offset:
        raise lost(path, part, offset, size)
    return size or 0


def cut_to(path: str, part: str, offset: int) -> int:
    """Cut a part that nobody writes back to its offset, durably. The caller holds its lock.

    Returns:
        The bytes that it held before.

    Raises:
        TargetLostError: it is shorter or missing, and was left as it is.
    """
    size = check_length(path, part, offset)
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
