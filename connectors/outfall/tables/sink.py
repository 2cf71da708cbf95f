"""The base of the table sinks: tasks write data files, and the driver commits the files of an epoch at once."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
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
from outfall.errors import ConfigurationError
from outfall.first_contact import one_attempt
from outfall.formats.types import check_names
from outfall.options import options_in_save_mode
from outfall.possession.possession import check, find_moved
from outfall.retry_log import RetryLog
from outfall.retry_loop import patiently
from outfall.serde import ModelSerializer
from outfall.sinks import DynamicSink
from outfall.tables.commit import TableCommitter
from outfall.tables.data_file import EpochFiles, TaskFiles
from outfall.tables.options import TableOptions
from outfall.tables.table import FileLayout, LoadedTable
from outfall.tables.target import TablePort, clear_attempts, leftovers, revoke_older, unnamed
from outfall.tables.write_mode import AddFiles, WriteMode
from outfall.tables.writer import TableWriter
from outfall.target_record import TargetRecord
from outfall.trace_points import reached

log = logging.getLogger(__name__)
_retries = RetryLog(log)

T = TypeVar("T")


@dataclass(frozen=True)
class Opened:
    """The state of the table that the driver has read in `open_target`, for its tasks."""

    layout: FileLayout
    published: int | None
    """The newest epoch of the step in the table."""


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

    def build(self, step_id: str, worker_index: int, worker_count: int) -> TableWriter:
        context, opened = self.writer_context(), self._opened
        if opened is None:
            raise ConfigurationError(
                f"{shown_name(self)} was not opened", do="run it with outfall, which calls open_target() first"
            )
        return TableWriter(opened.layout, context, self.options, published=opened.published)

    def row_schema(self) -> pa.Schema | None:
        table = self._loaded()
        return None if table is None else table.columns

    def check_schema(self, schema: pa.Schema) -> None:
        """Explain, column by column, why rows with these columns cannot be written.

        The table is loaded if the columns are new to this sink, and waited for only by `check_target`, which checks
        them again in every epoch.
        """
        if schema != self._rows:
            check_names(schema, "", "columns of a table are matched by name")
            with one_attempt():
                self._check_columns(self._loaded(), schema)
            self._rows = schema

    def find_moved(self, context: TargetContext[Any], recorded: str) -> TargetRecord | None:
        return find_moved(self._port(self._loaded(), context), context)

    def _port(self, table: LoadedTable | None, context: TargetContext[Any]) -> TablePort:
        return TablePort(self.target(), table, context.incarnation, self.options.existing)

    def check_target(self, context: TargetContext[Any]) -> TargetCheck[Any]:
        table = self._loaded()
        check(self._port(table, context), context)
        if self._rows is not None:
            self._check_columns(table, self._rows)
        return TargetCheck({}, table)

    def open_target(self, context: TargetContext[Any]) -> None:
        # As checked just before BEGIN: concurrent changes are compared with the files at the commit.
        table, rows = context.found or self._loaded(), self._rows
        if table is None or (rows is not None and self._lacks(table, rows)):
            if rows is None:
                raise self._missing()
            columns = self.mode.columns(rows)
            self._patiently("creating", lambda: self.create(columns) if table is None else table.add_columns(columns))
            reached("table: made or changed")
            table = self._loaded()
            if table is None:
                raise self._missing()
        self._opened = Opened(self.mode.form(table.files), published=context.published)

    def add_pre_commit_topology(
        self, results: Sequence[CommittableMessage[TaskFiles]]
    ) -> Sequence[CommittableMessage[EpochFiles]]:
        overwrite, opened = self.options.existing.others == "delete", self._opened
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

    def create_committer(self, context: CommitterInitContext) -> TableCommitter:
        return TableCommitter(self.load, self._loaded, context, self.mode)

    def add_post_commit_topology(self, committed: Sequence[CommittableMessage[EpochFiles]]) -> None:
        """Remove files of failed attempts, and run the follow-up work of the format. Failures are logged."""
        if not committed:
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
        table = None if context.lost == {} and not context.final else self._loaded()
        if table is None:
            return 0
        area = table.files.area
        lost = leftovers(area, context)
        settled = revoke_older(self._loaded, context, lost) if lost else None
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
        table = self._loaded()
        if table is None:
            return ()
        area = table.files.area
        found = unnamed(area, table, leftovers(area, context))
        return [area.path(each.path, name) for each in found for name in sorted(each.names)]

    def withdraw(self, context: CleanUpContext) -> None:
        table = self._loaded()
        if table is not None:
            table.forget(context.incarnation)

    # --- columns

    def _check_columns(self, table: LoadedTable | None, rows: pa.Schema) -> None:
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
        table = self._loaded()
        return None if table is None else table.files

    def _loaded(self) -> LoadedTable | None:
        return self._patiently("loading", self.load)

    def _patiently(self, doing: str, call: Callable[[], T]) -> T:
        return patiently(_retries, self.target(), doing, call, self.options.retry_deadline.total_seconds())
