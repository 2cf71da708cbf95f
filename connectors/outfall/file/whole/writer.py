"""The whole files of one attempt: one per partition directory, and another one when a file is full or old."""

from __future__ import annotations

import os
from collections import OrderedDict
from datetime import UTC, datetime
from operator import attrgetter
from typing import Any

import pyarrow as pa

from outfall.capabilities import Metrics, WriterInitContext
from outfall.file.encoded_file import EncodedFile
from outfall.file.options import FileOptions
from outfall.file.stores.disk import explained, write_all
from outfall.file.stores.store import STAGING, FileStore, StagedFile
from outfall.formats import FormatOptions
from outfall.formats.partition_paths import PartitionPaths
from outfall.sinks import StatelessSinkPartition
from outfall.storage.names import AttemptName
from outfall.storage.rolling import RollBounds
from outfall.trace_points import reached
from outfall.values import rows_to_batch

_KEPT_BYTES = 256 << 20
"""Bytes that formats may buffer in all files of an attempt together, such as Parquet's row groups."""


class WholeFileWriter(StatelessSinkPartition[Any]):
    """Writes the files of one attempt. An attempt without rows creates none, and a failed one removes its own."""

    def __init__(
        self,
        store: FileStore,
        options: FileOptions,
        context: WriterInitContext,
        suffix: str,
        *,
        rolling: RollBounds,
        buckets: PartitionPaths | None,
    ) -> None:
        self._store = store
        self._options = options
        self._context = context
        self._suffix = suffix
        self._rolling = rolling
        self._buckets = buckets
        self._files = OpenFiles(options.max_open_files, sync=store.scratch_is_staging)
        self._open: dict[str, WholeFile] = {}
        self._names: list[str] = []
        self._finished: list[StagedFile] = []
        self._handed_over = False

    def write_batch(self, values: list[Any]) -> None:
        self.write_record_batch(rows_to_batch(values))

    def write_record_batch(self, batch: pa.RecordBatch) -> None:
        """Write each row to the file of its partition directory."""
        if self._buckets is None:
            self._write("", batch)
            return
        now = datetime.fromtimestamp(self._rolling.clock(), UTC)
        for bucket, rows in self._buckets.split(batch, now):
            self._write(bucket, rows)
        self._bound_memory()

    def prepare_commit(self) -> list[StagedFile]:
        """Make the files and their names durable, and return them as committables."""
        for bucket in list(self._open):
            self._finish(bucket)
        if self._finished:
            with explained("syncing", self._store.staging):
                self._store.sync([STAGING])
            reached("file: staged")
        self._handed_over = True
        return self._finished

    def close(self) -> None:
        """Release the files, and remove those of a failed attempt, so that retries do not fill the disk.

        The next clean-up removes files that remain.
        """
        for file in self._open.values():
            file.close()
        self._open.clear()
        if not self._handed_over:
            for name in self._names:
                self._store.drop(name)
        self._names.clear()
        self._store.release()

    def _write(self, bucket: str, rows: pa.RecordBatch) -> None:
        if rows.num_rows == 0:
            return
        file = self._open.get(bucket)
        if file is not None and self._is_full_or_old(file):
            self._finish(bucket)
            file = None
        (file or self._begin(bucket)).write_record_batch(rows)

    def _is_full_or_old(self, file: WholeFile) -> bool:
        due = self._rolling.due(file.size, file.since)
        if due and file.kept:
            # The compressed size of pending rows is an estimate. Write them and check the real size.
            file.spill()
            due = self._rolling.due(file.size, file.since)
        return due

    def _begin(self, bucket: str) -> WholeFile:
        name = str(AttemptName.of(self._context, len(self._names), self._suffix))
        self._names.append(name)
        self._open[bucket] = file = WholeFile(
            self._store,
            self._files,
            name,
            bucket,
            self._options,
            self._context.metrics,
            since=self._rolling.clock(),
        )
        return file

    def _finish(self, bucket: str) -> None:
        file = self._open[bucket]
        file.finish()
        file.close()
        del self._open[bucket]
        self._finished.append(file.staged())
        reached("file: finished")

    def _bound_memory(self) -> None:
        kept = attrgetter("kept")
        while sum(map(kept, self._open.values())) > _KEPT_BYTES:
            max(self._open.values(), key=kept).spill()


class WholeFile(EncodedFile):
    """Writes one file, which is created with its first bytes."""

    def __init__(
        self,
        store: FileStore,
        files: OpenFiles,
        name: str,
        bucket: str,
        options: FormatOptions,
        metrics: Metrics,
        *,
        since: float,
    ) -> None:
        self._store = store
        self._files = files
        self._path = store.scratch(name)
        self._begun = False
        self._bytes = 0
        self.name = name
        self.bucket = bucket
        self.since = since
        """The time of its creation, in seconds since 1970."""
        super().__init__(options, metrics, start=True)

    @property
    def size(self) -> int:
        """The length of the file if it were finished now, as far as it is known."""
        return self._bytes + self.held

    def staged(self) -> StagedFile:
        """Describe the file once it is finished."""
        return StagedFile(name=self.name, size=self._bytes, rows=self.rows, bucket=self.bucket)

    def _append(self, buffers: list[pa.Buffer]) -> None:
        with explained("writing", self._path):
            # Exclusive: a name belongs to one attempt, so an existing file is not its own.
            fd = self._files.get(self._path) if self._begun else self._files.create(self._path)
            self._begun = True
            reached("file: writing")
            self._bytes += write_all(fd, buffers)
            reached("file: written")

    def _sync(self) -> None:
        if self._begun:
            with explained("staging", self._path):
                self._store.stage(self.name, self._files.get(self._path))

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
