"""What writes the rows of one attempt: one object per bucket path, and more where memory or S3's bounds ask for it."""

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
"""Bytes that formats which keep rows for later (Parquet's row groups) may keep in all objects of an attempt."""

OBJECT_BYTES = 16 << 10
"""What an open object takes beside its bytes, roughly."""

_LOOK_AFTER = 256
"""Bucket paths of a batch after which memory is looked at."""


class Writer(StatelessSinkPartition[Any]):
    """Deals rows out to bucket paths, and refuses everything after a failure."""

    def __init__(self, attempt: UploadAttempt, buckets: PartitionPaths | None) -> None:
        self._attempt = attempt
        self._options = attempt.store.options
        self._buckets = buckets
        self._held_bytes = int(self._options.part_bytes) * self._options.max_concurrency
        self._broken = False

    def write_batch(self, values: list[Any]) -> None:
        self.write_record_batch(rows_to_batch(values))

    def write_record_batch(self, batch: pa.RecordBatch) -> None:
        """Write each row to the object of its bucket path."""
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
        """Compose what is due, at the end of the input all that waits."""
        self._begin_call()
        self._flush(end_of_input)
        self._broken = False

    def prepare_commit(self) -> list[StagedObject]:
        """Bring all bytes to safety, and hand the objects over."""
        self._begin_call()
        self._finish()
        staged = self._attempt.hand_over()
        self._broken = False
        return staged

    def snapshot_state(self, epoch: int) -> Sequence[WriterState]:
        """What waits for later epochs: nothing."""
        return ()

    def close(self) -> None:
        """Release everything; take back what an attempt that failed has uploaded."""
        self._attempt.close()

    def _write_some(self, path: str, rows: pa.RecordBatch) -> None:
        if rows.num_rows:
            self._write(path, rows)

    @abstractmethod
    def _write(self, path: str, rows: pa.RecordBatch) -> None:
        """Write at least one row, all of one bucket path."""

    def _flush(self, end_of_input: bool) -> None:
        """Nothing is held back."""

    @abstractmethod
    def _finish(self) -> None:
        """End all objects; nothing is written afterwards."""

    @abstractmethod
    def _bound_memory(self) -> None:
        """Bring bytes away, where many bucket paths together hold too many."""

    def _begin_call(self) -> None:
        """Refuse everything after a failure, which may have left out rows of a batch."""
        if self._broken:
            raise TransientError(
                "this attempt cannot go on writing", why="an earlier write failed", do="let the task be tried again"
            )
        self._broken = True


class OpenObject:
    """One object that is being written."""

    def __init__(self, upload: Upload, stream: EncodedStream) -> None:
        self.upload = upload
        self.stream = stream

    @property
    def held(self) -> int:
        """Bytes of memory that it takes, but for rows that the format keeps and parts under way."""
        return self.upload.held + self.stream.held + OBJECT_BYTES

    @property
    def kept(self) -> int:
        """Bytes of rows that the format keeps."""
        return self.stream.kept


class S3Writer(Writer):
    """Uploads objects of its own epoch. An attempt without rows leaves none, nor does one that fails."""

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
        """Have formats write what they keep, then end the largest objects, when there is too much of either."""
        kept, held = attrgetter("kept"), attrgetter("held")
        while sum(map(kept, self._open.values())) > _KEPT_BYTES:
            largest = max(self._open.values(), key=kept)
            self._store_bytes(largest, largest.stream.spill())
        while len(self._open) > 1 and sum(map(held, self._open.values())) > self._held_bytes:
            self._end(max(self._open, key=lambda path: held(self._open[path])))
