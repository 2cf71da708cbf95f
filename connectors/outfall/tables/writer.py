"""Writes the rows of one attempt: a Parquet file per partition, and another one whenever a file is full."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from outfall.capabilities import Metrics, WriterInitContext
from outfall.errors import TargetError, ValueRefusedError
from outfall.formats.parquet import RowGroups
from outfall.formats.partition_paths.directory_names import Distinct, split_rows
from outfall.formats.strings import first_failing
from outfall.retry_log import Retry, RetryLog
from outfall.retry_loop import retried
from outfall.row_logging import RowLog
from outfall.storage.names import AttemptName
from outfall.storage.writer import Output, OutputWriter
from outfall.store_errors import Meaning, Operation, explained, meaning_of
from outfall.tables.area import NewFile, directory_of
from outfall.tables.data_file import DataFile, TaskFiles
from outfall.tables.options import TableOptions
from outfall.tables.table import FileLayout
from outfall.trace_points import reached
from outfall.values import spark_type

log = logging.getLogger(__name__)
_retries = RetryLog(log)

_TRANSIENT = Meaning.TRANSIENT
_SUFFIX = ".parquet"

Key = tuple[str | None, ...]


class TableWriter(OutputWriter[Key, DataFile, TaskFiles]):
    """Writes its own files. An attempt that fails or has no rows leaves none."""

    def __init__(
        self, layout: FileLayout, context: WriterInitContext, options: TableOptions, *, published: int | None
    ) -> None:
        super().__init__(self._partitions, most_open=options.max_open_files)
        self._layout = layout
        self._published = published
        self._context = context
        self._log = RowLog(options.log_rows)
        self._target_size = int(options.target_file_bytes or layout.target_size)
        self._directory = directory_of(context.incarnation, context.generation, context.token)
        self._casts: dict[pa.Schema, _Cast] = {}
        self._names: list[str] = []
        self._retry_deadline = options.retry_deadline.total_seconds()

    def _partitions(self, batch: pa.RecordBatch) -> Iterator[tuple[Key, pa.RecordBatch]]:
        cast = self._casts.get(batch.schema)
        if cast is None:
            cast = self._casts[batch.schema] = _Cast(self._layout, batch.schema, self._log)
        rows = cast.apply(self._layout.used(batch))
        partitions = [Distinct.of(values) for values in self._layout.partition(rows)]
        firsts, parts = split_rows(rows.select(cast.stored), partitions)
        columns = [each.list_at(firsts) for each in partitions]
        for number, part in enumerate(parts):
            yield self._layout.partition_text([values[number] for values in columns]), part

    def _begin(self, key: Key, rows: pa.RecordBatch) -> _OpenFile:
        name = str(AttemptName.of(self._context, len(self._names), _SUFFIX))
        self._names.append(name)
        groups = RowGroups(rows.schema, self._layout.codec, self._layout.level)
        file = self._create(name)
        return _OpenFile(self._layout, name, key, file, groups, self._target_size, self._context.metrics)

    def _create(self, name: str) -> NewFile:
        """Create a file. While a store is away, this is repeated until `retry_deadline`: the file has no rows yet."""
        area = self._layout.area
        return retried(
            lambda: area.create(self._directory, name),
            passes=lambda error: not area.is_disk and isinstance(error, OSError) and meaning_of(error) is _TRANSIENT,
            deadline=self._retry_deadline,
            log=_retries,
            describe=lambda error: Retry(area.root, "creating a data file", f"{type(error).__name__}: {error}"),
        )

    def _hand_over(self, ended: list[DataFile]) -> list[TaskFiles]:
        if ended:
            self._layout.area.sync(self._directory)
        reached("table: files synced")
        return [
            TaskFiles(
                directory=self._directory,
                root=self._layout.area.root,
                layout=self._layout.layout,
                files=tuple(ended),
                published=self._published,
            )
        ]

    def _release(self, *, failed: bool) -> None:
        if not failed or not self._names:
            return
        try:
            self._layout.area.delete(self._directory, self._names)
        except OSError:
            log.warning("files of a failed attempt remain in %s until clean-up", self._directory, exc_info=True)

    @contextmanager
    def _translated_errors(self) -> Iterator[None]:
        try:
            yield
        except FileExistsError as error:
            raise TargetError(
                f"a data file of this attempt already exists in {self._layout.area.root}/{self._directory}",
                step=self._context.step_id,
                epoch=self._context.epoch,
                why="its name belongs to one attempt, so another program has written it",
                do="find that program, and start the query again",
            ) from error
        except OSError as error:
            raise explained(
                error,
                f"writing a data file below {self._layout.area.root} failed",
                url=self._layout.area.root,
                operation=Operation.CREATE,
                step=self._context.step_id,
                epoch=self._context.epoch,
                do="check that the store is reachable from the executors, has free space, and permits them to write",
            ) from error


class _Cast:
    """Converts rows with given columns to rows of the table."""

    def __init__(self, layout: FileLayout, given: pa.Schema, log: RowLog) -> None:
        self._log = log
        self._schema = layout.file_schema(given)
        self.stored: list[str] = layout.stored(self._schema).names
        by_name = {name: index for index, name in enumerate(given.names)}
        folded = {name.lower(): index for index, name in enumerate(given.names)}
        self._columns = [by_name[name] if name in by_name else folded[name.lower()] for name in self._schema.names]

    def apply(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Convert the columns to the table's order and types. `ValueRefusedError` has the column that does not fit."""
        columns = [
            _cast(batch.column(index), field, self._log)
            for index, field in zip(self._columns, self._schema, strict=True)
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)


def _cast(column: pa.Array, field: pa.Field, log: RowLog) -> pa.Array:
    if not field.nullable and column.null_count:
        row = pc.index(column.is_null(), True).as_py()
        raise ValueRefusedError(
            f"column {field.name!r} is NULL in row {row} of the batch",
            why="the table requires a value",
            do="set a value, or remove such rows",
        )
    if column.type == field.type:
        return column
    try:
        return column.cast(field.type)
    except pa.ArrowInvalid as error:
        raise ValueRefusedError(
            f"column {field.name!r} of type {spark_type(column.type)} has a value that the table's"
            f" {spark_type(field.type)} cannot represent,"
            f" in row {first_failing(column, lambda some: some.cast(field.type))} of the batch",
            why=str(error) if log.full else None,
            do="cast the column before writing it",
        ) from None


@dataclass
class _OpenFile(Output[DataFile]):
    """One file that is being written."""

    layout: FileLayout
    name: str
    partition: Key
    file: NewFile
    groups: RowGroups
    target_size: int
    metrics: Metrics
    rows: int = 0

    @property
    def kept(self) -> int:
        return self.groups.kept

    @property
    def full(self) -> bool:
        return self.file.size + self.groups.expected >= self.target_size

    def takes(self, rows: pa.RecordBatch) -> bool:
        return bool(rows.schema.equals(self.groups.schema))

    def write_record_batch(self, batch: pa.RecordBatch) -> None:
        reached("table: writing")
        self.rows += batch.num_rows
        self.file.write(self.groups.write(batch))

    def spill(self) -> None:
        self.file.write(self.groups.spill())

    def end(self) -> DataFile:
        data, footer = self.groups.finish()
        self.file.write(data)
        self.file.finish()
        self.metrics.add("files")
        self.metrics.add("bytes", self.file.size)
        reached("table: file written")
        statistics = self.layout.statistics(footer, self.groups.schema)
        return DataFile(
            name=self.name, size=self.file.size, rows=self.rows, partition=self.partition, statistics=statistics
        )

    def close(self) -> None:
        self.file.abandon()
