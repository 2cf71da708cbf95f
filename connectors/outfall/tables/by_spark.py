"""Data files that Spark's own writer encodes, in a directory of the attempt inside that of the BEGIN."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pyarrow as pa

from outfall.capabilities import WriterInitContext
from outfall.errors import ConfigurationError, TransientError
from outfall.storage.by_spark import SparkWriter
from outfall.storage.names import AttemptName
from outfall.tables.area import directory_of
from outfall.tables.data_file import DataFile, TaskFiles
from outfall.tables.table import FileLayout
from outfall.trace_points import reached

if TYPE_CHECKING:
    from outfall.spark.own_writer import SparkRows

_is = pa.types

_SHARE = "mount one filesystem there on the driver and on all executors"

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


class SparkTableWriter(SparkWriter[TaskFiles]):
    """Makes data files of the files that Spark wrote."""

    def __init__(
        self, layout: FileLayout, context: WriterInitContext, options: Mapping[str, str], *, published: int | None
    ) -> None:
        into = directory_of(context.incarnation, context.generation, context.token)
        super().__init__(layout.area, context, into=into, format="parquet", share=_SHARE)
        self._layout = layout
        self._options = options
        self._published = published
        self._schema: pa.Schema | None = None

    def write_frame(self, frame: SparkRows) -> int:
        """Let Spark write all rows, and return their number."""
        layout = self._layout
        self._schema = layout.file_schema(frame.schema)
        check_by_spark(layout, self._schema)
        options = {**self._options_of_spark(), **frame.settings(_settings(self._schema))}
        rows = frame.cast(_sources(frame.schema, self._schema))
        with self._translated_errors("creating"):
            layout.area.make(self._into)
        count = rows.save(self._url, format="parquet", options=options)
        reached("table: written by spark")
        self._take_over(count)
        self._context.metrics.add("files", len(self._files))
        reached("table: file written")
        return count

    def _options_of_spark(self) -> dict[str, str]:
        codec, level = self._layout.codec, self._layout.level
        levels = {} if level is None or codec != "zstd" else {"parquet.compression.codec.zstd.level": str(level)}
        return {**self._options, "compression": _CODECS.get(codec, codec), **levels}

    def _name(self, index: int, path: str) -> str:
        return str(AttemptName.of(self._context, index, ".parquet"))

    def _hand_over(self) -> list[TaskFiles]:
        layout = self._layout
        if self._files:
            layout.area.sync(self._into)
        reached("table: files synced")
        files = [
            DataFile(
                name=name,
                size=file.size,
                rows=file.footer.num_rows,
                statistics=layout.statistics(file.footer, self._schema),
            )
            for name, file in self._files.items()
        ]
        return [
            TaskFiles(
                directory=self._into,
                root=layout.area.root,
                layout=layout.layout,
                files=tuple(files),
                published=self._published,
            )
        ]

    def _discard(self, names: Sequence[str]) -> None:
        self._layout.area.delete(self._into, names)

    @contextmanager
    def _translated_errors(self, doing: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise TransientError(
                f"{doing} data files in {self._layout.area.root}/{self._into} failed",
                step=self._context.step_id,
                epoch=self._context.epoch,
                why=f"{type(error).__name__}: {error}",
                do="check that disk, its free space, and that the driver may write there; this attempt is discarded",
            ) from error


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
