"""What the shared base asks of a table format: Iceberg and Delta implement it, and the tests have a model in memory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from outfall.tables.area import DataArea
from outfall.tables.data_file import DataFile, EpochFiles, Layout
from outfall.tables.marker import TableMarker


class HeadMovedError(Exception):
    """Somebody else has committed since the table was loaded, so that this commit changed nothing."""


class UnclearCommitError(Exception):
    """Nobody knows whether the commit took place, or will before the head moves. Holds the reason."""


class FileLayout(ABC):
    """What a table's data files must be like. The driver makes it of the loaded table; it travels to tasks, pickled."""

    layout: Layout
    """What is compared when the files are committed."""
    area: DataArea
    """Where data files lie."""
    codec: str
    """Parquet's compression, by pyarrow's name."""
    target_size: int
    """Bytes after which a file is closed and the next one begun, unless the sink's options say otherwise."""

    @abstractmethod
    def file_schema(self, rows: pa.Schema) -> pa.Schema:
        """Return the columns of a file for rows with these columns, in the table's order, types and nullability.

        Rows are cast to it column by column, found by the name that `column_of` gives. Fields carry what readers find
        columns by (Parquet field ids).

        Raises:
            ConfigurationError: naming each column that does not fit and what to do: one that the table does not have,
                one that the table requires or is partitioned by and the rows lack, one whose type would lose values.
        """

    @abstractmethod
    def partition(self, batch: pa.RecordBatch) -> Sequence[pa.Array]:
        """Return the value of each partition field for each row, for a batch that is cast already.

        None for a table that is not partitioned. Values are of types that Arrow can encode by a dictionary.

        Raises:
            ValueRefusedError: a value has no partition, naming column and row.
        """

    @abstractmethod
    def partition_text(self, values: Sequence[Any]) -> tuple[str | None, ...]:
        """Return a partition's values, as Arrow gives them to Python, as text that `LoadedTable.commit` reads."""

    @abstractmethod
    def stored(self, schema: pa.Schema) -> pa.Schema:
        """Return which of the columns of `file_schema` stand in the file: Delta leaves partition columns out."""

    @abstractmethod
    def statistics(self, written: pq.FileMetaData, schema: pa.Schema) -> Mapping[str, Any]:
        """Return what a commit needs of a finished file beside its size and rows: counts and bounds, as JSON."""


class LoadedTable(ABC):
    """A table as it was loaded once, on the driver. Nothing here sees later changes; a new one is loaded for those.

    Raises, in every method that asks the catalogue or the store:
        TransientError: it may pass: not reachable, overloaded, timed out.
        TargetError: it will not: no rights, no such catalogue, a damaged table.
    """

    where: str
    """The table, for texts; without credentials."""

    @property
    @abstractmethod
    def columns(self) -> pa.Schema:
        """Its columns."""

    @property
    @abstractmethod
    def files(self) -> FileLayout:
        """What its data files must be like now."""

    @abstractmethod
    def with_columns(self, rows: pa.Schema) -> FileLayout:
        """Return what data files would have to be like if the columns were added that the table lacks. Changes nothing.

        Raises:
            ConfigurationError: one cannot be added: its type, or another one of its name but for the case.
        """

    @abstractmethod
    def add_columns(self, rows: pa.Schema) -> None:
        """Add the columns that the table lacks, as optional ones. Idempotent, and with others that do so too."""

    @abstractmethod
    def marker(self, incarnation: str) -> TableMarker | None:
        """Return what the table says of a step; `None` where it says nothing."""

    @abstractmethod
    def markers(self, step: str) -> Iterable[TableMarker]:
        """Yield what the table says of a step, under whatever incarnation: at least the last one that committed.

        Used on first contact only. Delta answers for names alone, and cannot list them.
        """

    @abstractmethod
    def left_out(self, marker: TableMarker) -> str | None:
        """Say why the marker's commit is not part of the table as it is now (rolled back, restored); `None` if it is.

        Where that cannot be told any more the reason says so: it is refused, not guessed.
        """

    @abstractmethod
    def has_rows(self) -> bool:
        """Whether readers see any row."""

    @abstractmethod
    def commit(
        self, files: EpochFiles, marker: TableMarker, *, replace: Collection[tuple[str | None, ...]] | None = ()
    ) -> LoadedTable:
        """Add the files and write the marker, as one commit that takes place only if the head is as it was loaded.

        Also with no files at all: a commit without rows, which moves the head.

        Args:
            files: what to add.
            marker: what to write; `head` and `order` are filled in.
            replace: the partitions whose rows this commit removes, as the texts in `DataFile.partition`; `None` for
                all rows of the table.

        Returns:
            The table as the commit left it.

        Raises:
            HeadMovedError, UnclearCommitError: see there.
        """

    @abstractmethod
    def forget(self, incarnation: str) -> None:
        """Remove what the table says of a step, if anything. It needs no particular head."""

    @abstractmethod
    def named(self, candidates: Collection[str]) -> Collection[str]:
        """Return those of the files, paths as `DataArea.path` makes them, that any snapshot or version still names.

        Also those that a reader of an older snapshot finds, as far as it can be read.
        """


def partitions_of(files: Sequence[DataFile]) -> frozenset[tuple[str | None, ...]]:
    """Return the partitions that files belong to."""
    return frozenset(file.partition for file in files)
