"""Writes the rows of one attempt: one object per partition directory, and more if memory or S3's limits require it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from datetime import UTC, datetime
from operator import attrgetter
from typing import Any

import pyarrow as pa

from outfall.errors import TransientError
from outfall.formats import suffix
from outfall.formats.partition_paths import PartitionPaths
from outfall.formats.stream import EncodedStream
from outfall.s3.rolling.pieces import WriterState
from outfall.s3.staged import StagedObject
from outfall.s3.upload import Upload, UploadAttempt
from outfall.sinks import StatelessSinkPartition
from outfall.values import rows_to_batch

_KEPT_BYTES = 128 << 20
"""Bytes that formats may buffer in all objects of an attempt together, such as Parquet's row groups."""

OBJECT_BYTES = 16 << 10
"""The approximate overhead of an open object, in bytes."""

_LOOK_AFTER = 256
"""The number of partition directories of a batch after which memory is checked."""


class Writer(StatelessSinkPartition[Any]):
    """Distributes rows to partition directories, and rejects all calls after a failure."""

    def __init__(self, attempt: UploadAttempt, buckets: PartitionPaths | None) -> None:
        self._attempt = attempt
        self._options = attempt.store.options
        self._buckets = buckets
        self._held_bytes = int(self._options.part_bytes) * self._options.max_concurrency
        self._broken = False

    def write_batch(self, values: list[Any]) -> None:
        self.write_record_batch(rows_to_batch(values))

    def write_record_batch(self, batch: pa.RecordBatch) -> None:
        """Write each row to the object of its partition directory."""
        self._begin_call()
        if self._buckets is None:
            self._write_some("", batch)
        else:
            for count, (path, rows) in enumerate(self._buckets.split(batch, datetime.now(UTC)), 1):
                self._write_some(path, rows)
                if count % _LOOK_AFTER == 0:
                    self._bound_memory()
            self._bound_memory()
        self._broken = False

    def flush(self, end_of_input: bool) -> None:
        """Compose objects that have reached a bound; at the end of the input, all buffered rows."""
        self._begin_call()
        self._flush(end_of_input)
        self._broken = False

    def prepare_commit(self) -> list[StagedObject]:
        """Wait until all bytes are durable, and return the objects as committables."""
        self._begin_call()
        self._finish()
        staged = self._attempt.hand_over()
        self._broken = False
        return staged

    def snapshot_state(self, epoch: int) -> Sequence[WriterState]:
        """Return the state of buffered rows: none."""
        return ()

    def close(self) -> None:
        """Release everything; abort the uploads of a failed attempt."""
        self._attempt.close()

    def _write_some(self, path: str, rows: pa.RecordBatch) -> None:
        if rows.num_rows:
            self._write(path, rows)

    @abstractmethod
    def _write(self, path: str, rows: pa.RecordBatch) -> None:
        """Write at least one row, all of one partition directory."""

    def _flush(self, end_of_input: bool) -> None:
        """Do nothing: no rows are buffered across epochs."""

    @abstractmethod
    def _finish(self) -> None:
        """End all objects; nothing is written afterwards."""

    @abstractmethod
    def _bound_memory(self) -> None:
        """Write bytes if all partition directories together buffer too many."""

    def _begin_call(self) -> None:
        """Reject all calls after a failure, which may have lost rows of a batch."""
        if self._broken:
            raise TransientError(
                "this attempt cannot continue to write", why="an earlier write failed", do="retry the task"
            )
        self._broken = True


class OpenObject:
    """One object that is being written."""

    def __init__(self, upload: Upload, stream: EncodedStream) -> None:
        self.upload = upload
        self.stream = stream

    @property
    def held(self) -> int:
        """Its memory in bytes, without rows that the format buffers and parts in progress."""
        return self.upload.held + self.stream.held + OBJECT_BYTES

    @property
    def kept(self) -> int:
        """The memory of rows that the format buffers, in bytes."""
        return self.stream.kept


class S3Writer(Writer):
    """Uploads objects of its epoch. An attempt without rows creates none, and a failed one aborts its own."""

    def __init__(self, attempt: UploadAttempt, buckets: PartitionPaths | None) -> None:
        super().__init__(attempt, buckets)
        self._suffix = suffix(self._options)
        self._open: dict[str, OpenObject] = {}

    def close(self) -> None:
        self._open.clear()
        super().close()

    def _write(self, path: str, rows: pa.RecordBatch) -> None:
        found = self._open.get(path) or self._begin(path)
        self._store_bytes(found, found.stream.encode(rows))
        if found.upload.full:
            self._end(path)

    def _begin(self, path: str) -> OpenObject:
        found = OpenObject(self._attempt.begin(path, self._suffix), EncodedStream(self._options))
        self._open[path] = found
        return found

    def _store_bytes(self, found: OpenObject, buffers: list[pa.Buffer]) -> None:
        if buffers:
            self._attempt.context.metrics.add("bytes", sum(buffer.size for buffer in buffers))
            found.upload.write(buffers)

    def _end(self, path: str) -> None:
        found = self._open.pop(path)
        self._store_bytes(found, found.stream.finish())
        self._attempt.end(found.upload, found.stream.rows)

    def _finish(self) -> None:
        for path in list(self._open):
            self._end(path)

    def _bound_memory(self) -> None:
        """Write rows that formats buffer, and end the largest objects, if there is too much of either."""
        kept, held = attrgetter("kept"), attrgetter("held")
        while sum(map(kept, self._open.values())) > _KEPT_BYTES:
            largest = max(self._open.values(), key=kept)
            self._store_bytes(largest, largest.stream.spill())
        while len(self._open) > 1 and sum(map(held, self._open.values())) > self._held_bytes:
            self._end(max(self._open, key=lambda path: held(self._open[path])))
