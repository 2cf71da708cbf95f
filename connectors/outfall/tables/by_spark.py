"""Data files that Spark's own writer encodes.

Spark writes into a directory of the attempt, inside that of the BEGIN. When its job has ended, the driver reads the
footers, and moves the files to where a task would have written them. From there on they are the files of an attempt.
What late tasks of Spark write remains in the attempt's directory, which no snapshot refers to.
"""

from __future__ import annotations

import errno
import logging
import os
import stat
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from outfall.capabilities import WriterInitContext
from outfall.errors import ConfigurationError, TransientError, UnsharedTargetError
from outfall.sinks import StatelessSinkPartition
from outfall.storage.names import BY_SPARK, AttemptName, is_hidden
from outfall.tables.area import directory_of
from outfall.tables.data_file import DataFile, TaskFiles
from outfall.tables.table import FileLayout
from outfall.trace_points import reached

if TYPE_CHECKING:
    from outfall.spark.own_writer import SparkRows

_log = logging.getLogger(__name__)

_is = pa.types

_THREADS = 16
"""Files that the driver reads and syncs at the same time: it waits for the disk."""

_CODECS = {"none": "uncompressed", "lz4": "lz4_raw"}
"""Names of compressions that Spark has others for."""
_DO = "omit writer"


def check_by_spark(layout: FileLayout, schema: pa.Schema) -> None:
    """Reject a table, or columns of its files, that Spark's writer does not write as it needs.

    Raises `ConfigurationError` with the reason.
    """
    if not layout.area.is_disk:
        raise ConfigurationError(
            f"the data files are in {layout.area.root}, which is not on a disk",
            why="Spark's writer finishes a file by renaming it, and the driver moves it",
            do=_DO,
        )
    layout.check_by_spark(schema)


def partitioned(by: str) -> ConfigurationError:
    """Return the error of a partitioned table."""
    return ConfigurationError(
        f"the table is partitioned: {by}",
        why="Spark's writer sorts the rows of each task by partition, which costs more than tasks in Python",
        do=_DO,
    )


