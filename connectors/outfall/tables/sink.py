"""The base of the table sinks: tasks write data files, and the driver commits the files of an epoch at once."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Self, TypeVar

import pyarrow as pa

from outfall.capabilities import (
    CleanUpContext,
    CommittableMessage,
    CommitterInitContext,
    DeclaresCapabilities,
    DeclaresGuarantee,
    Guarantee,
    SaveMode,
    SupportsCommitter,
    SupportsPostCommitTopology,
    SupportsPreCommitTopology,
    SupportsTarget,
    SupportsWriterContext,
    TargetCheck,
    TargetContext,
    changed,
    shown_name,
)
from outfall.errors import ConfigurationError, OutfallError
from outfall.first_contact import one_attempt
from outfall.formats.types import check_names
from outfall.options import options_in_save_mode
from outfall.possession.possession import check, find_moved
from outfall.retry_log import RetryLog
from outfall.retry_loop import patiently
from outfall.serde import ModelSerializer
from outfall.sinks import DynamicSink
from outfall.tables.allowed import check_listed
from outfall.tables.area import mark_of
from outfall.tables.commit import TableCommitter
from outfall.tables.data_file import EpochFiles, TaskFiles
from outfall.tables.many import ManyTablesCommitter, check_layout
from outfall.tables.meeting import Meeting, check_last_tables, existing_tables, skips
from outfall.tables.options import TableOptions
from outfall.tables.routing import RoutedWriter
from outfall.tables.table import FileLayout, LoadedTable
from outfall.tables.target import TablePort, clear_attempts, leftovers, revoke_older, unnamed
from outfall.tables.write_mode import AddFiles, WriteMode
from outfall.tables.writer import FilesWriter, TableWriter
from outfall.target_record import TargetRecord
from outfall.trace_points import reached
from outfall.values import require_columns, spark_type

log = logging.getLogger(__name__)
_retries = RetryLog(log)

T = TypeVar("T")
M = TypeVar("M")


@dataclass(frozen=True)
class Opened:
    """The state of the table that the driver has read in `open_target`, for its tasks."""

    layout: FileLayout
    published: int | None
    """The newest epoch of the step in the table."""


@dataclass(frozen=True)
class OpenedTables:
    """What tasks open their tables with, if a column names the tables."""

    sink: TableSink
    """The sink as tasks use it."""
    context: TargetContext[Any]
    """What the recovery data said when the epoch began."""


class TableSink(
    DynamicSink[Any],
    SupportsWriterContext,
    SupportsTarget[Any],
    SupportsCommitter[EpochFiles],
    SupportsPreCommitTopology[TaskFiles, EpochFiles],
    SupportsPostCommitTopology[EpochFiles],
    DeclaresGuarantee,
    DeclaresCapabilities,
):
    """Writes rows to a table, each epoch in one commit. Formats add how to load, create and identify a table."""

    options: TableOptions
    _rows: pa.Schema | None = None
    """The columns of the rows, once the driver has them."""
    _opened: Opened | None = None
    """Pickled for the tasks, which have no catalog."""
    _opened_tables: OpenedTables | None = None
    """Likewise, if a column names the tables."""
    _name: str | None = None
    """The name that rows have for the table, if it is one of many."""

    # --- implemented by a format

    @property
    def mode(self) -> WriteMode:
        """What its option `write_mode` decides."""
        return AddFiles(self.options)

    @abstractmethod
    def load(self) -> LoadedTable | None:
        """Load the current table; `None` if it does not exist. Called on the driver only.

        Raises:
            ConfigurationError: the table has a format version that the sink does not write.
            TargetError: the table does not fit the options, for example because a branch is missing.
        """

    @abstractmethod
    def check_new(self, rows: pa.Schema) -> None:
        """Reject columns that a table cannot be created with.

        Raises:
            ConfigurationError: with the column, its type and the remedy.
        """

    @abstractmethod
    def create(self, rows: pa.Schema) -> None:
        """Create the table with these columns, unless another driver has just created it."""

    def follow_up(self) -> None:
        """Run follow-up work after an epoch was committed, such as expiry.

        Errors are logged, and the work is retried.
        """

    # --- implemented by a format, for many tables

    def calls_at_once(self) -> int:
        """Return how many tables may be loaded and committed at the same time, in threads."""
        return 1

    def of_table(self, name: str) -> Self:
        """Return the sink of one of many tables: one that has this table only."""
        options = self.options.of_table(name)
        return changed(self, options=options, _name=name, _rows=None, _opened=None, _opened_tables=None)

    def reach(self) -> None:
        """Check what can be checked before a table is known. Raises the errors of `load`."""

    def check_keys_known(self) -> None:
        """Reject one of many tables without keys, if the write mode needs them. Raises `ConfigurationError`."""

    def check_apart(self, name: str, checked: set[str]) -> None:
        """Check the place of one of many tables, before it is loaded or created. `checked` has what needs no look.

        Raises:
            ConfigurationError: it is within another table, whose files are not apart from its own.
        """

    def for_tasks(self) -> Self:
        """Return the sink as tasks use it, which then load their tables themselves."""
        return self

    def existing(self) -> Iterable[str]:
        """Yield the names of the tables that `allowed_tables` allows, and of entries that need not exist.

        Formats list what a `*` stands for.
        """
        return self.options.allowed_tables

    # --- called by the engine

    def capabilities(self) -> Collection[type]:
        return (type(self),)

    def in_save_mode(self, mode: SaveMode | None) -> Self:
        return changed(self, options=options_in_save_mode(self.options, mode))

    def output_modes(self) -> Collection[str]:
        return self.mode.output_modes

    def guarantee(self) -> Guarantee:
        return Guarantee.EXACTLY_ONCE

    def replaces_rows(self) -> bool:
        return self.options.write_mode != "append"

    def build(self, step_id: str, worker_index: int, worker_count: int) -> FilesWriter:
        context, opened, many = self.writer_context(), self._opened, self._opened_tables
        if many is not None:
            return RoutedWriter(Meeting(many.sink, many.context, context), context, self.options)
        if opened is None:
            raise ConfigurationError(
                f"{shown_name(self)} was not opened", do="run it with outfall, which calls open_target() first"
            )
        return TableWriter(opened.layout, context, self.options, published=opened.published)

    def row_schema(self) -> pa.Schema | None:
        if self.options.are_many:
            return None
        table = self.loaded()
        return None if table is None else table.columns

    def check_schema(self, schema: pa.Schema) -> None:
        """Explain, column by column, why rows with these columns cannot be written.

        The table is loaded if the columns are new to this sink, and waited for only by `check_target`, which checks
        them again in every epoch.
        """
        if schema != self._rows:
            check_names(schema, "", "columns of a table are matched by name")
            if self.options.are_many:
                self._check_new_tables(schema)
            else:
                with one_attempt():
                    self._check_columns(self.loaded(), schema)
            self._rows = schema

    def find_moved(self, context: TargetContext[Any], recorded: str) -> TargetRecord | None:
        if self.options.are_many:
            return None
        return find_moved(self._port(self.loaded(), context), context)

    def _port(self, table: LoadedTable | None, context: TargetContext[Any]) -> TablePort:
        existing, one_of_many = self.options.existing, self._name is not None
        return TablePort(self.target(), table, context.incarnation, existing, one_of_many=one_of_many)

    def check_target(self, context: TargetContext[Any]) -> TargetCheck[Any]:
        if self.options.are_many:
            # Tasks check their tables: which ones these are is known from the rows.
            if context.starting:
                self.patiently("reaching", self.reach)
                check_last_tables(self, context)
            return TargetCheck({})
        table = self.loaded()
        self.check_loaded(table, context, self._rows)
        return TargetCheck({}, table)

    def check_loaded(
        self, table: LoadedTable | None, context: TargetContext[Any], rows: pa.Schema | None = None
    ) -> None:
        """Check a table as `check_target` promises. Without `rows`, their columns are not checked."""
        check(self._port(table, context), context)
        if rows is not None:
            self._check_columns(table, rows)

    def open_target(self, context: TargetContext[Any]) -> None:
        if self.options.are_many:
            sink = changed(self.for_tasks(), _opened_tables=None)
            self._opened_tables = OpenedTables(sink, replace(context, states={}, found=None))
            return
        # As checked just before BEGIN: concurrent changes are compared with the files at the commit.
        self._opened = self.open_loaded(context.found or self.loaded(), self._rows, context)

    def open_loaded(self, table: LoadedTable | None, rows: pa.Schema | None, context: TargetContext[Any]) -> Opened:
        """Create the table, or add columns, as rows and options demand. Returns what tasks write by."""
        if table is None or (rows is not None and self._lacks(table, rows)):
            if rows is None:
                raise self._missing()
            columns = self.mode.columns(rows)
            self.patiently("creating", lambda: self.create(columns) if table is None else table.add_columns(columns))
            reached("table: made or changed")
            table = self.loaded()
            if table is None:
                raise self._missing()
        return Opened(self.mode.form(table.files), published=context.published)

    def add_pre_commit_topology(
        self, results: Sequence[CommittableMessage[TaskFiles]]
    ) -> Sequence[CommittableMessage[EpochFiles]]:
        overwrite, opened = self.options.existing.others == "delete", self._opened
        if self.options.are_many:
            gathered = EpochFiles.gather(results, overwrite=overwrite)
            if len(gathered) > 1:
                self._at_once(self._check_layout, [message.value for message in gathered])
            return gathered
        if not results and overwrite and opened is not None:
            # For a plan without rows Spark may run no task, and the previous rows of the table must be removed anyway.
            nothing = TaskFiles(
                directory="",
                root=opened.layout.area.root,
                layout=opened.layout.layout,
                files=(),
                published=opened.published,
            )
            results = [CommittableMessage(nothing, 0, 0)]
        return EpochFiles.gather(results, overwrite=overwrite)

    def write_result_serializer(self) -> ModelSerializer[TaskFiles]:
        return ModelSerializer(TaskFiles)

    def committable_serializer(self) -> ModelSerializer[EpochFiles]:
        return ModelSerializer(EpochFiles)

    def create_committer(self, context: CommitterInitContext) -> TableCommitter | ManyTablesCommitter:
        if self.options.are_many:
            # A merge may take a part of the driver's memory that has room for one.
            at_once = 1 if self.mode.reads_files else self.calls_at_once()
            return ManyTablesCommitter(self._committer_of, context, at_once)
        return self._committer(context)

    def _committer_of(self, name: str, context: CommitterInitContext) -> TableCommitter:
        return self.of_table(name)._committer(context)

    def _committer(self, context: CommitterInitContext) -> TableCommitter:
        return TableCommitter(self.load, self.loaded, context, self.mode)

    def add_post_commit_topology(self, committed: Sequence[CommittableMessage[EpochFiles]]) -> None:
        """Remove files of failed attempts, and run the follow-up work of the format. Failures are logged."""
        if not committed:
            return
        if self.options.are_many:
            self._at_once(self._follow_up_of, committed)
            return
        try:
            layout = self._opened.layout if self._opened else self._files()
            for message in committed:
                files = message.value
                if layout is not None and files.directory and files.root == layout.area.root:
                    kept = self.mode.kept(files)
                    if kept is not None:
                        clear_attempts(layout.area, files, kept)
            self.follow_up()
        except Exception:
            log.warning(
                "%s: the work after a commit failed; `outfall gc` removes files of failed attempts, and the next epoch"
                " does the rest", self.target(), exc_info=True,
            )  # fmt: skip

    def clean_up(self, context: CleanUpContext) -> int:
        nothing = context.lost == {} and not context.final
        if self.options.are_many:
            return 0 if nothing else sum(self._of_each(lambda one: one.clean_up(context)))
        table = None if nothing else self.loaded()
        if table is None:
            return 0
        area = table.files.area
        lost = leftovers(area, context, self._mark(table))
        settled = revoke_older(self.loaded, context, lost) if lost else None
        if settled is None:
            lost = []
        elif context.lost is None:
            lost = unnamed(area, settled, lost)
        for each in lost:
            reached("table: cleaning up")
            area.delete(each.path, each.names)
        if context.final:
            table.forget(context.incarnation)
        return sum(len(each.names) for each in lost)

    def find_leftovers(self, context: CleanUpContext) -> Sequence[str]:
        if self.options.are_many:
            return [name for found in self._of_each(lambda one: one.find_leftovers(context)) for name in found]
        table = self.loaded()
        if table is None:
            return ()
        area = table.files.area
        found = unnamed(area, table, leftovers(area, context, self._mark(table)))
        return [area.path(each.path, name) for each in found for name in sorted(each.names)]

    def withdraw(self, context: CleanUpContext) -> None:
        if self.options.are_many:
            for _ in self._of_each(lambda one: one.withdraw(context)):
                pass
            return
        table = self.loaded()
        if table is not None:
            table.forget(context.incarnation)

    # --- many tables

    def _at_once(self, call: Callable[[M], None], each: Sequence[M]) -> None:
        """Make a call for each table, for several at the same time. Raises the first error after all calls."""
        with ThreadPoolExecutor(self.calls_at_once(), "outfall-tables") as threads:
            for _ in threads.map(call, each):
                pass

    def _check_layout(self, files: EpochFiles) -> None:
        one = self.of_table(files.table or "")
        now = one._files()
        check_layout(files, None if now is None else one.mode.form(now))

    def _follow_up_of(self, message: CommittableMessage[EpochFiles]) -> None:
        self.of_table(message.value.table or "").add_post_commit_topology([message])

    def _of_each(self, call: Callable[[TableSink], T]) -> Iterator[T]:
        """Yield the result of a call for each table that rows may have been written to, without those it fails for."""
        for one in existing_tables(self):
            try:
                yield call(one)
            except OutfallError as error:
                if not skips(one, error):
                    raise

    def _mark(self, table: LoadedTable) -> str:
        return "" if self._name is None else mark_of(self._name, table.files.layout.table)

    def check_tables(self, reached: str) -> Sequence[str]:
        """Return what `check_connection` finds, if a column names the tables."""
        self.reach()
        number = len(dict.fromkeys(self.existing()))
        return reached, f"allowed_tables has {number} tables; write access was not tested"

    def _check_new_tables(self, rows: pa.Schema) -> None:
        """Check what can be checked of rows before it is known which tables they name."""
        column = self.options.table_column or ""
        require_columns(rows.names, {"table_column": column})
        kind = rows.field(column).type
        if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
            raise ConfigurationError(
                f"table_column {column!r} is of type {spark_type(kind)}", do="use a string, the name of a table"
            )
        stored = rows.remove(rows.get_field_index(column))
        check_listed(self.options, rows.names)
        _check_some(stored)
        if self.options.create_table != "never":
            self._check_columns(None, stored)

    # --- columns

    def _check_columns(self, table: LoadedTable | None, rows: pa.Schema) -> None:
        _check_some(rows)
        if table is None and self.options.create_table == "never":
            raise self._missing()
        try:
            columns = self.mode.columns(rows)
            if table is None:
                self.check_new(columns)
                return
            grows = self.options.schema_evolution == "add_columns"
            files = self.mode.form(table.with_columns(columns) if grows else table.files)
            files.file_schema(rows)
        except ConfigurationError as error:
            raise ConfigurationError.because_of(error, f"{self.target()} cannot take these rows") from error.__cause__

    def unknown(self, table: LoadedTable | None, rows: pa.Schema) -> frozenset[str]:
        """Return the columns of the rows that the table does not have, and does not get.

        Raises:
            ConfigurationError: an option names one of them, or no other column is left.
        """
        options, stored = self.options, self.mode.columns(rows).names
        known = set() if table is None else {name.lower() for name in table.columns.names}
        grows = table is None or (options.table_columns and options.schema_evolution == "add_columns")
        known |= {name.lower() for name in stored if grows and options.gets(name)}
        unknown = frozenset(name for name in stored if name.lower() not in known)
        named = {name.lower() for name in self.options.columns_named()}
        needed = sorted(name for name in unknown if name.lower() in named)
        if needed or len(unknown) == len(stored):
            raise ConfigurationError(
                f"{self.target()} has none of the columns of the rows"
                if not needed
                else f"{self.target()} lacks {', '.join(map(repr, needed))}, which an option of the sink names",
                why="unknown_columns leaves out other columns only" if needed else None,
                do="add the columns to the table, or leave its rows out with a filter",
            )
        return unknown

    def _lacks(self, table: LoadedTable, rows: pa.Schema) -> bool:
        """Whether columns must be added."""
        if self.options.schema_evolution == "fail":
            return False
        return table.with_columns(self.mode.columns(rows)).layout != table.files.layout

    def _missing(self) -> ConfigurationError:
        return ConfigurationError(
            f"{self.target()} does not exist",
            do='create it, or set create_table="if_missing" to create it with the columns of the rows',
        )

    # --- the catalog

    def _files(self) -> FileLayout | None:
        table = self.loaded()
        return None if table is None else table.files

    def loaded(self) -> LoadedTable | None:
        """Load the table, with retries until `retry_deadline`. Raises the errors of `load`."""
        return self.patiently("loading", self.load)

    def patiently(self, doing: str, call: Callable[[], T]) -> T:
        """Call with retries after transient errors, until `retry_deadline`."""
        return patiently(_retries, self.target(), doing, call, self.options.retry_deadline.total_seconds())


def _check_some(rows: pa.Schema) -> None:
    if not rows.names:
        raise ConfigurationError("the rows have no column that is stored", do="add the columns of the table")
