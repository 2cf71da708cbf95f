"""A directory on a disk shared by driver and executors. Files are staged in it and published by a rename."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import PurePath
from typing import Any

from outfall.errors import TargetLostError
from outfall.file.stores.locks import Patience, locked, peek, read_line, write_line
from outfall.file.stores.spark_tree import adopt_local, local_tree, remove_local_tree
from outfall.file.stores.store import STAGING, FileRecord, FileStore, StagedFile
from outfall.filesystems import sync_directory
from outfall.storage.layout import LAYOUT
from outfall.storage.names import SIDECAR, SPARK_LOG, is_hidden
from outfall.trace_points import reached

_PUBLISH_LOCK = f"{SIDECAR}/publish.lock"
"""Held in shared mode while whole files are published, and exclusively while the directory is overwritten."""

_OPEN_LOCK = f"{SIDECAR}/open.lock"
"""Held by a step while it opens the directory for the first time."""


class LocalStore(FileStore):
    """A directory on one filesystem with locks and an atomic rename."""

    share = "mount the same directory under this path for the driver and all executors (NFS, a shared volume)"

    def __init__(self, path: str, patience: Patience) -> None:
        """Create a store for a directory, which may be missing. `patience` is the timeout of its locks."""
        self.root = path
        self.patience = patience

    def at(self, path: str) -> str:
        """Return the absolute path of a file."""
        return f"{self.root}/{path}"

    # --- files

    def size(self, path: str) -> int | None:
        try:
            return os.lstat(self.at(path)).st_size
        except FileNotFoundError:
            return None

    def remove(self, path: str) -> bool:
        try:
            os.unlink(self.at(path))
        except FileNotFoundError:
            return False
        return True

    def sync(self, directories: Iterable[str]) -> None:
        for directory in directories:
            sync_directory(self.at(directory))

    def names(self, directory: str) -> list[str]:
        try:
            return os.listdir(self.at(directory))
        except FileNotFoundError:
            return []

    def files(self) -> Iterator[str]:
        for directory, _, names in self.walk():
            yield from (os.path.relpath(f"{directory}/{name}", self.root) for name in names)

    def walk(self) -> Iterator[tuple[str, list[str], list[str]]]:
        """Like `os.walk` from the root down, without hidden files and directories."""
        for directory, directories, files in os.walk(self.root):
            directories[:] = [name for name in directories if not is_hidden(name)]
            yield directory, directories, [name for name in files if not is_hidden(name)]

    # --- writing

    def scratch(self, name: str) -> str:
        return self.at(f"{STAGING}/{name}")

    def stage(self, name: str, fd: int) -> None:
        reached("file: syncing")
        os.fsync(fd)
        reached("file: synced")

    def drop(self, name: str) -> None:
        with suppress(OSError):
            self.unstage(name)

    def for_spark(self, path: str) -> str:
        return f"file:{self.at(path)}"

    def tree(self, directory: str) -> list[tuple[str, int]]:
        return local_tree(self.at(directory))

    def adopt(self, path: str, to: str, size: int) -> None:
        reached("file: syncing")
        adopt_local(self.at(path), self.at(to), size)
        reached("file: synced")

    def remove_tree(self, directory: str) -> bool:
        return remove_local_tree(self.at(directory))

    def opened(self, path: str) -> AbstractContextManager[Any]:
        return open(self.at(path), "rb")

    # --- publishing

    @contextmanager
    def publishing(self) -> Iterator[None]:
        """Hold the lock of drivers that publish: no query can overwrite the directory meanwhile."""
        with locked(self.at(_PUBLISH_LOCK), self.patience, shared=True, holder=_last_publisher) as fd:
            write_line(fd, json.dumps({"host": socket.gethostname(), "pid": os.getpid()}))
            yield

    def nobody_publishing(self) -> AbstractContextManager[object]:
        """Wait for publishing drivers, and block others until they can check their records again."""
        return locked(self.at(_PUBLISH_LOCK), self.patience, holder=_last_publisher)

    def publish(self, file: StagedFile) -> None:
        if file.bucket:
            os.makedirs(self.at(file.bucket), exist_ok=True)
        os.rename(self.at(f"{STAGING}/{file.name}"), self.at(file.path))

    # --- possession

    def opening(self) -> AbstractContextManager[object]:
        """Hold the lock under which steps take possession of the directory."""
        return locked(self.at(_OPEN_LOCK), self.patience)

    def read_record(self, incarnation: str) -> FileRecord | None:
        path = self.record_path(incarnation)
        with suppress(TargetLostError):
            line = peek(path)
            return None if line is None else FileRecord.parse(line, path)
        # The record may be being written. Read it under its lock.
        with self.record_held(incarnation) as (found, _):
            return found

    @contextmanager
    def record_held(self, incarnation: str) -> Iterator[tuple[FileRecord, Callable[[FileRecord], None]]]:
        """Lock a step's record. Yield it, and a function that replaces it durably.

        Raises `TargetLostError` if the record is missing or cannot be read.
        """
        path = self.record_path(incarnation)
        with locked(path, self.patience, create=False) as fd:
            found = FileRecord.parse(read_line(fd), path)

            def replace(after: FileRecord) -> None:
                if after != found:
                    write_line(fd, after.line())
                    os.fsync(fd)

            yield found, replace

    def create_record(self, record: FileRecord) -> None:
        reached("file: creating record")
        self._write(f"{SIDECAR}/{record.incarnation}.json", lambda fd: write_line(fd, record.line()))
        self.sync([SIDECAR])
        reached("file: record created")

    def write_layout(self, data: bytes) -> None:
        self._write(LAYOUT, lambda fd: os.write(fd, data))
        self.sync([SIDECAR])

    def _write(self, path: str, write: Callable[[int], object]) -> None:
        """Write a file that readers see complete or not at all."""
        temporary = self.at(f"{SIDECAR}/.{os.path.basename(path)}.{os.getpid()}.tmp")
        try:
            fd = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o666)
            try:
                write(fd)
                os.fsync(fd)
            finally:
                os.close(fd)
            os.rename(temporary, self.at(path))
        except OSError:
            with suppress(OSError):
                os.unlink(temporary)
            raise

    def content(self, path: str) -> bytes | None:
        try:
            with open(self.at(path), "rb") as file:
                return file.read()
        except FileNotFoundError:
            return None

    # --- first contact

    def visible(self) -> Iterator[str]:
        try:
            with os.scandir(self.root) as entries:
                yield from (entry.name for entry in entries if not is_hidden(entry.name))
        except FileNotFoundError:
            return

    def others_around(self) -> Iterator[str]:
        below = (directory for directory, _, _ in self.walk() if directory != self.root)
        above = map(str, PurePath(os.path.realpath(self.root)).parents)
        for other in (*below, *above):
            # A directory that this user cannot read was not written by a query of this user.
            with suppress(PermissionError, NotADirectoryError):
                store = LocalStore(other, self.patience)
                yield from map(store.record_path, store.incarnations())

    def has_spark_log(self) -> bool:
        return os.path.lexists(self.at(SPARK_LOG))


def _last_publisher(fd: int) -> str:
    last = read_line(fd) or "none"
    return f"a query that publishes files or overwrites the directory holds it; the last publisher is {last}"
