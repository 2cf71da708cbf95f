"""What readers of a directory rely on: the format of its files and the columns in its paths.

One reader reads all files of a directory with one format, and takes the columns of its paths from all of them. A query
that continues with another format or other directories would leave rows that no reader finds. The
compression may change.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Self

from pydantic import BaseModel, ConfigDict, ValidationError

from outfall.errors import ConfigurationError, TargetNotEmptyError
from outfall.storage.names import SIDECAR
from outfall.storage.sink import StorageOptions


class DirectoryLayout(BaseModel):
    """The layout of one step's files, stored next to its record when it takes possession."""

    model_config = ConfigDict(frozen=True)

    format: str
    levels: tuple[str | None, ...]
    """The names of the directory levels: columns that readers take from the path. `None` for a level without a name."""

    @classmethod
    def of(cls, options: StorageOptions) -> Self:
        """Return the layout that options give."""
        return cls(format=options.format, levels=tuple(level.name for level in options.directory_levels()))

    @classmethod
    def parse(cls, data: bytes) -> Self | None:
        """Parse the stored form. `None` if a newer release wrote it: it only helps the user."""
        try:
            return cls.model_validate_json(data)
        except ValidationError:
            return None

    def data(self) -> bytes:
        """Return the stored form."""
        return self.model_dump_json().encode()


def layout_path(incarnation: str) -> str:
    """Return the path of a step's layout below the root."""
    return f"{SIDECAR}/{incarnation}.layout"


def check_layout(where: str, was: DirectoryLayout, options: StorageOptions, step_id: str) -> None:
    """Reject options with which a reader of the directory could not read the old and the new files together.

    `ConfigurationError` names the option, and its former value in the stored layout.
    """
    now = DirectoryLayout.of(options)
    if was == now:
        return
    if was.format != now.format:
        option, before, after = "format", was.format, now.format
    else:
        option, before, after = "partition_by or directory_pattern", _levels_text(was.levels), _levels_text(now.levels)
    raise ConfigurationError(
        f"{option} has changed from {before!r} to {after!r}, and {where} holds rows of this query with the former one",
        step=step_id,
        why="a reader reads all files of a directory in one format and with the same directory levels",
        do="set the former value again, or give the query another path and a new checkpoint",
    )


def check_partitions(where: str, options: StorageOptions, paths: Iterable[str], step_id: str) -> None:
    """Reject visible directories that are not partition directories of the sink, before an overwrite deletes them.

    `paths` are visible paths below the target: of files, or of directories with a `/` at their end.
    `TargetNotEmptyError` names the first such directory.
    """
    for directory in (path.rpartition("/")[0] for path in paths):
        if directory and not options.may_contain(directory):
            above, _, name = directory.rpartition("/")
            raise TargetNotEmptyError(
                f"{'/'.join(filter(None, (where.rstrip('/'), above)))} holds the directory {name!r}",
                step=step_id,
                why='on_existing="overwrite" deletes files and the partition directories of this sink, but no other'
                " directories",
                do="move the directory to another location, or set another path",
            )


def _levels_text(levels: tuple[str | None, ...]) -> str:
    return "/".join("…" if name is None else f"{name}=…" for name in levels)
