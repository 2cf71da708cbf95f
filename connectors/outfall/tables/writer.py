"""Writes the rows of one attempt: a Parquet file per table and partition, and another one whenever a file is full."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

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
from outfall.tables.area import DataArea, NewFile, directory_of
from outfall.tables.data_file import DataFile, TaskFiles
from outfall.tables.options import TableOptions
from outfall.tables.table import FileLayout
from outfall.trace_points import reached
from outfall.values import spark_type

log = logging.getLogger(__name__)
_retries = RetryLog(log)

_TRANSIENT = Meaning.TRANSIENT
_SUFFIX = ".parquet"


@dataclass(eq=False)
class WrittenTable:
    """A table that an attempt writes to."""

    layout: FileLayout
    published: int | None
    """The newest epoch of the step in the table."""
    directory: str
    """The directory of the attempt's files, relative to the root of the table's data."""
    name: str | None = None
    """The name that rows have for it; `None` for the only table."""
    casts: dict[pa.Schema, _Cast] = field(default_factory=dict)
    """What converts rows with these columns."""


Key = tuple[WrittenTable, tuple[str | None, ...]]
"""A table, and one of its partitions."""


class FilesWriter(OutputWriter[Key, tuple[WrittenTable, DataFile], TaskFiles]):
    """Writes its own files, of one table or of several. An attempt that fails or has no rows leaves none."""

    def __init__(self, context: WriterInitContext, options: TableOptions) -> None:
        super().__init__(self._partitions, most_open=options.max_open_files)
        self._context = context
        self._log = RowLog(options.log_rows)
        self._target_file_bytes = options.target_file_bytes
        self._names: dict[WrittenTable, list[str]] = {}
        """The files that this attempt has created."""
        self._number = 0
        """How many these are."""
        self._retry_deadline = options.retry_deadline.total_seconds()
        self._root = ""
        """Where the data files of the table are that rows are written to now, for errors."""

    @abstractmethod
    def _tables_of(self, batch: pa.RecordBatch) -> Iterable[tuple[WrittenTable, pa.RecordBatch]]:
        """Return the rows of a batch by table, in their order."""

    def _partitions(self, batch: pa.RecordBatch) -> Iterator[tuple[Key, pa.RecordBatch]]:
        for table, rows in self._tables_of(batch):
            self._root = table.layout.area.root
            for partition, part in self._partitions_of(table, rows):
                yield (table, partition), part

    def _partitions_of(
        self, table: WrittenTable, batch: pa.RecordBatch
    ) -> Iterator[tuple[tuple[str | None, ...], pa.RecordBatch]]:
        layout, cast = table.layout, table.casts.get(batch.schema)
        if cast is None:
            cast = table.casts[batch.schema] = _Cast(layout, batch.schema, self._log)
        rows = cast.apply(layout.used(batch))
        partitions = [Distinct.of(values) for values in layout.partition(rows)]
        firsts, parts = split_rows(rows.select(cast.stored), partitions)
        columns = [each.list_at(firsts) for each in partitions]
        for number, part in enumerate(parts):
            yield layout.partition_text([values[number] for values in columns]), part

    def _begin(self, key: Key, rows: pa.RecordBatch) -> _OpenFile:
        table, partition = key
        layout = table.layout
        name = str(AttemptName.of(self._context, self._number, _SUFFIX))
        self._number += 1
        self._names.setdefault(table, []).append(name)
        groups = RowGroups(rows.schema, layout.codec, layout.level)
        file = self._create(layout.area, table.directory, name)
        return _OpenFile(table, name, partition, file, groups, self._target_size(layout), self._context.metrics)

    def _target_size(self, layout: FileLayout) -> int:
        return int(self._target_file_bytes or layout.target_size)

    def _create(self, area: DataArea, directory: str, name: str) -> NewFile:
        """Create a file. While a store is away, this is repeated until `retry_deadline`: the file has no rows yet."""
        return retried(
            lambda: area.create(directory, name),
            passes=lambda error: not area.is_disk and isinstance(error, OSError) and meaning_of(error) is _TRANSIENT,
            deadline=self._retry_deadline,
            log=_retries,
            describe=lambda error: Retry(area.root, "creating a data file", f"{type(error).__name__}: {error}"),
        )

    def _hand_over(self, ended: list[tuple[WrittenTable, DataFile]]) -> list[TaskFiles]:
        files: dict[WrittenTable, list[DataFile]] = {table: [] for table in self._always()}
        for table, file in ended:
            files.setdefault(table, []).append(file)
        for table in files:
            if files[table]:
                self._root = table.layout.area.root
                table.layout.area.sync(table.directory)
        reached("table: files synced")
        return [
            TaskFiles(
                directory=table.directory,
                root=table.layout.area.root,
                layout=table.layout.layout,
                files=tuple(found),
                published=table.published,
                table=table.name,
            )
            for table, found in files.items()
        ]

    def _always(self) -> Iterable[WrittenTable]:
        """Return the tables of which there is a result even without files."""
        return ()

    def _release(self, *, failed: bool) -> None:
        for table, names in self._names.items() if failed else ():
            try:
                table.layout.area.delete(table.directory, names)
            except OSError:
                log.warning("files of a failed attempt remain in %s until clean-up", table.directory, exc_info=True)

    @contextmanager
    def _translated_errors(self) -> Iterator[None]:
        try:
            yield
        except FileExistsError as error:
            raise TargetError(
                f"a data file of this attempt already exists below {self._root}",
                step=self._context.step_id,
                epoch=self._context.epoch,
                why="its name belongs to one attempt, so another program has written it",
                do="find that program, and start the query again",
            ) from error
        except OSError as error:
            raise explained(
                error,
                f"writing a data file below {self._root} failed",
                url=self._root,
                operation=Operation.CREATE,
                step=self._context.step_id,
                epoch=self._context.epoch,
                do="check that the store is reachable from the executors, has free space, and permits them to write",
            ) from error


class TableWriter(FilesWriter):
    """Writes the rows of one attempt to one table; with `directory`, beside the files of an epoch that are there."""

    def __init__(
        self,
        layout: FileLayout,
        context: WriterInitContext,
        options: TableOptions,
        *,
        published: int | None,
        directory: str | None = None,
    ) -> None:
        super().__init__(context, options)
        own = directory or directory_of(context.incarnation, context.generation, context.token)
        self._table = WrittenTable(layout, published, own)
        self._root = layout.area.root

    def _tables_of(self, batch: pa.RecordBatch) -> Iterable[tuple[WrittenTable, pa.RecordBatch]]:
        return [(self._table, batch)]

    def _always(self) -> Iterable[WrittenTable]:
        return [self._table]


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
class _OpenFile(Output[tuple[WrittenTable, DataFile]]):
    """One file that is being written."""

    table: WrittenTable
    name: str
    partition: tuple[str | None, ...]
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

    def end(self) -> tuple[WrittenTable, DataFile]:
        data, footer = self.groups.finish()
        self.file.write(data)
        self.file.finish()
        self.metrics.add("files")
        self.metrics.add("bytes", self.file.size)
        reached("table: file written")
        statistics = self.table.layout.statistics(footer, self.groups.schema)
        file = DataFile(
            name=self.name, size=self.file.size, rows=self.rows, partition=self.partition, statistics=statistics
        )
        return self.table, file

    def close(self) -> None:
        self.file.abandon()
