"""Files of tables: how tasks reach them, how a disk keeps them, and what a commit that failed has written.

pyiceberg reaches files by a FileIO (its `py-io-impl`). Its two own kinds are known here; of any other nobody knows what
filesystem there is for the tasks' Parquet files.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

import pyarrow.fs as pafs
from pydantic import SecretStr
from pyiceberg.io import FileIO, InputFile, OutputFile, OutputStream, load_file_io
from pyiceberg.io.fsspec import FsspecFileIO
from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO

from outfall.errors import ConfigurationError
from outfall.filesystems import make_durably, sync_directory
from outfall.options import resolve_secret

DURABLE_IO = f"{__name__}.DurableFileIO"


def is_local(location: str) -> bool:
    """Whether a location is on a disk."""
    return location.startswith("/") or urlsplit(location).scheme == "file"


class DurableFileIO(PyArrowFileIO):
    """pyiceberg's FileIO of pyarrow, whose files on a disk are durable once they are closed.

    A catalogue's commit then never names metadata that a power loss can still take.
    """

    def new_output(self, location: str) -> PyArrowFile:
        scheme, _, path = self.parse_location(location, self.properties)
        return _DurableFile(path, location) if scheme == "file" else super().new_output(location)


class _DurableFile(PyArrowFile):
    def __init__(self, path: str, location: str) -> None:
        super().__init__(location, path, pafs.LocalFileSystem())
        self._where = path

    def create(self, overwrite: bool = False) -> OutputStream:
        make_durably(os.path.dirname(self._where))
        return _DurableStream(self._where, "wb" if overwrite else "xb")


class _DurableStream:
    """An `OutputStream` of pyiceberg."""

    def __init__(self, path: str, mode: str) -> None:
        self._path = path
        self._file = open(path, mode)  # noqa: SIM115 - closed by its user
        self.write, self.tell = self._file.write, self._file.tell

    def close(self) -> None:
        if not self._file.closed:
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            sync_directory(os.path.dirname(self._path))

    def __enter__(self) -> _DurableStream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class CommitFiles(FileIO):
    """The files of one commit: notes what is written, and deletes nothing of it.

    When a commit is refused, pyiceberg deletes its manifests at once. But a request that a proxy has sent twice is
    refused the second time, and what it wrote is part of the table.
    """

    def __init__(self, io: FileIO) -> None:
        super().__init__(io.properties)
        self._io = io
        self._written: list[str] = []

    def new_input(self, location: str) -> InputFile:
        return self._io.new_input(location)

    def new_output(self, location: str) -> OutputFile:
        self._written.append(location)
        return self._io.new_output(location)

    def delete(self, location: str | InputFile | OutputFile) -> None:
        """Delete what is of older commits; leave what is of this one, until it is known that it did not take place."""
        if location not in self._written:
            self._io.delete(location)

    def roll_back(self) -> None:
        """Delete what was written: the commit did not take place, and never will."""
        for location in self._written:
            self._io.delete(location)


@dataclass(frozen=True)
class StoreOfFiles:
    """Opens the filesystem of a table's data files in a task, which has no catalogue."""

    location: str
    properties: Mapping[str, str | SecretStr]
    """pyiceberg's properties of the FileIO, with those secrets unresolved that are named."""

    def __repr__(self) -> str:
        return f"StoreOfFiles({self.location!r})"

    def __call__(self) -> tuple[pafs.FileSystem, str]:
        """Return the filesystem, and the location's path in it.

        Raises:
            ConfigurationError: it is reached in a way that only pyiceberg knows.
        """
        known = {
            name: resolve_secret(value) if isinstance(value, SecretStr) else value
            for name, value in self.properties.items()
        }
        io = load_file_io(known, self.location)
        return filesystem_of(io, self.location)


def filesystem_of(io: FileIO, location: str) -> tuple[pafs.FileSystem, str]:
    """Return pyarrow's view of the filesystem that a FileIO reaches a location by, and the path in it.

    Raises:
        ConfigurationError: the FileIO is none of pyiceberg's own two.
    """
    if isinstance(io, PyArrowFileIO):
        scheme, host, path = io.parse_location(location, io.properties)
        return (pafs.LocalFileSystem() if scheme == "file" else io.fs_by_scheme(scheme, host)), path
    if isinstance(io, FsspecFileIO):
        if is_local(location):
            return pafs.LocalFileSystem(), urlsplit(location).path
        parts = urlsplit(location)
        filesystem = io.get_fs(parts.scheme, parts.hostname if parts.scheme in _WITH_ACCOUNT else None)
        return pafs.PyFileSystem(pafs.FSSpecHandler(filesystem)), filesystem._strip_protocol(location)
    raise ConfigurationError(
        f"files of the table are reached by {type(io).__module__}.{type(io).__name__} (py-io-impl)",
        why="tasks write Parquet files with pyarrow, and need a filesystem that it knows",
        do="leave py-io-impl out, or take pyiceberg.io.pyarrow.PyArrowFileIO or pyiceberg.io.fsspec.FsspecFileIO",
    )


_WITH_ACCOUNT = {"abfs", "abfss", "wasb", "wasbs"}
