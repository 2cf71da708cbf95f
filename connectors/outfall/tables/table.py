"""The port of a table format: implemented by Iceberg and Delta, and by a model in memory in the tests."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from outfall.tables.area import DataArea
from outfall.tables.data_file import DataFile, EpochFiles, Layout
from outfall.tables.record import TableRecord


class HeadMovedError(Exception):
    """Another writer has committed since the table was loaded, so this commit changed nothing."""


class UnclearCommitError(Exception):
    """The outcome of a commit is unknown; it may also succeed until the head moves. Contains the reason."""


class FileLayout(ABC):
    """The required form of a table's data files. Created by the driver from the loaded table, and pickled for tasks."""

    layout: Layout
    """Compared when the files are committed."""
    area: DataArea
    """The location of data files."""
    codec: str
    """Parquet's compression, by pyarrow's name."""
    level: int | None = None
    """Its level; `None` for the level of Spark's writer."""
    target_size: int
    """Bytes after which a file is closed and the next one begins, unless the sink's options override it."""

    @abstractmethod
    def file_schema(self, rows: pa.Schema) -> pa.Schema:
        """Return the columns of a file for rows with these columns, in the table's order, types and nullability.

        Rows are cast to it column by column, matched by the name from `column_of`. Fields have the metadata that
        readers find columns by (Parquet field ids). Raises `ConfigurationError` with each column that does not fit and
        the remedy: a column that the table lacks, a missing column that the table requires or is partitioned by, or a
        type that would change values.
        """

    def used(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return rows as they are cast, without values that nothing uses."""
        return batch

    @abstractmethod
    def partition(self, batch: pa.RecordBatch) -> Sequence[pa.Array]:
        """Return the value of each partition field for each row of a batch that is already cast.

        None for an unpartitioned table. The types of the values support Arrow's dictionary encoding. Raises
        `ValueRefusedError` with column and row if a value has no partition.
        """

    @abstractmethod
    def partition_text(self, values: Sequence[Any]) -> tuple[str | None, ...]:
        """Return a partition's values as strings that `LoadedTable.commit` reads.

        They come as Arrow gives them to Python.
        """

    @abstractmethod
    def stored(self, schema: pa.Schema) -> pa.Schema:
        """Return the columns of `file_schema` that are stored in the file: Delta omits partition columns."""

    @abstractmethod
    def statistics(self, written: pq.FileMetaData, schema: pa.Schema) -> Mapping[str, Any]:
        """Return the metadata of a finished file for a commit, in addition to its size and rows.

        It holds counts and bounds, as JSON.
        """


class LoadedTable(ABC):
    """One loaded state of a table, on the driver. It does not show later changes; load the table again for those.

    Every method that accesses the catalog or the store raises `TransientError` after a transient error (unreachable,
    overloaded, timed out) and `TargetError` after a permanent one (no permission, no such catalog, a damaged table).
    """

    where: str
    """The table, for texts; without credentials."""

    @property
    @abstractmethod
    def columns(self) -> pa.Schema:
        """The columns of the table."""

    @property
    @abstractmethod
    def files(self) -> FileLayout:
        """The current layout of its data files."""

    @abstractmethod
    def with_columns(self, rows: pa.Schema) -> FileLayout:
        """Return the layout of data files if the missing columns were added. Without changes.

        Raises `ConfigurationError` if a column cannot be added, for its type or because another name differs only in
        case.
        """

    @abstractmethod
    def add_columns(self, rows: pa.Schema) -> None:
        """Add the columns that the table lacks, as optional ones. Idempotent, also with concurrent drivers."""

    @abstractmethod
    def record(self, incarnation: str) -> TableRecord | None:
        """Return the table's record of a step; `None` if it has none."""

    @abstractmethod
    def records(self, step: str) -> Iterable[TableRecord]:
        """Yield the table's records of a step, of any incarnation: at least the last one that committed.

        Used on the first run only. Delta finds records by name only and cannot list them.
        """

    @abstractmethod
    def left_out(self, record: TableRecord) -> str | None:
        """Return why the record's commit is no longer part of the table (rolled back, restored); `None` if it is.

        If this can no longer be determined, the reason says so: the table is then rejected.
        """

    def may_lack_files(self, record: TableRecord | None) -> bool:
        """Whether the table shows that files may have been removed that no snapshot refers to, even recent ones.

        `record` is that of the step's last commit. By default the table shows nothing.
        """
        del record
        return False

    @abstractmethod
    def has_rows(self) -> bool:
        """Whether readers see any row."""

    @abstractmethod
    def never_had_rows(self) -> bool:
        """Whether no writer has ever added rows, by the table's whole history; false if that is no longer known."""

    @abstractmethod
    def commit(
        self, files: EpochFiles, record: TableRecord, *, replace: Collection[tuple[str | None, ...]] | None = ()
    ) -> LoadedTable:
        """Add the files and write the record, in one commit that succeeds only if the head is as it was loaded.

        Without files it is a commit without rows, which moves the head. `head` and `order` of the record are filled in.
        The commit removes the rows of the partitions in `replace`, as the strings in `DataFile.partition`; `None` means
        all rows of the table. Returns the table after the commit. Raises `HeadMovedError` or `UnclearCommitError`.
        """

    @abstractmethod
    def forget(self, incarnation: str) -> None:
        """Remove the table's record of a step, if any. It needs no particular head."""

    @abstractmethod
    def named(self, candidates: Collection[str]) -> Collection[str]:
        """Return those of the files, with paths from `DataArea.path`, that any snapshot or version still refers to.

        This includes files that a reader of an older snapshot finds, as long as that snapshot can be read.
        """


def partitions_of(files: Sequence[DataFile]) -> frozenset[tuple[str | None, ...]]:
    """Return the partitions that files belong to."""
    return frozenset(file.partition for file in files)
