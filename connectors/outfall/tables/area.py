"""The location of data files: one directory of a filesystem, with a directory per BEGIN of each step.

```
<root>/outfall/<incarnation>/g<generation>-<token>/part-<epoch>-<task>-<number>-<incarnation>-g<generation>-a<attempt>…
```

The directory therefore identifies the files of a failed driver, and the name those of a failed attempt, without a query
for the files of the table. No path contains the value of a row.

Of many tables in one epoch, each has directories of its own, with `mark_of` the table behind the token: tables may
share a root, and clean-up by one must not find the files of another one.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs

from outfall.filesystems import make_durably, sync_directory

_OURS = "outfall"
_BEGUN = re.compile(r"g(\d+)-[0-9a-f]*(?:-([0-9a-f]{16}))?")


def mark_of(name: str, table: str) -> str:
    """Return what distinguishes the directories of one of many tables: by its name in rows, and its own id.

    Either may come again: a name by a table that is created again, an id by a table that a catalog has twice.
    """
    return hashlib.sha256(f"{table}/{name}".encode()).hexdigest()[:16]


def directory_of(incarnation: str, generation: int, token: str, mark: str = "") -> str:
    """Return the directory of one BEGIN, relative to the root; with `mark`, that of one of many tables."""
    return f"{_OURS}/{incarnation}/g{generation}-{token}" + (f"-{mark}" if mark else "")


@dataclass(frozen=True)
class DataArea:
    """The root of a table's data files. Picklable; each process opens the filesystem.

    Errors are those of the filesystem: an OSError, as raised by pyarrow.
    """

    root: str
    """The root in the form of the table format: the prefix of a file's path in its metadata."""
    open: Callable[[], tuple[pafs.FileSystem, str]]
    """Opens the filesystem; returns it with the root's path in it. Picklable."""

    @cached_property
    def _opened(self) -> tuple[pafs.FileSystem, str]:
        return self.open()

    def __getstate__(self) -> dict[str, Any]:
        return {"root": self.root, "open": self.open}

    def path(self, directory: str, name: str) -> str:
        """Return a file's path in the form of the table format."""
        return f"{self.root}/{directory}/{name}"

    @property
    def is_disk(self) -> bool:
        """Whether it is on a filesystem of this host."""
        return isinstance(self._opened[0], pafs.LocalFileSystem)

    def create(self, directory: str, name: str) -> NewFile:
        """Create a file, which must not exist: its name belongs to one attempt."""
        filesystem, root = self._opened
        if self.is_disk:
            if not os.path.isdir(f"{root}/{directory}"):
                make_durably(f"{root}/{directory}")
            return NewFile(open(f"{root}/{directory}/{name}", "xb"), disk=True)
        return NewFile(filesystem.open_output_stream(f"{root}/{directory}/{name}", compression=None), disk=False)

    def sync(self, directory: str) -> None:
        """Make the names of a directory's files durable, on a disk; elsewhere they already are.

        This includes the directories above it: another task may have created them and died before it synced them.
        """
        if self.is_disk:
            root = self._opened[1]
            level = f"{root}/{directory}"
            while len(level) >= len(root):
                sync_directory(level)
                level = os.path.dirname(level)
            sync_directory(level)

    def damaged(self, directory: str, sizes: Mapping[str, int]) -> dict[str, int | None]:
        """Return the files that do not have these bytes, with those that they have; `None` if there is no file."""
        filesystem, root = self._opened
        found = filesystem.get_file_info([f"{root}/{directory}/{name}" for name in sizes])
        actual = (info.size if info.type == pafs.FileType.File else None for info in found)
        return {name: size for name, size in zip(sizes, actual, strict=True) if size != sizes[name]}

    def names(self, directory: str) -> list[str]:
        """List the files of one BEGIN's directory; empty if the directory does not exist."""
        filesystem, root = self._opened
        found = filesystem.get_file_info(pafs.FileSelector(f"{root}/{directory}", allow_not_found=True))
        return [info.base_name for info in found if info.type == pafs.FileType.File]

    def begun(self, incarnation: str, mark: str = "") -> Iterator[tuple[int, str]]:
        """Yield generation and directory of each BEGIN of a step that has files here; with `mark`, of that table."""
        filesystem, root = self._opened
        for info in filesystem.get_file_info(pafs.FileSelector(f"{root}/{_OURS}/{incarnation}", allow_not_found=True)):
            match = _BEGUN.fullmatch(info.base_name)
            if match is not None and (match[2] or "") == mark:
                yield int(match[1]), f"{_OURS}/{incarnation}/{info.base_name}"

    def delete(self, directory: str, names: Collection[str]) -> None:
        """Delete files that exist; on a disk also the directory once it is empty."""
        filesystem, root = self._opened
        for name in names:
            with suppress(FileNotFoundError):
                filesystem.delete_file(f"{root}/{directory}/{name}")
        if self.is_disk:
            with suppress(OSError):
                os.rmdir(f"{root}/{directory}")


class NewFile:
    """A file that is being written. It is incomplete until `finish`."""

    def __init__(self, stream: Any, *, disk: bool) -> None:
        self._stream = stream
        self._disk = disk
        self.size = 0
        """Bytes written."""

    def write(self, data: pa.Buffer) -> None:
        """Append bytes."""
        if data.size:
            self._stream.write(data)
            self.size += data.size

    def finish(self) -> None:
        """Make the bytes durable, and close the file."""
        if self._disk:
            self._stream.flush()
            os.fsync(self._stream.fileno())
        self._stream.close()

    def abandon(self) -> None:
        """Close a file after a failure."""
        with suppress(Exception):
            self._stream.close()
