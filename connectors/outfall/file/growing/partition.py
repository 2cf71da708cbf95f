"""One growing part in one attempt."""

from __future__ import annotations

import itertools
import os
import resource
from contextlib import suppress

import pyarrow as pa

from outfall.capabilities import SupportsFlush, WriterInitContext
from outfall.errors import ConfigurationError
from outfall.file.encoded_file import EncodedFile
from outfall.file.growing.part_files import FileState, PartFiles, following
from outfall.file.growing.registry import Register, RegisterEntry
from outfall.file.stores.disk import translated_errors, write_all
from outfall.filesystems import sync_directory
from outfall.formats import FormatOptions, shape
from outfall.formats.stream import EncodedStream
from outfall.sinks import StatefulSinkPartition
from outfall.storage.rolling import RollBounds
from outfall.trace_points import reached

_ticks = itertools.count(1)
_durable: dict[str, int] = {}
"""By directory: names created before this tick are durable."""

_OTHERS = 256
"""File descriptors of a task other than parts: sockets, libraries, locks."""


class GrowingPart(EncodedFile, StatefulSinkPartition[object, FileState], SupportsFlush):
    """Appends to a part after its offset, while the register names this attempt as its writer.

    Locks are held only for a check and a write. A process that is stopped therefore almost never holds one, and when it
    continues it finds that it has lost the part.
    """

    def __init__(
        self,
        register: Register,
        part: str,
        options: FormatOptions,
        rolling: RollBounds,
        state: FileState,
        context: WriterInitContext,
    ) -> None:
        self._register = register
        self._files = PartFiles(register.store.root, part)
        self._rolling = rolling
        self._segment = state.segment
        self._offset = state.offset
        self._since = self._begun() if state.offset == 0 else state.since
        self._shape = state.shape if state.offset else None
        self._mine = RegisterEntry.of(context)
        self._dirty = False
        self._closed_segments: list[tuple[int | None, int]] = []
        self._created: int | None = None
        with translated_errors("opening", self._path, part):
            self._fd = self._take_over()
        super().__init__(options, context.metrics, start=state.offset == 0)

    def write_record_batch(self, batch: pa.RecordBatch) -> None:
        """Encode a batch, into the next segment if the current one is full or old."""
        if batch.num_rows and self._rolling.due(self._offset + self._stream.held, self._since or 0.0):
            self._roll()
        if batch.num_rows and not self._stream.begun:
            self._fit(batch.schema)
        super().write_record_batch(batch)
        if self._rolling.size is not None and self._offset + self._stream.held >= self._rolling.size:
            # Buffered bytes may be smaller after compression, so flush them before the next size check.
            with self._all_or_broken():
                self._hand_on(self._stream.drain())

    def flush(self, end_of_input: bool) -> None:
        """Write all buffered bytes. A task flushes all parts before it syncs the first one, which is faster."""
        self.write_rest()

    def snapshot(self) -> FileState:
        """Make all bytes and file names durable, and return the position of the part."""
        self.finish()
        for segment, size in self._closed_segments:
            self._files.check(segment, size)
        return FileState(offset=self._offset, segment=self._segment, since=self._since, shape=self._shape)

    @property
    def _path(self) -> str:
        return self._files.path(self._segment)

    def _begun(self) -> float | None:
        """Return the creation time of a file that begins now; `None` if the part does not roll."""
        return self._rolling.clock() if self._rolling.bounded else None

    def _take_over(self) -> int:
        with self._register.writing(self._files.part) as held:
            follows = held.take_over(self._mine)
            fd = self._files.open(self._segment, self._offset)
            try:
                held.enter(self._mine)
                reached("file: part taken over")
                self._files.remove(self._files.later(self._segment))
                # An earlier attempt of this driver may have died before its truncation was durable, so sync anyway.
                self._dirty = self._files.cut(fd, self._segment, self._offset) or follows
            except BaseException:
                os.close(fd)
                raise
            if follows or self._offset == 0:
                # The attempt that created the file or removed segments may have died before that was durable.
                self._created = _name_created()
            return fd

    def _fit(self, schema: pa.Schema) -> None:
        """Check that rows can follow those of earlier runs, or begin the next file for them."""
        found = shape(self._options, schema)
        if not self._stream.empty and self._shape is not None and found != self._shape:
            if not self._rolling.bounded:
                raise ConfigurationError(
                    f"{self._path} was written with other columns or other options of {self._options.format}",
                    part=self._files.part,
                    why=f"readers would misinterpret the new rows, which have the columns {', '.join(schema.names)}",
                    do="use the columns and options with which the file was begun, set roll_bytes or roll_interval to"
                    ' continue in a new file, or use format="jsonl"',
                )
            self._roll()
        self._shape = found

    def _roll(self) -> None:
        """Close the file and begin the next one."""
        self.finish()
        with self._all_or_broken():
            self._begin(following(self._segment))

    def _begin(self, segment: int) -> None:
        with translated_errors("beginning", self._files.path(segment), self._files.part):
            with self._register.writing(self._files.part) as held:
                held.check_still(self._mine)
                fd = self._files.create(segment)
            try:
                reached("file: segment created")
                # Before the first byte and before the next segment, so that a power loss leaves no gaps.
                _sync_name(self._files.directory, _name_created())
                reached("file: segment begun")
            except BaseException:
                os.close(fd)
                raise
        os.close(self._fd)
        self._closed_segments.append((self._segment, self._offset))
        self._fd, self._segment, self._offset, self._since = fd, segment, 0, self._begun()
        self._stream = EncodedStream(self._options)

    def _append(self, buffers: list[pa.Buffer]) -> None:
        with (
            translated_errors("writing", self._path, self._files.part),
            self._register.writing(self._files.part) as held,
        ):
            held.check_still(self._mine)
            self._files.check_end(self._fd, self._segment, self._offset)
            reached("file: writing")
            self._dirty = True
            self._offset += write_all(self._fd, buffers)
            reached("file: written")

    def _sync(self) -> None:
        with translated_errors("syncing", self._path, self._files.part):
            if self._dirty:
                reached("file: syncing")
                os.fsync(self._fd)
                self._dirty = False
                reached("file: synced")
            if self._created is not None:
                if _sync_name(self._files.directory, self._created):
                    reached("file: directory synced")
                self._created = None

    def _release(self) -> None:
        os.close(self._fd)


def _name_created() -> int:
    """Return a tick for a file whose name may not be durable yet; for `_sync_name`."""
    return next(_ticks)


def _sync_name(directory: str, created: int) -> bool:
    """Make a name in a directory durable. Return whether the directory was synced.

    If not, it has been synced for another file since `created`, the tick of `_name_created` after the file was created.
    """
    if _durable.get(directory, 0) > created:
        return False
    now = next(_ticks)
    sync_directory(directory)
    # Another thread may sync at the same time. Then one sync is redundant.
    _durable[directory] = now
    return True


def allow_open_files(count: int) -> None:
    """Raise this process's soft limit of open files for `count` parts, up to the hard limit.

    The usual soft limit of 1,024 only protects programs that call `select`. If the hard limit is too low, opening a
    part fails with an error that says so.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count + _OTHERS
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
