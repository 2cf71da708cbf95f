"""A task's rows by the table that a column names.

Each name is met once per task: its table is checked and opened as the only one of a sink is before an epoch. Rows wait
in memory until there are enough, so that those of a table come together, however the tables take turns.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc

from outfall.capabilities import WriterInitContext
from outfall.errors import OutfallError, ValueRefusedError
from outfall.formats.partition_paths.directory_names import Distinct, split_rows
from outfall.tables.allowed import ByTable
from outfall.tables.data_file import TaskFiles
from outfall.tables.options import TableOptions
from outfall.tables.writer import FilesWriter, WrittenTable
from outfall.values import detached

_MOST_WAITING = 64 << 20
"""Bytes of rows that wait. With fewer, a task writes one file per table, also with a thousand tables."""


class Meet(Protocol):
    """Checks and opens the table of a name, for rows with these columns; creates what the options allow."""

    at_once: int
    """How many tables may be met at the same time, in threads."""

    def __call__(self, name: str, rows: pa.Schema) -> tuple[WrittenTable, frozenset[str]]:
        """Return the table, and the columns of the rows that it does not have and that are left out."""


class RoutedWriter(FilesWriter):
    """Writes the rows of one attempt to the tables that they name."""

    def __init__(self, meet: Meet, context: WriterInitContext, options: TableOptions) -> None:
        super().__init__(context, options)
        self._meet = meet
        self._column = options.table_column or ""
        self._options = options
        self._allowed = ByTable((parts, True) for parts in options.allowed_parts)
        self._met: dict[str, tuple[WrittenTable, frozenset[str]]] = {}
        self._waiting: list[pa.RecordBatch] = []
        self._size = 0
        """The bytes that wait."""

    def _take(self, batch: pa.RecordBatch) -> None:
        self._meet_tables(batch)
        if self._waiting and not self._waiting[0].schema.equals(batch.schema):
            self._pass_on()
        self._waiting.append(detached(batch))
        self._size += batch.nbytes
        if self._size >= _MOST_WAITING:
            self._pass_on()

    def _finish(self) -> list[TaskFiles]:
        self._pass_on()
        return super()._finish()

    def _pass_on(self) -> None:
        """Write the rows that wait."""
        waiting, self._waiting, self._size = self._waiting, [], 0
        for batch in pa.Table.from_batches(waiting).combine_chunks().to_batches() if waiting else ():
            super()._take(batch)

    def _tables_of(self, batch: pa.RecordBatch) -> Iterable[tuple[WrittenTable, pa.RecordBatch]]:
        names = Distinct.of(self._named(batch))
        firsts, parts = split_rows(batch.drop_columns([self._column]), [names])
        for name, rows in zip(names.list_at(firsts), parts, strict=True):
            table, unknown = self._met[name]
            yield table, self._without(rows, unknown, name) if unknown else rows

    def _partitions_of(
        self, table: WrittenTable, batch: pa.RecordBatch
    ) -> Iterator[tuple[tuple[str | None, ...], pa.RecordBatch]]:
        try:
            yield from super()._partitions_of(table, batch)
        except ValueRefusedError as error:
            raise ValueRefusedError.because_of(
                error, f"a row for the table {table.name!r} is refused; its number is among the rows of this table"
            ) from error.__cause__

    def _named(self, batch: pa.RecordBatch) -> pa.Array:
        # A column of rows from Python that are all NULL has no type.
        return batch.column(self._column).cast(pa.string())

    def _without(self, rows: pa.RecordBatch, unknown: frozenset[str], name: str) -> pa.RecordBatch:
        """Leave out the columns that a table does not have. Raises `ValueRefusedError` if a row has a value in one."""
        for column in unknown.intersection(rows.schema.names):
            if rows.column(column).null_count < rows.num_rows:
                row = pc.index(rows.column(column).is_valid(), True).as_py()
                raise ValueRefusedError(
                    f"the table {name!r} has no column {column!r}, in which row {row} of those for it has a value",
                    do="add the column to the table, or leave such rows out with a filter",
                )
        return rows.drop_columns(sorted(unknown.intersection(rows.schema.names)))

    # --- names that are new

    def _meet_tables(self, batch: pa.RecordBatch) -> None:
        names = self._named(batch)
        if names.null_count:
            raise ValueRefusedError(
                f"column {self._column!r} is NULL in row {pc.index(names.is_null(), True).as_py()} of the batch",
                why="it names the table of the row",
                do="give each row a table, or leave such rows out with a filter",
            )
        rows = batch.schema.remove(batch.schema.get_field_index(self._column))
        new = [name for name in Distinct.of(names).values.to_pylist() if name not in self._met]
        where = {name: f"row {pc.index(names, pa.scalar(name)).as_py()} of the batch" for name in new}
        for name in new:
            self._check(name, where[name])

        def meet(name: str) -> tuple[WrittenTable, frozenset[str]]:
            try:
                return self._meet(name, rows)
            except OutfallError as error:
                error.add_note(f"The table {name!r} is that of {where[name]}.")
                raise

        if new:
            with ThreadPoolExecutor(self._meet.at_once, "outfall-tables") as threads:
                self._met.update(zip(new, threads.map(meet, new), strict=True))

    def _check(self, name: str, where: str) -> None:
        try:
            parts = self._options.parts_of(name)
        except ValueError as error:
            raise ValueRefusedError(
                f"{name!r} in column {self._column!r} of {where} is not the name of a table",
                why=f"it {error}",
                do="correct the row, or leave such rows out with a filter",
            ) from None
        if not self._allowed.find(parts):
            raise ValueRefusedError(
                f"allowed_tables does not allow the table {name!r}, which {where} names",
                do="correct the row, leave such rows out with a filter, or add the table to allowed_tables",
            )
