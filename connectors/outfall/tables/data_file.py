"""What a task hands over, and what an epoch commits: data files that are durable and that no reader sees yet."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field

from outfall.capabilities import CommittableMessage
from outfall.errors import ResponsesError

_PROCESS = secrets.token_hex(8)
"""Tells whether an epoch was recorded by this very process."""

_FRESH = 3600.0
"""Seconds for which the files of an epoch that this process has recorded are taken to be there."""


class Layout(BaseModel):
    """What makes a data file fit into a table. Compared before each try to commit, since no catalogue does."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    table: str
    """The table's own id: another one means that it was dropped and made anew."""
    partitioning: str
    """The partition spec; equal only where it is the same."""
    columns: Mapping[str, str]
    """Each column of the files by what identifies it in the table (field id, or name), with what must not change."""

    def misfit(self, current: Layout) -> str | None:
        """Say why files of this layout do not belong into the table as it is now; `None` where they do."""
        if self.table != current.table:
            return "the table was dropped and made anew"
        if self.partitioning != current.partitioning:
            return f"its partitioning has changed from {self.partitioning} to {current.partitioning}"
        changed = [name for name, kind in self.columns.items() if current.columns.get(name) != kind]
        return f"its columns have changed: {', '.join(changed)}" if changed else None


class DataFile(BaseModel):
    """One Parquet file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    """Below the epoch's directory."""
    size: int = Field(ge=1)
    """Bytes."""
    rows: int = Field(ge=1)
    partition: tuple[str | None, ...] = ()
    """The value of each partition field, as text that the format makes and reads."""
    statistics: Mapping[str, Any] = {}
    """What the format wants to know of the file beside that, as JSON."""


class TaskFiles(BaseModel):
    """What one attempt has written."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    directory: str
    """Where the files lie: of one BEGIN alone, below the root of the table's data."""
    root: str
    """That root, as the format calls it."""
    layout: Layout
    files: tuple[DataFile, ...]
    published: int | None
    """The newest epoch of the step that was committed to the table before this one began; the table must say so."""

    @property
    def rows(self) -> int:
        """How many rows the files hold."""
        return sum(file.rows for file in self.files)

    @property
    def names(self) -> frozenset[str]:
        """The files' names, which differ in the whole directory."""
        return frozenset(file.name for file in self.files)

    def __str__(self) -> str:
        return f"{len(self.files)} files in {self.directory} ({self.rows} rows)"

    __repr__ = __str__  # bounds are values of rows, and those belong into no text


class EpochFiles(TaskFiles):
    """All files of an epoch: one committable, since readers are to see all of them at once or none (FLIP-372)."""

    recorded_at: float = Field(default_factory=time.time)
    """Seconds since 1970."""
    recorded_by: str = _PROCESS

    @classmethod
    def gather(
        cls, results: Sequence[CommittableMessage[TaskFiles]], *, overwrite: bool
    ) -> Sequence[CommittableMessage[EpochFiles]]:
        """Make one committable of what the tasks wrote; none where they wrote nothing, and nothing is to go for it.

        Args:
            results: of each task.
            overwrite: whether the first epoch removes what the table held before, be it empty.

        Raises:
            ResponsesError: tasks wrote by different descriptions of the table.
        """
        written = [result.value for result in results]
        removes = overwrite and any(each.published is None for each in written)
        if not (removes or any(each.files for each in written)):
            return ()
        first, *_ = written
        if len({(each.root, each.directory, each.layout.model_dump_json()) for each in written}) > 1:
            raise ResponsesError(
                "the tasks of this epoch wrote into different directories, or by different columns",
                why="they belong to different drivers",
                do="let the epoch be tried again",
            )
        files = tuple(file for each in written for file in each.files)
        whole = cls(**dict(first) | {"files": files})
        return [CommittableMessage(whole, results[0].epoch, results[0].worker_index)]

    def is_fresh(self) -> bool:
        """Whether the files need not be looked at before they are committed.

        Other tools remove files that no snapshot names, once these are old. Of what another process has recorded nobody
        knows how long it has waited.
        """
        return self.recorded_by == _PROCESS and 0 <= time.time() - self.recorded_at < _FRESH

    def without_files(self) -> Self:
        """Return it as what is committed to keep anybody from committing the files."""
        return self.model_copy(update={"files": ()})
