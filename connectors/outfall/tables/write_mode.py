"""How the files of an epoch become rows of the table: one object per write mode, on the driver."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection

import pyarrow as pa

from outfall.capabilities import CommitterInitContext
from outfall.tables.area import DataArea
from outfall.tables.data_file import EpochFiles
from outfall.tables.options import TableOptions
from outfall.tables.record import TableRecord
from outfall.tables.table import FileLayout, LoadedTable, partitions_of


class WriteMode(ABC):
    """What a write mode decides; loading, checks, repeats and clean-up are the same for all."""

    output_modes: Collection[str] = ("append",)
    """The output modes of streaming queries that it accepts."""

    reads_files = False
    """Whether the commit reads the files of tasks, so that it is checked each time that they exist."""

    def columns(self, rows: pa.Schema) -> pa.Schema:
        """Return those columns of the rows that the table must have, or that it is created with.

        Raises `ConfigurationError` if the rows lack a column that an option names.
        """
        return rows

    def form(self, files: FileLayout) -> FileLayout:
        """Return the form of the files that tasks write, for a table with data files of this form."""
        return files

    @abstractmethod
    def commit(self, table: LoadedTable, files: EpochFiles, record: TableRecord, context: CommitterInitContext) -> None:
        """Put the rows of an epoch and its record into the table, in one commit on the loaded head.

        Raises `HeadMovedError`, `UnclearCommitError` or `TransientError`; then the table is loaded again, and checked.
        """

    def written(self, files: EpochFiles, area: DataArea) -> Collection[str]:
        """Return the names in the epoch's directory that a commit of an earlier driver may refer to.

        Raises OSError if the store cannot be reached.
        """
        return files.names

    @abstractmethod
    def kept(self, files: EpochFiles) -> Collection[str] | None:
        """Return the names in a committed epoch's directory that its commit refers to: all others can be removed.

        `None` if they are unknown.
        """


class AddFiles(WriteMode):
    """`append` and `overwrite_partitions`: the files that tasks wrote are data files.

    Overwritten partitions do not fit the output mode `complete` either: a partition that has no more rows keeps its
    earlier ones.
    """

    def __init__(self, options: TableOptions) -> None:
        self._options = options

    def commit(self, table: LoadedTable, files: EpochFiles, record: TableRecord, context: CommitterInitContext) -> None:
        table.commit(files, record, replace=self._replaced(files))

    def kept(self, files: EpochFiles) -> Collection[str]:
        return files.names

    def _replaced(self, files: EpochFiles) -> Collection[tuple[str | None, ...]] | None:
        if self._options.removes_all(files.published):
            return None
        if self._options.write_mode == "append":
            return ()
        replaced = partitions_of(files.files)
        return None if () in replaced else replaced
