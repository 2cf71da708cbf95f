"""The result of a task and the committable of an epoch: durable data files that no reader sees yet."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, SerializerFunctionWrapHandler, model_serializer

from outfall.capabilities import CommittableMessage
from outfall.errors import ConfigurationError, ResponsesError

_PROCESS = secrets.token_hex(8)
"""Identifies this process, to detect epochs that another process recorded."""

_FRESH = 3600.0
"""Seconds for which the files of an epoch that this process has recorded are assumed to exist."""


class Layout(BaseModel):
    """The properties that make data files fit a table. Compared before each commit attempt, because no catalog does."""

    model_config = ConfigDict(frozen=True)

    table: str
    """The table's own id: another id means that the table was dropped and recreated."""
    partitioning: str
    """The partition spec; equal only if the partitioning is the same."""
    columns: Mapping[str, str]
    """The columns of the files by their identity in the table (field id or name), with their fixed properties."""

    def mismatch(self, current: Layout) -> str | None:
        """Return why files of this layout do not fit the current table; `None` if they do."""
        if self.table != current.table:
            return "the table was dropped and recreated"
        if self.partitioning != current.partitioning:
            return f"its partitioning has changed from {self.partitioning} to {current.partitioning}"
        changed = [name for name, kind in self.columns.items() if current.columns.get(name) != kind]
        return f"its columns have changed: {', '.join(changed)}" if changed else None


class DataFile(BaseModel):
    """One Parquet file."""

    model_config = ConfigDict(frozen=True)

    name: str
    """Relative to the directory of the epoch."""
    size: int = Field(ge=1)
    """Bytes."""
    rows: int = Field(ge=1)
    partition: tuple[str | None, ...] = ()
    """The value of each partition field, as a string that the format writes and reads."""
    statistics: Mapping[str, Any] = {}
    """Further metadata of the file for the format, as JSON."""


class TaskFiles(BaseModel):
    """The files of one attempt."""

    model_config = ConfigDict(frozen=True)

    directory: str
    """The directory of the files: of one BEGIN, relative to the root of the table's data."""
    root: str
    """That root, in the form of the table format."""
    layout: Layout
    files: tuple[DataFile, ...]
    published: int | None
    """The newest epoch of the step that was in the table when this one began; the table's record must have it."""
    table: str | None = None
    """The name that rows have for the table, if a column names the tables; `None` for the only one."""

    @model_serializer(mode="wrap")
    def _as_first_written(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out the name of the only table: the first release rejected fields that it did not know."""
        found: dict[str, Any] = write(self)
        return {name: value for name, value in found.items() if name != "table" or value is not None}

    @property
    def rows(self) -> int:
        """Number of rows in the files."""
        return sum(file.rows for file in self.files)

    @property
    def names(self) -> frozenset[str]:
        """The names of the files, unique in the directory."""
        return frozenset(file.name for file in self.files)

    @property
    def sizes(self) -> dict[str, int]:
        """The bytes of each file, by its name."""
        return {file.name: file.size for file in self.files}

    def __str__(self) -> str:
        of = "" if self.table is None else f" of {self.table}"
        return f"{len(self.files)} files{of} in {self.directory} ({self.rows} rows)"

    __repr__ = __str__  # bounds are values of rows and must not appear in texts


class EpochFiles(TaskFiles):
    """All files of an epoch for a table: one committable, as readers must see all of them or none (FLIP-372)."""

    recorded_at: float = Field(default_factory=time.time)
    """Seconds since 1970."""
    recorded_by: str = _PROCESS

    @classmethod
    def gather(
        cls, results: Sequence[CommittableMessage[TaskFiles]], *, overwrite: bool
    ) -> Sequence[CommittableMessage[EpochFiles]]:
        """Create one committable for each table from the results of the tasks.

        None if there are neither files nor rows to remove. With `overwrite`, the first epoch removes the previous rows
        of the table, even if it is empty. Raises `ResponsesError` if tasks used different descriptions of a table, and
        `ConfigurationError` if rows name one table in two ways.
        """
        tables: dict[str | None, list[CommittableMessage[TaskFiles]]] = {}
        for result in results:
            tables.setdefault(result.value.table, []).append(result)
        _check_names([of_one[0].value for of_one in tables.values()])
        gathered = (
            cls._of_table(tables[name], overwrite=overwrite) for name in sorted(tables, key=lambda name: name or "")
        )
        return [message for message in gathered if message is not None]

    @classmethod
    def _of_table(
        cls, results: Sequence[CommittableMessage[TaskFiles]], *, overwrite: bool
    ) -> CommittableMessage[EpochFiles] | None:
        written = [result.value for result in results]
        removes = overwrite and any(each.published is None for each in written)
        if not (removes or any(each.files for each in written)):
            return None
        first, *_ = written
        if len({(each.root, each.directory, each.layout.model_dump_json()) for each in written}) > 1:
            which = "" if first.table is None else f" of the table {first.table!r}"
            raise ResponsesError(
                f"the tasks of this epoch wrote to different directories{which} or with different columns",
                why="they belong to different drivers" + ("" if first.table is None else ", or the table has changed"),
                do="retry the epoch",
            )
        files = tuple(file for each in written for file in each.files)
        whole = cls(**dict(first) | {"files": files})
        return CommittableMessage(whole, results[0].epoch, results[0].worker_index)

    def is_fresh(self) -> bool:
        """Whether the files need no check before they are committed.

        Other tools remove old files that no snapshot refers to. The age of an epoch recorded by another process is
        unknown.
        """
        return self.recorded_by == _PROCESS and 0 <= time.time() - self.recorded_at < _FRESH

    def without_files(self) -> Self:
        """Return it without files, for a commit that prevents a later commit of the files."""
        return self.model_copy(update={"files": ()})


def _check_names(tables: Sequence[TaskFiles]) -> None:
    """Reject two names of one table: each would have a commit of its own, and the second one would be left out."""
    names: dict[str, str | None] = {}
    for each in tables:
        other = names.setdefault(each.layout.table, each.table)
        if other != each.table:
            raise ConfigurationError(
                f"rows name one table in two ways, {other!r} and {each.table!r}",
                why="an epoch has one commit for each name",
                do="give all rows of a table the same name, for example in lower case",
            )
