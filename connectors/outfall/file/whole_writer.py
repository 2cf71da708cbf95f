"""All whole files of one attempt: one per bucket, and another one whenever one is full or old."""

from __future__ import annotations

from datetime import UTC, datetime
from operator import attrgetter
from typing import Any

import pyarrow as pa

from outfall.capabilities import WriterInitContext
from outfall.file.disk import explained
from outfall.file.file_writer import WholeFile
from outfall.file.names import FileName
from outfall.file.open_files import OpenFiles
from outfall.file.options import FileOptions
from outfall.file.rolling import Rolling
from outfall.file.store import FileStore, StagedFile
from outfall.formats.partition_paths import PartitionPaths
from outfall.sinks import StatelessSinkPartition
from outfall.trace_points import reached
from outfall.values import rows_to_batch

_KEPT_BYTES = 256 << 20
"""Bytes that formats which keep rows for later (Parquet's row groups) may keep in all files of an attempt together."""


class WholeFileWriter(StatelessSinkPartition[Any]):
    """Writes files of its own. An attempt without rows leaves none, nor does one that fails."""

    def __init__(
        self,
        store: FileStore,
        options: FileOptions,
        context: WriterInitContext,
        suffix: str,
        *,
        rolling: Rolling,
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
        """Write each row to the file of its bucket."""
        if self._buckets is None:
            self._write("", batch)
            return
        now = datetime.fromtimestamp(self._rolling.clock(), UTC)
        for bucket, rows in self._buckets.split(batch, now):
            self._write(bucket, rows)
        self._bound_memory()

    def prepare_commit(self) -> list[StagedFile]:
        """Make the files and their names durable, and hand them over."""
        for bucket in list(self._open):
            self._finish(bucket)
        if self._finished:
            with explained("syncing", self._store.staging):
                self._store.sync_staged()
            reached("file: staged")
        self._handed_over = True
        return self._finished

    def close(self) -> None:
        """Release the files, and remove those of an attempt that failed.

        Or each try on a full disk would make it fuller. What stays behind is swept.
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
            # What rows will take once they are compressed is a guess: write them, and look again.
            file.spill()
            due = self._rolling.due(file.size, file.since)
        return due

    def _begin(self, bucket: str) -> WholeFile:
        name = str(FileName.of(self._context, len(self._names), self._suffix))
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
