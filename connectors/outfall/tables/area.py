"""Where data files lie: one directory of a filesystem, and in it one for each BEGIN of each step.

```
<root>/outfall/<incarnation>/g<generation>-<token>/part-<epoch>-<task>-<number>-<incarnation>-g<generation>-a<attempt>…
```

So what a lost driver left is known by its directory, and what a lost attempt left by its name, without asking the table
which files it has. No value of a row is part of a path.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs

from outfall.filesystems import make_durably, sync_directory

_OURS = "outfall"
_BEGUN = re.compile(r"g(\d+)-([0-9a-f]*)")


def directory_of(incarnation: str, generation: int, token: str) -> str:
    """Return the directory of one BEGIN, below the root."""
    return f"{_OURS}/{incarnation}/g{generation}-{token}"


@dataclass(frozen=True)
class DataArea:
    """The root of a table's data files. Pickles; the filesystem is opened in each process.

    Errors are the filesystem's own: an OSError, as pyarrow raises it.
    """

    root: str
    """As the table format names files: what stands before a file's path in its metadata."""
    open: Callable[[], tuple[pafs.FileSystem, str]]
    """Opens the filesystem; returns it with the root's path in it. Picklable."""

    @cached_property
    def _opened(self) -> tuple[pafs.FileSystem, str]:
        return self.open()

    def __getstate__(self) -> dict[str, Any]:
        return {"root": self.root, "open": self.open}

    def path(self, directory: str, name: str) -> str:
        """Return a file's path as the table names it."""
        return f"{self.root}/{directory}/{name}"

    @property
    def _is_disk(self) -> bool:
        return isinstance(self._opened[0], pafs.LocalFileSystem)

    def create(self, directory: str, name: str) -> NewFile:
        """Begin a file, which must not exist: its name is of one attempt."""
        filesystem, root = self._opened
        if self._is_disk:
            if not os.path.isdir(f"{root}/{directory}"):
                make_durably(f"{root}/{directory}")
            return NewFile(open(f"{root}/{directory}/{name}", "xb"), disk=True)
        return NewFile(filesystem.open_output_stream(f"{root}/{directory}/{name}", compression=None), disk=False)

    def sync(self, directory: str) -> None:
        """Make the names of a directory's files durable, on a disk; elsewhere they are.

        Also those of the levels above it: another task may have made these, and died before it synced them.
        """
        if self._is_disk:
            root = self._opened[1]
            level = f"{root}/{directory}"
            while len(level) >= len(root):
                sync_directory(level)
                level = os.path.dirname(level)
            sync_directory(level)

    def missing(self, directory: str, names: Collection[str]) -> list[str]:
        """Return those of the files that are not there."""
        filesystem, root = self._opened
        wanted = sorted(names)
        found = filesystem.get_file_info([f"{root}/{directory}/{name}" for name in wanted])
        return [name for name, info in zip(wanted, found, strict=True) if info.type != pafs.FileType.File]

    def names(self, directory: str) -> list[str]:
        """List the files of one BEGIN's directory; none where there is no such directory."""
        filesystem, root = self._opened
        found = filesystem.get_file_info(pafs.FileSelector(f"{root}/{directory}", allow_not_found=True))
        return [info.base_name for info in found if info.type == pafs.FileType.File]

    def begun(self, incarnation: str) -> Iterator[tuple[int, str]]:
        """Yield generation and directory of each BEGIN of a step that has files here."""
        filesystem, root = self._opened
        for info in filesystem.get_file_info(pafs.FileSelector(f"{root}/{_OURS}/{incarnation}", allow_not_found=True)):
            match = _BEGUN.fullmatch(info.base_name)
            if match is not None:
                yield int(match[1]), f"{_OURS}/{incarnation}/{info.base_name}"

    def delete(self, directory: str, names: Collection[str]) -> None:
        """Delete files, as far as they are there; on a disk the directory too once it is empty."""
        filesystem, root = self._opened
        for name in names:
            with suppress(FileNotFoundError):
                filesystem.delete_file(f"{root}/{directory}/{name}")
        if self._is_disk:
            with suppress(OSError):
                os.rmdir(f"{root}/{directory}")


class NewFile:
    """A file that is being written. It counts for nothing before `finish`."""

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
        """Close what failed."""
        with suppress(Exception):
            self._stream.close()
