"""Whole files that Spark's own writer encodes: the driver stages them, in a directory of the attempt in staging."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING

from outfall.capabilities import SupportsSparkWriter, WriterInitContext
from outfall.file.options import FileOptions
from outfall.file.stores.disk import translated_errors
from outfall.file.stores.store import STAGING, FileStore, StagedFile
from outfall.file.whole.sink import LocalWholeFiles, RemoteWholeFiles, WholeFiles
from outfall.storage.by_spark import COUNTED, SparkWriter
from outfall.storage.names import AttemptName
from outfall.trace_points import reached

if TYPE_CHECKING:
    import pyarrow as pa

    from outfall.spark.own_writer import SparkRows

_CODECS = {("avro", "none"): "uncompressed", ("avro", "zstd"): "zstandard"}
"""Codecs that Spark's writer of a format has under another name."""

_SHARED: set[tuple[str, str]] = set()
"""Directories that this process has found to be the executors', with the step's incarnation."""

_SUFFIX = re.compile(r"part-\d+-[0-9a-f-]{36}(?:[.-]c\d+)?((?:\.\w+)+)")
"""The end of the name that Spark gives a file."""


class FilesBySpark(WholeFiles, SupportsSparkWriter):
    """Spark's writer writes the files, on its executors. The driver stages them and publishes them."""

    def build(self, step_id: str, worker_index: int, worker_count: int) -> SparkFileWriter:  # type: ignore[override]
        return SparkFileWriter(self.store, self.options, self.writer_context())

    checks_columns = True

    def check_schema(self, schema: pa.Schema) -> None:
        """Accept every schema: Spark checks the columns when it plans the job, before a row is written."""
        self._rows = schema


class LocalFilesBySpark(FilesBySpark, LocalWholeFiles):
    """On a disk that all hosts share."""


class RemoteFilesBySpark(FilesBySpark, RemoteWholeFiles):
    """In HDFS."""


class SparkFileWriter(SparkWriter[StagedFile]):
    """Stages the files that Spark wrote."""

    def __init__(self, store: FileStore, options: FileOptions, context: WriterInitContext) -> None:
        super().__init__(store, context, into=STAGING, format=options.format, share=store.share)
        self._store = store
        self._options = options

    def write_frame(self, frame: SparkRows) -> int:
        """Let Spark write all rows, and return their number."""
        self._check_shared(frame)
        rows = frame.save(
            self._url,
            format=self._options.format,
            options=self._options_of_spark(),
            partition_by=self._options.partition_by,
        )
        reached("file: written by spark")
        self._take_over(rows)
        reached("file: finished")
        return rows

    def close(self) -> None:
        super().close()
        self._store.release()

    def _options_of_spark(self) -> dict[str, str]:
        given, codec = self._options.writer_options, self._options.compression
        if codec is None:
            return given
        return given | {"compression": _CODECS.get((self._options.format, codec), codec)}

    def _name(self, index: int, path: str) -> str:
        match = _SUFFIX.fullmatch(path.rpartition("/")[2])
        suffix = match[1] if match else f".{self._options.format}"
        return str(AttemptName.of(self._context, index, suffix))

    def _hand_over(self) -> list[StagedFile]:
        if self._files:
            self._store.sync([STAGING])
            reached("file: staged")
        return [
            StagedFile(name=name, size=file.size, rows=file.rows, bucket=file.path.rpartition("/")[0])
            for name, file in self._files.items()
        ]

    def _discard(self, names: Sequence[str]) -> None:
        for name in names:
            self._store.drop(name)

    def _translated_errors(self, doing: str) -> AbstractContextManager[None]:
        return translated_errors(f"{doing} files in", self._store.staging)

    def _check_shared(self, frame: SparkRows) -> None:
        """Let executors look for the record, once per process, where no count tells that a file is missing."""
        opened = (self._store.root, self._context.incarnation)
        if self._options.format in COUNTED or opened in _SHARED:
            return
        frame.run_on_executors(partial(self._store.check_shared, self._context.incarnation))
        _SHARED.add(opened)
