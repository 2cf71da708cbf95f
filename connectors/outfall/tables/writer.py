"""Writes the rows of one attempt: a Parquet file per partition, and another one whenever a file is full."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from operator import attrgetter
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from outfall.capabilities import WriterInitContext
from outfall.errors import TargetError, TransientError, ValueRefusedError
from outfall.formats.parquet import RowGroups
from outfall.formats.partition_paths.directory_names import Distinct, split_rows
from outfall.formats.strings import first_failing
from outfall.row_logging import RowLog
from outfall.sinks import StatelessSinkPartition
from outfall.storage.names import AttemptName
from outfall.tables.area import NewFile, directory_of
from outfall.tables.data_file import DataFile, TaskFiles
from outfall.tables.options import TableOptions
from outfall.tables.table import FileLayout
from outfall.trace_points import reached
from outfall.values import rows_to_batch, spark_type

log = logging.getLogger(__name__)

_KEPT_BYTES = 256 << 20
"""Maximum bytes of rows buffered for the row groups of all open files of an attempt."""

_SUFFIX = ".parquet"

Key = tuple[str | None, ...]


class TableWriter(StatelessSinkPartition[Any]):
    """Writes its own files. An attempt that fails or has no rows leaves none."""

    def __init__(
        self, layout: FileLayout, context: WriterInitContext, options: TableOptions, *, published: int | None
    ) -> None:
        self._layout = layout
        self._published = published
        self._context = context
        self._most_open = options.max_open_files
        self._log = RowLog(options.log_rows)
        self._target_size = int(options.target_file_bytes or layout.target_size)
        self._directory = directory_of(context.incarnation, context.generation, context.token)
        self._casts: dict[pa.Schema, _Cast] = {}
        self._open: OrderedDict[Key, _OpenFile] = OrderedDict()
        self._names: list[str] = []
        self._finished: list[DataFile] = []
        self._handed_over = False

    def write_batch(self, values: list[Any]) -> None:
        self.write_record_batch(rows_to_batch(values))

    def write_record_batch(self, batch: pa.RecordBatch) -> None:
        """Write each row to a file of its partition."""
        if batch.num_rows == 0:
            return
        cast = self._casts.get(batch.schema)
        if cast is None:
            cast = self._casts[batch.schema] = _Cast(self._layout, batch.schema, self._log)
        rows = cast.apply(batch)
        partitions = [Distinct.of(values) for values in self._layout.partition(rows)]
        firsts, parts = split_rows(rows, partitions)
        columns = [each.list_at(firsts) for each in partitions]
        for number, some in enumerate(parts):
            self._write(cast, self._layout.partition_text([values[number] for values in columns]), some)
        while sum(map(attrgetter("kept"), self._open.values())) > _KEPT_BYTES:
            largest = max(self._open.values(), key=attrgetter("kept"))
            with self._explained():
                largest.spill()

    def prepare_commit(self) -> list[TaskFiles]:
        """Make the files and their names durable, and return them."""
        for key in list(self._open):
            self._finish(key)
        if self._finished:
            with self._explained():
                self._layout.area.sync(self._directory)
        reached("table: files synced")
        self._handed_over = True
        return [
            TaskFiles(
                directory=self._directory,
                root=self._layout.area.root,
                layout=self._layout.layout,
                files=tuple(self._finished),
                published=self._published,
            )
        ]

    def close(self) -> None:
        """Release all resources; remove the files of a failed attempt."""
        for file in self._open.values():
            file.abandon()
        self._open.clear()
        if self._handed_over or not self._names:
            return
        try:
            self._layout.area.delete(self._directory, self._names)
        except OSError:
            log.warning("files of a failed attempt stay in %s until the next clean-up", self._directory, exc_info=True)

    def _write(self, cast: _Cast, key: Key, rows: pa.RecordBatch) -> None:
        file = self._open.get(key)
        if file is not None and not file.takes(cast):
            self._finish(key)
            file = None
        with self._explained():
            if file is None:
                file = self._begin(cast, key)
            self._open.move_to_end(key)
            reached("table: writing")
            file.write(rows)
        if file.size >= self._target_size:
            self._finish(key)

    def _begin(self, cast: _Cast, key: Key) -> _OpenFile:
        while len(self._open) >= self._most_open:
            self._finish(next(iter(self._open)))
        name = str(AttemptName.of(self._context, len(self._names), _SUFFIX))
        self._names.append(name)
        file = _OpenFile(cast, name, self._layout.area.create(self._directory, name), self._layout)
        self._open[key] = file
        return file

    def _finish(self, key: Key) -> None:
        file = self._open[key]
        with self._explained():
            size, rows, footer = file.finish()
        self._finished.append(
            DataFile(
                name=file.name,
                size=size,
                rows=rows,
                partition=key,
                statistics=self._layout.statistics(footer, file.cast.stored),
            )
        )
        del self._open[key]
        self._context.metrics.add("files")
        self._context.metrics.add("bytes", size)
        reached("table: file written")

    @contextmanager
    def _explained(self) -> Iterator[None]:
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
            raise TransientError(
                f"writing a data file below {self._layout.area.root} failed",
                step=self._context.step_id,
                epoch=self._context.epoch,
                why=f"{type(error).__name__}: {error}",
                do="check that the store is reachable from the executors, has free space, and permits them to write",
            ) from error


class _Cast:
    """Converts rows with given columns to rows of the table."""

    def __init__(self, layout: FileLayout, given: pa.Schema, log: RowLog) -> None:
        self._log = log
        self.schema = layout.file_schema(given)
        self.stored = layout.stored(self.schema)
        by_name = {name: index for index, name in enumerate(given.names)}
        folded = {name.lower(): index for index, name in enumerate(given.names)}
        self._columns = [by_name[name] if name in by_name else folded[name.lower()] for name in self.schema.names]

    def apply(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Convert the columns to the table's order and types. `ValueRefusedError` has the column of a misfit."""
        columns = [
            _cast(batch.column(index), field, self._log)
            for index, field in zip(self._columns, self.schema, strict=True)
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)


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


class _OpenFile:
    """One file that is being written."""

    def __init__(self, cast: _Cast, name: str, file: NewFile, layout: FileLayout) -> None:
        self.cast = cast
        self.name = name
        self._file = file
        self._groups = RowGroups(cast.stored, layout.codec, layout.level)
        self._rows = 0

    @property
    def kept(self) -> int:
        """Bytes of rows buffered for a row group."""
        return self._groups.kept

    @property
    def size(self) -> int:
        """The size of the file, or its estimated size if it were finished now."""
        return self._file.size + self._groups.expected

    def takes(self, cast: _Cast) -> bool:
        """Whether rows with these columns can go into the same file."""
        return bool(cast is self.cast or cast.stored.equals(self.cast.stored))

    def write(self, rows: pa.RecordBatch) -> None:
        """Write rows that are already cast."""
        self._rows += rows.num_rows
        self._file.write(self._groups.write(rows.select(self.cast.stored.names)))

    def spill(self) -> None:
        """Write the buffered rows."""
        self._file.write(self._groups.spill())

    def finish(self) -> tuple[int, int, Any]:
        """Make the file durable; return its bytes, its rows and its footer."""
        data, footer = self._groups.finish()
        self._file.write(data)
        self._file.finish()
        return self._file.size, self._rows, footer

    def abandon(self) -> None:
        """Close an incomplete file."""
        self._file.abandon()
