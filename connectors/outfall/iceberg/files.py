"""Files of tables: access from tasks, durability on disks, and files of failed commits.

pyiceberg accesses files through a FileIO (its `py-io-impl`). This module supports its two built-in kinds. For others,
the filesystem for the tasks' Parquet files is unknown.
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
    """pyiceberg's FileIO for pyarrow, whose files on a disk are durable once they are closed.

    A catalog's commit then never refers to metadata that a power loss can still remove.
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
    """The files of one commit: records the files that are written, and deletes none of them.

    When a commit is rejected, pyiceberg deletes its manifests at once. However, if a proxy sends a request twice, the
    second one is rejected, and the files of the first are part of the table.
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
        """Delete files of older commits; keep files of this commit until it is certain that it failed."""
        if location not in self._written:
            self._io.delete(location)

    def roll_back(self) -> None:
        """Delete the written files: the commit failed, and can never succeed."""
        for location in self._written:
            self._io.delete(location)


@dataclass(frozen=True)
class StoreOfFiles:
    """Opens the filesystem of a table's data files in a task, which has no catalog."""

    location: str
    properties: Mapping[str, str | SecretStr]
    """pyiceberg's properties of the FileIO, with unresolved references to secrets."""

    def __repr__(self) -> str:
        return f"StoreOfFiles({self.location!r})"

    def __call__(self) -> tuple[pafs.FileSystem, str]:
        """Return the filesystem and the path in it. Raises `ConfigurationError` if only pyiceberg can access it."""
        known = {
            name: resolve_secret(value) if isinstance(value, SecretStr) else value
            for name, value in self.properties.items()
        }
        io = load_file_io(known, self.location)
        return filesystem_of(io, self.location)


def filesystem_of(io: FileIO, location: str) -> tuple[pafs.FileSystem, str]:
    """Return the pyarrow filesystem through which a FileIO accesses a location, and the path in it.

    Raises `ConfigurationError` if the FileIO is not one of pyiceberg's two.
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
        f"the table uses {type(io).__module__}.{type(io).__name__} for its files (py-io-impl)",
        why="tasks write Parquet files with pyarrow, and need a filesystem that it supports",
        do="omit py-io-impl, or set it to pyiceberg.io.pyarrow.PyArrowFileIO or pyiceberg.io.fsspec.FsspecFileIO",
    )


_WITH_ACCOUNT = {"abfs", "abfss", "wasb", "wasbs"}
