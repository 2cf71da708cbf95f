"""All objects of one attempt: one per bucket path, and another one where memory or S3's bounds ask for it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from operator import attrgetter
from typing import Any

import pyarrow as pa

from outfall.buckets import Buckets
from outfall.capabilities import WriterInitContext
from outfall.encode import rows_to_batch, suffix
from outfall.encode.stream import EncodedStream
from outfall.errors import TransientError, ValueRefusedError
from outfall.s3.names import ObjectName
from outfall.s3.staged import StagedObject
from outfall.s3.store import Store
from outfall.s3.upload import Senders, Upload
from outfall.sinks import StatelessSinkPartition
from outfall.steps import reached

_KEPT_BYTES = 128 << 20
"""Bytes that formats which keep rows for later (Parquet's row groups) may keep in all objects of an attempt."""

_OBJECT_BYTES = 16 << 10
"""What an open object takes beside its bytes, roughly."""

_LOOK_AFTER = 256
"""Bucket paths of a batch after which memory is looked at."""

_LONGEST_KEY = 1024


class OpenObject:
    """One object that is being written."""

    def __init__(self, upload: Upload, stream: EncodedStream) -> None:
        self.upload = upload
        self.stream = stream

    @property
    def held(self) -> int:
        """Bytes of memory that it takes, but for rows that the format keeps and parts under way."""
        return self.upload.held + self.stream.held + _OBJECT_BYTES

    @property
    def kept(self) -> int:
        """Bytes of rows that the format keeps."""
        return self.stream.kept


class S3Writer(StatelessSinkPartition[Any]):
    """Uploads objects of its own. An attempt without rows leaves none, nor does one that fails."""

    def __init__(
        self, store: Store, context: WriterInitContext, buckets: Buckets | None, check_shared: Callable[[], None]
    ) -> None:
        self._store = store
        self._context = context
        self._buckets = buckets
        self._check_shared = check_shared
        self._suffix = suffix(store.options)
        self._senders = Senders(store.options.max_concurrency)
        self._held_bytes = int(store.options.part_size) * store.options.max_concurrency
        self._inline_left = int(store.options.inline_size)
        self._open: dict[str, OpenObject] = {}
        self._ended: list[Callable[[], StagedObject]] = []
        self._uploads: list[Upload] = []
        self._handed_over = False
        self._broken = False

    def write_batch(self, values: list[Any]) -> None:
        self.write_record_batch(rows_to_batch(values))

    def write_record_batch(self, batch: pa.RecordBatch) -> None:
        """Write each row to the object of its bucket path."""
        self._begin_call()
        if self._buckets is None:
            self._write("", batch)
        else:
            for count, (path, rows) in enumerate(self._buckets.split(batch, datetime.now(UTC)), 1):
                self._write(path, rows)
                if count % _LOOK_AFTER == 0:
                    self._bound_memory()
            self._bound_memory()
        self._broken = False

    def prepare_commit(self) -> list[StagedObject]:
        """Bring all bytes to safety, and hand the objects over."""
        self._begin_call()
        for path in list(self._open):
            self._end(path)
        staged = [each() for each in self._ended]
        reached("s3: staged")
        self._handed_over = True
        self._broken = False
        return staged

    def close(self) -> None:
        """End the threads, and abort the uploads of an attempt that failed. What stays behind is swept."""
        self._open.clear()
        if not self._handed_over:
            self._store.stopped.set()
        self._senders.close()
        if not self._handed_over:
            for upload in self._uploads:
                upload.abort()
        self._uploads.clear()
        self._ended.clear()

    def _begin_call(self) -> None:
        """Refuse everything after a failure, which may have left out rows of a batch."""
        if self._broken:
            raise TransientError(
                "this attempt cannot go on writing", why="an earlier write failed", do="let the task be tried again"
            )
        self._broken = True

    def _write(self, path: str, rows: pa.RecordBatch) -> None:
        if rows.num_rows == 0:
            return
        found = self._open.get(path) or self._begin(path)
        self._store_bytes(found, found.stream.encode(rows))
        if found.upload.full:
            self._end(path)

    def _begin(self, path: str) -> OpenObject:
        if not self._uploads:
            self._check_shared()
        name = ObjectName.of(self._context, len(self._uploads), self._suffix)
        key = self._store.options.root + (f"{path}/{name}" if path else str(name))
        if len(key.encode()) > _LONGEST_KEY:
            raise ValueRefusedError(
                f"the key {key[:100]!r}… is longer than S3's {_LONGEST_KEY} bytes",
                step=self._context.step_id,
                epoch=self._context.epoch,
                do="give a shorter prefix, shorter values in partition_by, or a shorter step_id",
            )
        upload = Upload(self._store, self._senders, key)
        self._uploads.append(upload)
        self._open[path] = found = OpenObject(upload, EncodedStream(self._store.options))
        return found

    def _store_bytes(self, found: OpenObject, buffers: list[pa.Buffer]) -> None:
        if buffers:
            self._context.metrics.add("bytes", sum(buffer.size for buffer in buffers))
            found.upload.write(buffers)

    def _end(self, path: str) -> None:
        """Finish an object: hand its bytes over if they are few, else have the rest of them sent."""
        found = self._open.pop(path)
        self._store_bytes(found, found.stream.finish())
        rows, upload = found.stream.rows, found.upload
        inline = upload.end_inline(self._inline_left, rows)
        if inline is not None:
            self._inline_left -= inline.size
            self._ended.append(lambda: inline)
            return
        upload.end()
        self._ended.append(lambda: upload.staged(rows))
        reached("s3: object ended")

    def _bound_memory(self) -> None:
        """Have formats write what they keep, then end the largest objects, when there is too much of either."""
        kept, held = attrgetter("kept"), attrgetter("held")
        while sum(map(kept, self._open.values())) > _KEPT_BYTES:
            largest = max(self._open.values(), key=kept)
            self._store_bytes(largest, largest.stream.spill())
        while len(self._open) > 1 and sum(map(held, self._open.values())) > self._held_bytes:
            self._end(max(self._open, key=lambda path: held(self._open[path])))
