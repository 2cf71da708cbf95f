"""Writes the rows of one attempt: one object per partition directory, and more if memory or S3's limits require it."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from outfall.formats import suffix
from outfall.formats.partition_paths import PartitionPaths
from outfall.formats.stream import EncodedStream
from outfall.s3.rolling.pieces import WriterState
from outfall.s3.staged import StagedObject
from outfall.s3.upload import Ended, UploadAttempt
from outfall.storage.writer import Output, OutputWriter

_KEPT_BYTES = 128 << 20
"""Bytes that formats may buffer in all objects of an attempt together, such as Parquet's row groups."""

OBJECT_BYTES = 16 << 10
"""The approximate overhead of an open object, in bytes."""


class S3Writer(OutputWriter[str, Ended, StagedObject]):
    """Uploads objects of its epoch. An attempt without rows creates none, and a failed one aborts its own."""

    def __init__(self, attempt: UploadAttempt, buckets: PartitionPaths) -> None:
        super().__init__(buckets.split, most_kept=_KEPT_BYTES, most_held=attempt.held_bytes)
        self._attempt = attempt

    def flush(self, end_of_input: bool) -> None:
        """Do nothing: no rows are buffered across epochs."""

    def snapshot_state(self, epoch: int) -> Sequence[WriterState]:
        """Return the state of buffered rows: none."""
        return ()

    def _begin(self, key: str, rows: pa.RecordBatch) -> OpenObject:
        return OpenObject(self._attempt, key)

    def _hand_over(self, ended: list[Ended]) -> list[StagedObject]:
        return self._attempt.hand_over(ended)

    def _release(self, *, failed: bool) -> None:
        self._attempt.close(failed=failed)


class OpenObject(Output[Ended]):
    """One object that is being written."""

    def __init__(self, attempt: UploadAttempt, path: str) -> None:
        options = attempt.store.options
        self._attempt = attempt
        self._upload = attempt.begin(path, suffix(options))
        self._stream = EncodedStream(options)

    @property
    def kept(self) -> int:
        return self._stream.kept

    @property
    def held(self) -> int:
        return self._upload.held + self._stream.held + OBJECT_BYTES

    @property
    def full(self) -> bool:
        return self._upload.full

    def write_record_batch(self, batch: pa.RecordBatch) -> None:
        self._store(self._stream.encode(batch))

    def spill(self) -> None:
        self._store(self._stream.spill())

    def end(self) -> Ended:
        self._store(self._stream.finish())
        return self._attempt.end(self._upload, self._stream.rows)

    def _store(self, buffers: list[pa.Buffer]) -> None:
        if buffers:
            self._attempt.context.metrics.add("bytes", sum(buffer.size for buffer in buffers))
            self._upload.write(buffers)
