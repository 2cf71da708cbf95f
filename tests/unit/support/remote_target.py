"""Remote filesystems without a network, and what lies in them as their own means tell it."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import fsspec
from fsspec.implementations.arrow import ArrowFSWrapper, HadoopFileSystem
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.registry import _registry
from pyarrow.fs import LocalFileSystem

from outfall.file import FileSink
from outfall.file.whole.sink import RemoteWholeFiles


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


class _HdfsOnDisk(HadoopFileSystem):  # type: ignore[misc] # fsspec has no types
    """What fsspec does to HDFS, over a disk: both are pyarrow filesystems behind the same wrapper."""

    cachable = False

    def __init__(self, *_: Any, **options: Any) -> None:
        ArrowFSWrapper.__init__(self, LocalFileSystem(), use_listings_cache=False)


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
def hdfs_on_disk() -> Iterator[None]:
    """Let `hdfs://` mean a disk."""
    fsspec.register_implementation("hdfs", _HdfsOnDisk, clobber=True)
    try:
        yield
    finally:
        del _registry["hdfs"]


def remote(place: Place, **options: Any) -> FileSink:
    return FileSink(place.url, **options)


def worker(sink: FileSink) -> RemoteWholeFiles:
    assert isinstance(sink.delegate, RemoteWholeFiles)
    return sink.delegate
