"""Whole files on a disk: staged beside the target, published by a rename."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from outfall.capabilities import CommitterInitContext
from outfall.file.disk import sync_directory
from outfall.file.flock import Patience, locked, read_line, write_line
from outfall.file.layout import Layout
from outfall.file.marker import advance_marker, check_shared, has_marker
from outfall.file.names import FileName
from outfall.file.store import FileStore, StagedFile
from outfall.trace_points import reached


class LocalStore(FileStore):
    """A directory that driver and executors share, on one filesystem with an atomic rename."""

    def __init__(self, layout: Layout, patience: Patience) -> None:
        self._layout = layout
        self._patience = patience
        self.root = layout.path
        self.staging = layout.staging

    def check_shared(self, incarnation: str) -> None:
        check_shared(self._layout, incarnation)

    def scratch(self, name: str) -> str:
        return self._layout.staged(name)

    def stage(self, name: str, fd: int) -> None:
        reached("file: syncing")
        os.fsync(fd)
        reached("file: synced")

    def sync_staged(self) -> None:
        sync_directory(self.staging)

    def drop(self, name: str) -> None:
        with suppress(OSError):
            os.unlink(self._layout.staged(name))

    def advance(self, context: CommitterInitContext) -> None:
        advance_marker(self._layout, self._patience, context)

    @contextmanager
    def publishing(self) -> Iterator[None]:
        with locked(self._layout.publishing, self._patience, shared=True, holder=last_publisher) as fd:
            write_line(fd, json.dumps({"host": socket.gethostname(), "pid": os.getpid()}))
            yield

    def staged_size(self, name: str) -> int | None:
        return _size(self._layout.staged(name))

    def published_size(self, path: str) -> int | None:
        return _size(self._layout.data(path))

    def publish(self, file: StagedFile) -> None:
        if file.bucket:
            os.makedirs(self._layout.data(file.bucket), exist_ok=True)
        os.rename(self._layout.staged(file.name), self._layout.data(file.path))

    def sync_published(self, files: Sequence[StagedFile]) -> None:
        # Also directories that were there: whoever made them may have died before their names were durable.
        for directory in sorted({place for file in files for place in _levels(file.bucket)} | {""}):
            sync_directory(self._layout.data(directory))
        sync_directory(self.staging)

    def unstage(self, name: str) -> bool:
        try:
            os.unlink(self._layout.staged(name))
        except FileNotFoundError:
            return False
        return True

    def sync_unstaged(self) -> None:
        if os.path.isdir(self.staging):
            sync_directory(self.staging)

    def staged_names(self, incarnation: str) -> list[FileName]:
        return [name for _, name in _ours(self.staging, incarnation)]

    def staged_without_marker(self) -> list[FileName]:
        """Return the staged files whose step has no marker here, any more or yet."""
        found = [name for name in map(FileName.parse, os.listdir(self.staging)) if name is not None]
        return [name for name in found if not has_marker(self._layout, name.incarnation)]

    def published(self, incarnation: str) -> Iterator[tuple[str, FileName]]:
        for directory, _, _ in self._layout.walk():
            for path, name in _ours(directory, incarnation):
                yield os.path.relpath(path, self.root), name

    def unpublish(self, paths: Sequence[str]) -> None:
        for path in paths:
            os.unlink(self._layout.data(path))
            reached("file: publication taken back")
        for directory in {os.path.dirname(path) for path in paths}:
            sync_directory(self._layout.data(directory))


def last_publisher(fd: int) -> str:
    """Say who published last, of those that may hold the lock."""
    return f"who publishes, or overwrites the directory; the last to publish was {read_line(fd) or 'nobody'}"


def _levels(bucket: str) -> Iterator[str]:
    """A bucket's directory and all above it, below the root."""
    while bucket:
        yield bucket
        bucket = os.path.dirname(bucket)


def _ours(directory: str, incarnation: str) -> Iterator[tuple[str, FileName]]:
    try:
        names = os.listdir(directory)
    except FileNotFoundError:
        return
    for text in names:
        name = FileName.parse(text)
        if name is not None and name.incarnation == incarnation:
            yield os.path.join(directory, text), name


def _size(path: str) -> int | None:
    try:
        return os.lstat(path).st_size
    except FileNotFoundError:
        return None
