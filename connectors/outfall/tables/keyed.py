"""The port of a table format whose rows are found by key, for `upsert` and `delete`: see `outfall.tables.merge`."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Iterable, Sequence
from typing import Protocol

import pyarrow as pa

from outfall.tables.data_file import EpochFiles, Layout
from outfall.tables.record import TableRecord
from outfall.tables.stored_rows import StoredRows
from outfall.tables.table import FileLayout, LoadedTable


class KeyedLayout(FileLayout):
    """The form of data files, with what the driver needs to rewrite those of others."""

    @property
    @abstractmethod
    def columns(self) -> pa.Schema:
        """The columns of the table, with types that rows are compared and rewritten in."""

    @property
    def of_staged(self) -> Layout:
        """What staged files must fit when their rows are merged."""
        return self.layout

    @abstractmethod
    def only(self, names: Collection[str]) -> FileLayout:
        """Return the form of files of a table that has only these columns, and no partitions."""

    @abstractmethod
    def check_values(self, rows: pa.RecordBatch, deleted: pa.Array | None) -> None:
        """Raise `ValueRefusedError` for a value that no data file may have. `deleted` marks rows without such rules."""

    @abstractmethod
    def unchecked(self) -> FileLayout:
        """Return the form of data files for rows that the table has already."""


class StoredFile(Protocol):
    """A data file of a loaded table, of any writer."""

    @property
    def path(self) -> str:
        """Its name, as the table has it."""

    def may_have(self, keys: pa.Table) -> pa.ChunkedArray | None:
        """Return, for each row of `keys`, whether the file may have it; `None` if it may have any of them."""


class KeyedTable(LoadedTable):
    """One loaded state of a table whose data files can be replaced one by one."""

    orphans: str
    """What to do if other tools remove new files as orphans."""

    @property
    @abstractmethod
    def files(self) -> KeyedLayout:
        """The current layout of its data files."""

    @property
    @abstractmethod
    def on_disk(self) -> bool:
        """Whether its files are on a filesystem of this host."""

    @abstractmethod
    def stored(self, keys: Sequence[str]) -> Iterable[StoredFile]:
        """Yield the data files that readers find, with what is known of these columns.

        Raises `ConfigurationError` for a table whose files cannot be replaced.
        """

    @abstractmethod
    def rows(self, file: StoredFile) -> StoredRows:
        """Return the rows that readers find in a file."""

    @abstractmethod
    def check_removable(self, file: StoredFile) -> None:
        """Raise `ConfigurationError` for a file that a commit cannot remove."""

    @abstractmethod
    def commit_merged(
        self, files: EpochFiles, record: TableRecord, replaced: Collection[StoredFile], *, everything: bool
    ) -> LoadedTable:
        """Commit like `commit`, the files in place of the replaced ones, or of all. Says that it is a merge."""

    @abstractmethod
    def merged(self, record: TableRecord, directory: str) -> Collection[str] | None:
        """Return the names of the files in a directory that the record's commit added, if it is a merge.

        `None` if the table no longer has that commit, or if it is another one, such as a revocation.
        """
