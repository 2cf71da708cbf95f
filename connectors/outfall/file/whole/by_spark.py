"""Whole files that Spark's own writer encodes.

Spark writes into a directory of the attempt in staging. When its job has ended, the driver moves the files out of it.
From there on they are whole files like those of a task. What a late task of Spark writes remains in the attempt's
directory, which is never published. A later driver removes it by its generation, like a staged file.
"""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow.orc
import pyarrow.parquet

from outfall.capabilities import SupportsSparkWriter, WriterInitContext
from outfall.errors import ConfigurationError, UnsharedTargetError
from outfall.file.options import SPARK_NAMES, FileOptions
from outfall.file.stores.disk import explained
from outfall.file.stores.store import STAGING, FileStore, StagedFile
from outfall.file.whole.sink import LocalWholeFiles, RemoteWholeFiles, WholeFiles
from outfall.sinks import StatelessSinkPartition
from outfall.storage.names import BY_SPARK, AttemptName
from outfall.trace_points import reached

if TYPE_CHECKING:
    import pyarrow as pa

    from outfall.spark.own_writer import SparkRows

_THREADS = 16
"""Files that the driver syncs at the same time: it waits for the disk."""
_COUNTED = ("orc", "parquet")
"""Formats whose files tell how many rows they have."""

_CODECS = {("avro", "none"): "uncompressed", ("avro", "zstd"): "zstandard"}
"""Codecs that Spark's writer of a format has under another name."""

_SHARED: set[tuple[str, str]] = set()
"""Directories that this process has found to be the executors', with the step's incarnation."""

_SUFFIX = re.compile(r"part-\d+-[0-9a-f-]{36}(?:[.-]c\d+)?((?:\.\w+)+)")
"""The end of the name that Spark gives a file."""


class FilesBySpark(WholeFiles, SupportsSparkWriter):
    """Spark's writer writes the files, on its executors. The driver stages them and publishes them."""

    def build(self, step_id: str, worker_index: int, worker_count: int) -> SparkFileWriter:  # type: ignore[override]
        return SparkFileWriter(self.store, self.options, self.bound_context())

    def check_schema(self, schema: pa.Schema) -> None:
        """Accept every schema: Spark checks the columns when it plans the job, before a row is written."""


class LocalFilesBySpark(FilesBySpark, LocalWholeFiles):
    """On a disk that all hosts share."""


class RemoteFilesBySpark(FilesBySpark, RemoteWholeFiles):
    """In HDFS."""


class SparkFileWriter(StatelessSinkPartition[Any]):
    """Lets Spark write the rows of an epoch, and stages the files. Used once, on the driver."""

    def __init__(self, store: FileStore, options: FileOptions, context: WriterInitContext) -> None:
        self._store = store
        self._options = options
        self._context = context
        self._attempt = str(AttemptName.of(context, 0, BY_SPARK))
        self._directory = f"{STAGING}/{self._attempt}"
        self._staged: list[StagedFile] = []
        self._handed_over = False

    def write_batch(self, values: list[Any]) -> None:
        """Raise `ConfigurationError`: the rows of this writer do not come to Python."""
        raise ConfigurationError(
            'writer="spark" takes no rows from Python', do="use outfall.spark.write_stream or write"
        )

    def write_frame(self, frame: SparkRows) -> int:
        """Let Spark write all rows, and return their number."""
        self._check_shared(frame)
        rows = frame.save(
            self._store.for_spark(self._directory),
            format=SPARK_NAMES[self._options.format],
            options=self._options_of_spark(),
            partition_by=self._options.partition_by,
        )
        reached("file: written by spark")
        with explained("staging in", self._store.staging):
            self._stage(self._files(rows))
        reached("file: finished")
        return rows

    def prepare_commit(self) -> list[StagedFile]:
        """Make the names of the files durable, and return the files as committables."""
        if self._staged:
            with explained("syncing", self._store.staging):
                self._store.sync([STAGING])
            reached("file: staged")
        self._handed_over = True
        return self._staged

    def close(self) -> None:
        """Remove the attempt's directory, and the files of a failed attempt. The next clean-up removes what remains."""
        if not self._handed_over:
            for file in self._staged:
                self._store.drop(file.name)
        self._store.drop(self._attempt)
        self._store.release()

    def _options_of_spark(self) -> dict[str, str]:
        given, codec = self._options.writer_options, self._options.compression
        if codec is None:
            return given
        return given | {"compression": _CODECS.get((self._options.format, codec), codec)}

    def _files(self, rows: int) -> list[tuple[str, int, int | None]]:
        """Return path, length and rows of each file with rows."""
        files = [(path, size) for path, size in self._store.tree(self._directory) if size]
        if rows == 0 or not files:
            counted: list[tuple[str, int, int | None]] = []
        elif self._options.format in _COUNTED:
            with ThreadPoolExecutor(_THREADS) as pool:
                counts = list(pool.map(self._rows_of, [path for path, _ in files]))
            counted = [(path, size, count) for (path, size), count in zip(files, counts, strict=True) if count]
            files_hold = sum(counts)
            if files_hold != rows:
                raise self._missing(f"its files have {files_hold} rows, but its tasks wrote {rows}")
        else:
            counted = [(path, size, None) for path, size in files]
        if rows and not counted:
            raise self._missing(f"its tasks wrote {rows} rows, but there is no file")
        return counted

    def _rows_of(self, path: str) -> int:
        with self._store.opened(f"{self._directory}/{path}") as file:
            if self._options.format == "orc":
                return int(pyarrow.orc.ORCFile(file).nrows)
            return int(pyarrow.parquet.read_metadata(file).num_rows)

    def _missing(self, why: str) -> UnsharedTargetError:
        return UnsharedTargetError(
            f"files that Spark wrote are missing in {self._store.root}/{self._directory}",
            step=self._context.step_id,
            epoch=self._context.epoch,
            why=f"{why}: a host has another directory under this path, or another program removed files",
            do=self._store.share,
        )

    def _stage(self, files: list[tuple[str, int, int | None]]) -> None:
        def move(index: int, path: str, size: int, rows: int | None) -> StagedFile:
            bucket, _, name = path.rpartition("/")
            match = _SUFFIX.fullmatch(name)
            suffix = match[1] if match else f".{self._options.format}"
            staged = str(AttemptName.of(self._context, index, suffix))
            self._store.adopt(f"{self._directory}/{path}", staged)
            return StagedFile(name=staged, size=size, rows=rows, bucket=bucket)

        with ThreadPoolExecutor(_THREADS) as pool:
            moving = [pool.submit(move, index, *file) for index, file in enumerate(files)]
            errors = [moved.exception() for moved in moving]
        self._staged = [moved.result() for moved in moving if moved.exception() is None]
        for error in errors:
            if error is not None:
                raise error
        self._context.metrics.add("bytes", sum(file.size for file in self._staged))

    def _check_shared(self, frame: SparkRows) -> None:
        """Let executors look for the record, once per process, where no count tells that a file is missing."""
        opened = (self._store.root, self._context.incarnation)
        if self._options.format in _COUNTED or opened in _SHARED:
            return
        frame.run_on_executors(partial(self._store.check_shared, self._context.incarnation))
        _SHARED.add(opened)
