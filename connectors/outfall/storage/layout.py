"""What readers of a directory rely on: everything that decides how all of its files are read together.

One reader reads all files of a directory, in one format, with one set of options, and takes columns from the files and
from their paths. A query or a job that goes on in another layout would leave rows that no reader finds, or that readers
find in the wrong columns. The layout is stored in the directory, once for all queries that write there. The compression
may change.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol, Self

import pyarrow as pa
from pydantic import BaseModel, ConfigDict, ValidationError

from outfall.capabilities import TargetContext
from outfall.errors import ConfigurationError, TargetNotEmptyError
from outfall.storage.columns import Columns, ColumnsChangedError, columns_of, united
from outfall.storage.names import SIDECAR
from outfall.storage.options import StorageOptions
from outfall.values import CASE_SENSITIVE

LAYOUT = f"{SIDECAR}/directory.layout"
"""The path of the layout below the root."""


class DirectoryLayout(BaseModel):
    """The layout of the files in a directory."""

    model_config = ConfigDict(frozen=True)

    format: str
    levels: tuple[str | None, ...]
    """The names of the directory levels: columns that readers take from the path. `None` for a level without a name."""
    pattern: str | None = None
    """The pattern of directories of times with names. `None` if there is none, and in layouts before this field."""
    reading: dict[str, str] | None = None
    """The options of a reader, see `FormatOptions.reading`. `None` in layouts before this field."""
    columns: Columns | None = None
    """The columns that files have had, without those in paths. `None` if they are not known."""

    @classmethod
    def of(cls, options: StorageOptions, rows: pa.Schema | None) -> Self:
        """Return the layout that options and the columns of the rows give, as far as these are known."""
        stored = None if rows is None or options.encoder.addressing == "none" else options.stored_in_files(rows)
        return cls(
            format=options.format,
            levels=tuple(level.name for level in options.directory_levels()),
            pattern=options.directory_pattern if any(level.name for level in options.directory_levels()) else None,
            reading=options.reading(),
            columns=None if stored is None else columns_of(stored),
        )

    @classmethod
    def parse(cls, data: bytes | None) -> Self | None:
        """Parse the stored form. `None` if a newer release wrote it: it only helps the user."""
        try:
            return None if data is None else cls.model_validate_json(data)
        except ValidationError:
            return None


class StoredLayout(BaseModel):
    """The layout of a directory, and the one that begins with an epoch that may fail."""

    model_config = ConfigDict(frozen=True)

    layout: DirectoryLayout | None = None
    next: DirectoryLayout | None = None
    incarnation: str = ""
    """The step that begins the next one."""
    epoch: int = -1
    """The epoch with which it begins."""

    def begun(self, context: TargetContext[Any]) -> DirectoryLayout | None:
        """Return the layout of the files that may be there: the next one does not count if its epoch has failed."""
        last = -1 if context.completed is None else context.completed
        if self.next is None or (self.incarnation == context.incarnation and self.epoch > last):
            return self.layout
        return self.next


class LayoutPlace(Protocol):
    """Where the layout of a directory is stored."""

    @property
    def root(self) -> str:
        """The directory, for errors."""

    def read_layout(self) -> bytes | None:
        """Return what `write_layout` has written; `None` if there is nothing."""

    def write_layout(self, data: bytes) -> None:
        """Write the layout durably."""

    def remove_layout(self) -> None:
        """Remove the layout."""

    def earlier_layout(self, incarnation: str) -> DirectoryLayout | None:
        """Return the layout that an earlier release stored for a step."""

    def has_files(self) -> bool:
        """Return whether readers find a file."""


@dataclass(frozen=True)
class LayoutChange:
    """A layout to be stored once the epoch has begun."""

    before: DirectoryLayout | None
    after: DirectoryLayout

    def write(self, place: LayoutPlace, context: TargetContext[Any]) -> None:
        """Store it. Called after BEGIN, and before the first row is written."""
        if context.epoch is None:
            stored = StoredLayout(layout=self.after)
        else:
            stored = StoredLayout(
                layout=self.before, next=self.after, incarnation=context.incarnation, epoch=context.epoch
            )
        place.write_layout(stored.model_dump_json().encode())


def check_layout(
    place: LayoutPlace, options: StorageOptions, rows: pa.Schema | None, context: TargetContext[Any], *, replaces: bool
) -> LayoutChange | None:
    """Reject rows and options with which readers of the directory could not read the old and the new files together.

    `replaces` says whether the first epoch deletes the files that are there. Returns the change of the layout, `None`
    if it stays as it is. `ConfigurationError` names the option or the column, before and now.
    """
    found = place.read_layout()
    stored = None if found is None else _parsed(found)
    if context.completed is None and replaces:
        was = None
    elif stored is not None:
        was = stored.begun(context)
    else:
        was = place.earlier_layout(context.incarnation) if context.incarnation else None
    now = DirectoryLayout.of(options, rows)
    try:
        after = now if was is None else _followed(was, now, options, rows)
    except _LayoutChangedError as error:
        if place.has_files():
            _refuse(place.root, error, context)
        after = now
    if stored is not None and after == (stored.next or stored.layout):
        return None
    return LayoutChange(was, after)


def withdraw_layout(place: LayoutPlace, incarnation: str) -> None:
    """Restore the layout before a step that is withdrawn, and has published nothing."""
    found = place.read_layout()
    stored = None if found is None else _parsed(found)
    if stored is None or stored.next is None or stored.incarnation != incarnation:
        return
    if stored.layout is None:
        place.remove_layout()
    else:
        place.write_layout(StoredLayout(layout=stored.layout).model_dump_json().encode())


def _parsed(data: bytes) -> StoredLayout:
    try:
        return StoredLayout.model_validate_json(data)
    except ValidationError:
        return StoredLayout()  # of a newer release


class _LayoutChangedError(Exception):
    def __init__(self, what: str, *, why: str, instead: str) -> None:
        super().__init__(what)
        self.why = why
        self.instead = instead


def _followed(
    was: DirectoryLayout, now: DirectoryLayout, options: StorageOptions, rows: pa.Schema | None
) -> DirectoryLayout:
    """Return the layout of a directory after files of another one were added. Raises `_LayoutChangedError`."""
    for option, before, after in (
        ("format", was.format, now.format),
        ("partition_by or directory_pattern", _levels_text(was.levels), _levels_text(now.levels)),
        ("directory_pattern", was.pattern or now.pattern, now.pattern),
        *_read_differently(was.reading, now.reading or {}),
    ):
        if before != after:
            raise _LayoutChangedError(
                f"{option} has changed from {before!r} to {after!r}",
                why="a reader reads all files of a directory in one format, with the same options and directory levels",
                instead="set the former value again",
            )
    if was.columns is None or now.columns is None:
        return now.model_copy(update={"columns": now.columns or was.columns})
    encoder = options.encoder
    try:
        columns = united(
            was.columns,
            now.columns,
            encoder.addressing,
            as_text=encoder.as_text,
            case_sensitive=rows is not None and CASE_SENSITIVE in (rows.metadata or {}),
        )
    except ColumnsChangedError as error:
        raise _LayoutChangedError(
            str(error),
            why=f"readers of {now.format} take values by their position, from all files alike"
            if encoder.addressing == "by position"
            else "no reader of the directory returns the values of both, it fails or changes some",
            instead=error.instead,
        ) from error
    return now.model_copy(update={"columns": columns})


def _read_differently(was: dict[str, str] | None, now: dict[str, str]) -> list[tuple[str, str, str]]:
    if was is None:
        return []
    default = "the default"
    return [(name, was.get(name, default), now.get(name, default)) for name in sorted(was.keys() | now.keys())]


def _refuse(where: str, error: _LayoutChangedError, context: TargetContext[Any]) -> NoReturn:
    raise ConfigurationError(
        f"{error}, and {where} holds files with the former one",
        step=context.step_id,
        why=error.why,
        do=f"{error.instead}; or write to another path, a stream with a new checkpoint",
    ) from None


def layout_path(incarnation: str) -> str:
    """Return the path below the root at which earlier releases stored the layout of a step."""
    return f"{SIDECAR}/{incarnation}.layout"


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