class SparkTableWriter(StatelessSinkPartition[Any]):
    """Lets Spark write the rows of an epoch, and takes the files over. Used once, on the driver."""

    def __init__(
        self, layout: FileLayout, context: WriterInitContext, options: Mapping[str, str], *, published: int | None
    ) -> None:
        self._layout = layout
        self._context = context
        self._options = options
        self._published = published
        self._directory = directory_of(context.incarnation, context.generation, context.token)
        self._tree = f"{self._directory}/{AttemptName.of(context, 0, BY_SPARK)}"
        self._files: list[DataFile] = []
        self._names: list[str] = []
        self._handed_over = False

    def write_batch(self, values: list[Any]) -> None:
        """Raise `ConfigurationError`: the rows of this writer do not come to Python."""
        raise ConfigurationError(
            'writer="spark" takes no rows from Python', do="use outfall.spark.write_stream or write"
        )

    def write_frame(self, frame: SparkRows) -> int:
        """Let Spark write all rows, and return their number."""
        layout, area = self._layout, self._layout.area
        schema = layout.file_schema(frame.schema)
        check_by_spark(layout, schema)
        options = {**self._options_of_spark(), **frame.settings(_settings(schema))}
        rows = frame.cast(_sources(frame.schema, schema))
        try:
            area.make(self._directory)
        except OSError as error:
            raise self._failed("creating", error) from error
        count = rows.save(f"file:{area.local(self._tree)}", format="parquet", options=options)
        reached("table: written by spark")
        try:
            self._take_over(count, schema)
        except OSError as error:
            raise self._failed("taking over", error) from error
        return count

    def prepare_commit(self) -> list[TaskFiles]:
        """Make the names of the files durable, and return the files."""
        if self._files:
            try:
                self._layout.area.sync(self._directory)
            except OSError as error:
                raise self._failed("syncing", error) from error
        reached("table: files synced")
        self._handed_over = True
        return [
            TaskFiles(
                directory=self._directory,
                root=self._layout.area.root,
                layout=self._layout.layout,
                files=tuple(self._files),
                published=self._published,
            )
        ]

    def close(self) -> None:
        """Remove the attempt's directory, and the files of a failed attempt. The next clean-up removes what remains."""
        area = self._layout.area
        area.remove_tree(self._tree)
        if not self._handed_over and self._names:
            try:
                area.delete(self._directory, self._names)
            except OSError as error:
                _log.info("files of a failed attempt stay in %s: %s", self._directory, error)

    def _options_of_spark(self) -> dict[str, str]:
        codec, level = self._layout.codec, self._layout.level
        levels = {} if level is None or codec != "zstd" else {"parquet.compression.codec.zstd.level": str(level)}
        return {**self._options, "compression": _CODECS.get(codec, codec), **levels}

    # --- the files

    def _take_over(self, rows: int, schema: pa.Schema) -> None:
        """Describe and move the files that have rows."""
        root = self._layout.area.local(self._tree)
        with ThreadPoolExecutor(_THREADS) as pool:
            read = [(path, footer) for path, footer in pool.map(_footer, _files_in(root)) if footer.num_rows]
            found = sum(footer.num_rows for _, footer in read)
            if found != rows:
                raise self._missing(f"its files have {found} rows, but its tasks wrote {rows}")
            if not read:
                return
            self._names = [str(AttemptName.of(self._context, index, ".parquet")) for index in range(len(read))]
            moves = [
                pool.submit(self._layout.area.adopt, path, self._directory, name)
                for (path, _), name in zip(read, self._names, strict=True)
            ]
        self._files = [
            DataFile(
                name=name,
                size=move.result(),
                rows=footer.num_rows,
                statistics=self._layout.statistics(footer, schema),
            )
            for (_, footer), name, move in zip(read, self._names, moves, strict=True)
        ]
        self._context.metrics.add("files", len(self._files))
        self._context.metrics.add("bytes", sum(file.size for file in self._files))
        reached("table: file written")

    def _missing(self, why: str) -> UnsharedTargetError:
        return UnsharedTargetError(
            f"files that Spark wrote are missing in {self._layout.area.root}/{self._tree}",
            step=self._context.step_id,
            epoch=self._context.epoch,
            why=f"{why}: a host has another directory under this path, or another program removed files",
            do="mount one filesystem there on the driver and on all executors",
        )

    def _failed(self, doing: str, error: OSError) -> TransientError:
        return TransientError(
            f"{doing} data files in {self._layout.area.root}/{self._directory} failed",
            step=self._context.step_id,
            epoch=self._context.epoch,
            why=f"{type(error).__name__}: {error}",
            do="check that disk, its free space, and that the driver may write there",
        )


def _settings(schema: pa.Schema) -> dict[str, Sequence[str]]:
    """Return the settings of a session with which Spark's files are those of tables: setting → its valid values."""
    needed: dict[str, Sequence[str]] = {
        "spark.sql.parquet.writeLegacyFormat": ("FALSE",),
        "spark.sql.parquet.datetimeRebaseModeInWrite": ("CORRECTED", "EXCEPTION"),
    }
    if any(map(_has_moments, (field.type for field in schema))):
        # INT96 has no bounds in a footer, and Iceberg does not have it.
        needed["spark.sql.parquet.outputTimestampType"] = ("TIMESTAMP_MICROS",)
    if any(field.metadata for field in schema):
        needed["spark.sql.parquet.fieldId.write.enabled"] = ("TRUE",)
    return needed


def _has_moments(kind: pa.DataType) -> bool:
    if _is.is_timestamp(kind):
        return kind.tz is not None
    return any(_has_moments(kind.field(index).type) for index in range(kind.num_fields))


def _sources(rows: pa.Schema, schema: pa.Schema) -> dict[str, pa.Field]:
    """Return each column of the rows with its field in the file, in the order of the files."""
    exact, folded = set(rows.names), {name.lower(): name for name in rows.names}
    return {field.name if field.name in exact else folded[field.name.lower()]: field for field in schema}


def _files_in(root: str) -> list[str]:
    """Return the files of Spark's job. Raises `OSError` for a link, which Spark does not create."""
    if not os.path.isdir(root):
        return []
    found = [entry.path for entry in os.scandir(root) if not is_hidden(entry.name)]
    for path in found:
        if not stat.S_ISREG(os.lstat(path).st_mode):
            raise OSError(errno.EINVAL, f"{path} is no regular file, and Spark creates no other ones")
    return sorted(found)


def _footer(path: str) -> tuple[str, pq.FileMetaData]:
    return path, pq.read_metadata(path)
