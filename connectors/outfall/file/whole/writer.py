"""The whole files of one attempt: one per partition directory, and another one when a file is full or old."""

from __future__ import annotations

import os
from collections import OrderedDict
from datetime import UTC, datetime

import pyarrow as pa

from outfall.capabilities import Metrics, WriterInitContext
from outfall.file.encoded_file import EncodedFile
from outfall.file.options import FileOptions
from outfall.file.stores.disk import translated_errors, write_all
from outfall.file.stores.store import STAGING, FileStore, StagedFile
from outfall.formats import FormatOptions
from outfall.formats.partition_paths import PartitionPaths
from outfall.storage.names import AttemptName
from outfall.storage.rolling import RollBounds
from outfall.storage.writer import Output, OutputWriter
from outfall.trace_points import reached


class WholeFileWriter(OutputWriter[str, StagedFile, StagedFile]):
    """Writes the files of one attempt to staging."""

    def __init__(
        self,
        store: FileStore,
        options: FileOptions,
        context: WriterInitContext,
        suffix: str,
        *,
        rolling: RollBounds,
        buckets: PartitionPaths,
    ) -> None:
        super().__init__(lambda batch: buckets.split(batch, datetime.fromtimestamp(rolling.clock(), UTC)))
        self._store = store
        self._options = options
        self._context = context
        self._suffix = suffix
        self._rolling = rolling
        self._files = OpenFiles(options.max_open_files, sync=store.scratch_is_staging)
        self._names: list[str] = []

    def _begin(self, key: str, rows: pa.RecordBatch) -> WholeFile:
        name = str(AttemptName.of(self._context, len(self._names), self._suffix))
        self._names.append(name)
        return WholeFile(self._store, self._files, name, key, self._options, self._context.metrics, self._rolling)

    def _hand_over(self, ended: list[StagedFile]) -> list[StagedFile]:
        if ended:
            with translated_errors("syncing", self._store.staging):
                self._store.sync([STAGING])
            reached("file: staged")
        return ended

    def _release(self, *, failed: bool) -> None:
        for name in self._names if failed else ():
            self._store.drop(name)
        self._store.release()


class WholeFile(EncodedFile, Output[StagedFile]):
    """Writes one file, which is created with its first bytes."""

    def __init__(
        self,
        store: FileStore,
        files: OpenFiles,
        name: str,
        directory: str,
        options: FormatOptions,
        metrics: Metrics,
        rolling: RollBounds,
    ) -> None:
        self._store = store
        self._files = files
        self._name = name
        self._directory = directory
        self._rolling = rolling
        self._since = rolling.clock()
        self._path = store.scratch(name)
        self._begun = False
        self._bytes = 0
        super().__init__(options, metrics, start=True)

    def takes(self, rows: pa.RecordBatch) -> bool:
        if self.kept and self._due():
            # The compressed size of pending rows is an estimate. Write them and check the real size.
            self.spill()
        return not self._due()

    def end(self) -> StagedFile:
        self.finish()
        self.close()
        reached("file: finished")
        return StagedFile(name=self._name, size=self._bytes, rows=self.rows, bucket=self._directory)

    def _due(self) -> bool:
        return self._rolling.due(self._bytes + self.held, self._since)

    def _append(self, buffers: list[pa.Buffer]) -> None:
        with translated_errors("writing", self._path):
            # Exclusive: a name belongs to one attempt, so an existing file is not its own.
            fd = self._files.get(self._path) if self._begun else self._files.create(self._path)
            self._begun = True
            reached("file: writing")
            self._bytes += write_all(fd, buffers)
            reached("file: written")

    def _sync(self) -> None:
        if self._begun:
            with translated_errors("staging", self._path):
                self._store.stage(self._name, self._files.get(self._path))

    def _release(self) -> None:
        self._files.close(self._path)


class OpenFiles:
    """Provides file descriptors, and closes the least recently used one if there are too many.

    A file whose descriptor was closed is reopened at its end on the next request.
    """

    def __init__(self, limit: int, *, sync: bool) -> None:
        """Keep at most `limit` descriptors open, which is at least one.

        With `sync`, a file is synced before its descriptor is closed. The kernel reports a writeback error only to open
        descriptors, so a file that must be durable has to be synced before it has none.
        """
        self._limit = limit
        self._sync = sync
        self._open: OrderedDict[str, int] = OrderedDict()

    def create(self, path: str) -> int:
        """Create a file, which must not exist, and return its descriptor."""
        return self._add(path, os.O_CREAT | os.O_EXCL | os.O_APPEND)

    def get(self, path: str) -> int:
        """Return the descriptor of a file created by `create`, valid until the next call."""
        fd = self._open.get(path)
        if fd is None:
            return self._add(path, os.O_APPEND)
        self._open.move_to_end(path)
        return fd

    def close(self, path: str) -> None:
        """Close a file, if it is open."""
        fd = self._open.pop(path, None)
        if fd is not None:
            os.close(fd)

    def _add(self, path: str, flags: int) -> int:
        while len(self._open) >= self._limit:
            _, oldest = self._open.popitem(last=False)
            try:
                if self._sync:
                    os.fsync(oldest)
            finally:
                os.close(oldest)
        self._open[path] = fd = os.open(path, os.O_WRONLY | flags, 0o666)
        return fd
