"""Remote filesystems without a network, and what lies in them as their own means tell it."""

from __future__ import annotations

import json
import shutil
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar
from unittest.mock import patch

from fsspec.implementations.memory import MemoryFileSystem

from outfall.file import FileSink
from outfall.file.whole.sink import RemoteWholeFiles
from outfall.hdfs import CLIENTS


class Place(ABC):
    """One directory of a filesystem."""

    url: str

    @abstractmethod
    def everything(self) -> dict[str, bytes]:
        """All files, by their paths below the directory."""

    @abstractmethod
    def put(self, path: str, data: bytes) -> None: ...

    @abstractmethod
    def remove(self, path: str) -> None: ...

    def visible(self) -> dict[str, bytes]:
        return {path: data for path, data in self.everything().items() if not path.startswith(("_", "."))}

    def hidden(self) -> list[str]:
        return sorted(path for path in self.everything() if path.startswith("_outfall/staging/"))

    def rows(self) -> list[Any]:
        found = self.visible()
        return [json.loads(line) for path in sorted(found) for line in found[path].splitlines()]

    def ids(self) -> list[int]:
        return [row["id"] for row in self.rows()]


class Memory(Place):
    """fsspec's own: a copy publishes, as in an object store."""

    def __init__(self, name: str) -> None:
        self.url = f"memory://{name}/out"
        self._path = f"/{name}/out/"

    def everything(self) -> dict[str, bytes]:
        store = MemoryFileSystem.store
        return {path.removeprefix(self._path): store[path].getvalue() for path in store if path.startswith(self._path)}

    def put(self, path: str, data: bytes) -> None:
        MemoryFileSystem().pipe_file(self._path + path, data)

    def remove(self, path: str) -> None:
        del MemoryFileSystem.store[self._path + path]


class _Status:
    """What the client tells of a file or directory."""

    permission, owner, group, modification_time, access_time = 0o644, "", "", 0, 0

    def __init__(self, path: Path) -> None:
        self.path, self.isdir = str(path), path.is_dir()
        self.length = 0 if self.isdir else path.stat().st_size


class _Reader:
    def __init__(self, path: Path) -> None:
        self._data = path.read_bytes()

    def read(self, length: int) -> bytes:
        return self._data

    def read_range(self, offset: int, length: int) -> bytes:
        return self._data[offset : offset + length]

    def file_length(self) -> int:
        return len(self._data)


class Writer:
    """A file is there, empty, before it is closed."""

    def __init__(self, path: Path) -> None:
        self._path, self._data = path, bytearray()
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")

    def write(self, data: bytes) -> int:
        self._data += data
        return len(data)

    def hsync(self) -> None: ...

    def close(self) -> None:
        self._path.write_bytes(self._data)


class _Native:
    """The native part of hdfs-native's client, over a disk. It answers as a namenode of HDFS 3.4.2 did."""

    def get_file_info(self, path: str) -> _Status:
        return _Status(_there(path))

    def list_status(self, path: str, recursive: bool) -> Iterator[_Status]:
        at = _there(path)
        return iter([_Status(found) for found in sorted(at.iterdir())] if at.is_dir() else [_Status(at)])

    def read(self, path: str) -> _Reader:
        return _Reader(_there(path))

    def create(self, path: str, options: Any) -> Writer:
        return Writer(Path(path))

    def mkdirs(self, path: str, permission: int, create_parent: bool) -> None:
        Path(path).mkdir(parents=create_parent, exist_ok=True)

    def delete(self, path: str, recursive: bool) -> bool:
        at = Path(path)
        if at.is_dir():
            shutil.rmtree(at) if recursive else at.rmdir()
        elif at.exists():
            at.unlink()
        else:
            return False
        return True

    def rename(self, source: str, to: str, overwrite: bool) -> None:
        at = _there(source)
        if not Path(to).parent.is_dir():
            raise FileNotFoundError(f"rename destination parent {to} not found.\n\tat org.apache.hadoop…")
        with _renaming:
            if Path(to).exists() and not overwrite:
                raise FileExistsError(f"rename destination {to} already exists\n\tat org.apache.hadoop…")
            at.replace(to)


_renaming = threading.Lock()


def _there(path: str) -> Path:
    if not Path(path).exists():
        raise FileNotFoundError(f"File does not exist: {path}\n\tat org.apache.hadoop…")
    return Path(path)


class _Client:
    configurations: ClassVar[list[dict[str, str]]] = []

    def __init__(self, url: str, config: dict[str, str]) -> None:
        self.configurations.append(config)
        self.inner = _Native()


class Hdfs(Place):
    """A rename publishes."""

    def __init__(self, path: Path) -> None:
        self.url = f"hdfs://namenode:8020{path}"
        self._path = path

    def everything(self) -> dict[str, bytes]:
        files = (file for file in self._path.rglob("*") if file.is_file())
        return {str(file.relative_to(self._path)): file.read_bytes() for file in files}

    def put(self, path: str, data: bytes) -> None:
        file = self._path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)

    def remove(self, path: str) -> None:
        (self._path / path).unlink()


@contextmanager
def hdfs_on_disk() -> Iterator[list[dict[str, str]]]:
    """Let `hdfs://` mean a disk. Yields the settings that clients are made with."""
    CLIENTS.clear()
    _Client.configurations.clear()
    with patch("hdfs_native.fsspec.Client", _Client):
        yield _Client.configurations
    CLIENTS.clear()


def remote(place: Place, **options: Any) -> FileSink:
    return FileSink(place.url, **options)


def worker(sink: FileSink) -> RemoteWholeFiles:
    assert isinstance(sink.delegate, RemoteWholeFiles)
    return sink.delegate
