"""Whole files that Spark's own writer encodes: the driver stages them.

Spark writes into a directory of the attempt in staging. When its job has ended, the driver moves the files out of it.
From there on they are files like those of a task. What a late task of Spark writes remains in the attempt's directory,
which is never published. A later driver removes it by its generation.
"""

from __future__ import annotations

import errno
import logging
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.orc
import pyarrow.parquet as pq

from outfall.capabilities import SupportsSparkWriter, WriterInitContext
from outfall.errors import ConfigurationError, OutfallError, UnsharedTargetError
from outfall.file.options import FileOptions
from outfall.file.stores.disk import translated_errors
from outfall.file.stores.store import STAGING, FileStore, StagedFile
from outfall.file.whole.sink import LocalWholeFiles, RemoteWholeFiles, WholeFiles
from outfall.sinks import StatelessSinkPartition
from outfall.storage.names import BY_SPARK, AttemptName
from outfall.trace_points import reached

if TYPE_CHECKING:
    from outfall.spark.own_writer import SparkRows

_log = logging.getLogger(__name__)

_THREADS = 16
"""Files that the driver reads and syncs at the same time: it waits for the disk."""

_COUNTED = ("orc", "parquet")
"""Formats whose files record their number of rows."""

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


@dataclass(frozen=True)
class _SparkFile:
    """A file that Spark wrote."""

    path: str
    """Relative to the attempt's directory."""
    size: int
    """Bytes."""
    rows: int | None
    """`None` if the format does not record it."""


class SparkFileWriter(StatelessSinkPartition[Any]):
    """Lets Spark write the rows of an epoch, and stages its files. Used once, on the driver."""

    def __init__(self, store: FileStore, options: FileOptions, context: WriterInitContext) -> None:
        self._store = store
        self._options = options
        self._context = context
        self._directory = f"{STAGING}/{AttemptName.of(context, 0, BY_SPARK)}"
        self._files: dict[str, _SparkFile] = {}
        """The files that have rows, by the names under which they are staged."""
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
            format=self._options.format,
            options=self._options_of_spark(),
            partition_by=self._options.partition_by,
        )
        reached("file: written by spark")
        self._take_over(rows)
        reached("file: finished")
        return rows

    def prepare_commit(self) -> list[StagedFile]:
        """Make the names of the files durable, and return the files as committables."""
        with self._translated_errors("syncing"):
            if self._files:
                self._store.sync([STAGING])
                reached("file: staged")
        self._handed_over = True
        return [
            StagedFile(name=name, size=file.size, rows=file.rows, bucket=file.path.rpartition("/")[0])
            for name, file in self._files.items()
        ]

    def close(self) -> None:
        """Remove the attempt's directory, and the files of a failed attempt. The next clean-up removes what remains."""
        try:
            self._store.remove_tree(self._directory)
            if not self._handed_over:
                for name in self._files:
                    self._store.drop(name)
        except (OSError, OutfallError) as error:
            _log.info("files of Spark's writer remain in %s/%s: %s", self._store.root, self._directory, error)
        self._store.release()

    def _options_of_spark(self) -> dict[str, str]:
        given, codec = self._options.writer_options, self._options.compression
        if codec is None:
            return given
        return given | {"compression": _CODECS.get((self._options.format, codec), codec)}

    def _take_over(self, rows: int) -> None:
        """Move the files that have rows, once they have as many as Spark's tasks wrote."""
        with self._translated_errors("taking over"), ThreadPoolExecutor(_THREADS) as pool:
            files = list(pool.map(lambda found: self._read(*found), self._store.tree(self._directory)))
            self._check(rows, files)
            kept = [file for file in files if file.size and file.rows != 0 and rows]
            self._files = {self._name(index, file.path): file for index, file in enumerate(kept)}
            moves = [pool.submit(self._move, *each) for each in self._files.items()]
            for move in moves:
                move.result()
        self._context.metrics.add("bytes", sum(file.size for file in kept))

    def _read(self, path: str, size: int) -> _SparkFile:
        if self._options.format not in _COUNTED or not size:
            return _SparkFile(path, size, None if size else 0)
        with self._store.opened(f"{self._directory}/{path}") as file:
            try:
                if self._options.format == "orc":
                    return _SparkFile(path, size, int(pyarrow.orc.ORCFile(file).nrows))
                return _SparkFile(path, size, pq.read_metadata(file).num_rows)
            except pa.ArrowException as error:
                raise OSError(errno.EIO, f"{path}, which Spark wrote, cannot be read: {error}") from error

    def _name(self, index: int, path: str) -> str:
        match = _SUFFIX.fullmatch(path.rpartition("/")[2])
        suffix = match[1] if match else f".{self._options.format}"
        return str(AttemptName.of(self._context, index, suffix))

    def _move(self, name: str, file: _SparkFile) -> None:
        self._store.adopt(f"{self._directory}/{file.path}", f"{STAGING}/{name}", file.size)

    def _check(self, rows: int, files: Sequence[_SparkFile]) -> None:
        """Compare the files with the number of rows that Spark's tasks wrote."""
        if self._options.format in _COUNTED:
            found = sum(file.rows or 0 for file in files)
            if found != rows:
                raise self._missing(f"its files have {found} rows, but its tasks wrote {rows}")
        elif rows and not any(file.size for file in files):
            raise self._missing(f"its tasks wrote {rows} rows, but there is no file")

    def _missing(self, why: str) -> UnsharedTargetError:
        return UnsharedTargetError(
            f"files that Spark wrote are missing in {self._store.root}/{self._directory}",
            step=self._context.step_id,
            epoch=self._context.epoch,
            why=f"{why}: a host has another directory under this path, or another program removed files",
            do=self._store.share,
        )

    def _translated_errors(self, doing: str) -> AbstractContextManager[None]:
        return translated_errors(f"{doing} files in", self._store.staging)

    def _check_shared(self, frame: SparkRows) -> None:
        """Let executors look for the record, once per process, where no count tells that a file is missing."""
        opened = (self._store.root, self._context.incarnation)
        if self._options.format in _COUNTED or opened in _SHARED:
            return
        frame.run_on_executors(partial(self._store.check_shared, self._context.incarnation))
        _SHARED.add(opened)
