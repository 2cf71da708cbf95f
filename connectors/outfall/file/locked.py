"""A small file that one process at a time reads and writes."""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from outfall.errors import ConfigurationError, TargetLostError, TransientError

_LINE = 512
"""Bytes of a line: one sector, whose overwriting a power loss does not tear, and of one length, so that the file's size
never changes."""


@dataclass(frozen=True)
class Patience:
    """How long to wait for a lock. Its holders keep it for one short write, unless they are stopped."""

    seconds: float = 30.0
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


@dataclass(frozen=True)
class HeldFile:
    """The content of a locked file: one line."""

    fd: int

    def read(self) -> str:
        """Return the line, empty when there is none or it is not text."""
        return read_line(self.fd)

    def write(self, line: str) -> None:
        """Replace the line in one system call, so that a killed process leaves the old or the new one."""
        data = line.encode().ljust(_LINE - 1) + b"\n"
        if len(data) > _LINE:
            raise ValueError(f"a line of {len(data)} bytes does not fit into {_LINE}")
        if os.pwrite(self.fd, data, 0) != len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def sync(self) -> None:
        """Make the line durable."""
        os.fsync(self.fd)


@contextmanager
def held(path: str, patience: Patience, *, create: bool = True) -> Iterator[HeldFile]:
    """Hold an exclusive lock on a file. The file is never removed: who waits for it would hold a lock on nothing.

    Raises:
        TransientError: somebody holds the lock for longer than `patience`.
        TargetLostError: the directory, or with `create=False` the file, does not exist.
        ConfigurationError: the filesystem has no locks.
    """
    fd = _open(path, create)
    try:
        _lock(fd, path, patience)
        yield HeldFile(fd)
    finally:
        # Not by closing alone: a child that was forked meanwhile would keep the lock.
        fcntl.flock(fd, fcntl.LOCK_UN)
        os.close(fd)


def peek(path: str) -> str | None:
    """Read a locked file's line without its lock; `None` when there is no file.

    Reading in the middle of a write may give a line that means nothing; who needs the truth takes the lock.
    """
    try:
        fd = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        return read_line(fd)
    finally:
        os.close(fd)


def read_line(fd: int) -> str:
    """Read the first line."""
    return os.pread(fd, 2 * _LINE, 0).split(b"\n", 1)[0].decode(errors="replace").strip()


def _open(path: str, create: bool) -> int:
    try:
        return os.open(path, os.O_RDWR | (os.O_CREAT if create else 0), 0o666)
    except FileNotFoundError as error:
        raise TargetLostError(
            f"{path} does not exist",
            why="the target's directory was moved, deleted or overwritten while the query ran",
            do="restore the directory, or start the query with a new checkpoint",
        ) from error


def _lock(fd: int, path: str, patience: Patience) -> None:
    deadline = patience.clock() + patience.seconds
    pause = 0.002
    while not _try_lock(fd, path):
        if patience.clock() >= deadline:
            raise TransientError(
                f"{path} is locked by another process for more than {patience.seconds:g} s",
                why=f"the file says: {read_line(fd) or 'nothing yet'}",
                do="a process that holds it for so long is stopped, or its host is gone: end the process named by host"
                " and pid; the lock goes with it",
            )
        patience.sleep(pause)
        pause = min(pause * 2, 0.25)


def _try_lock(fd: int, path: str) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.ENOSYS, errno.ENOLCK):
            raise
        raise ConfigurationError(
            f"the filesystem of {path} has no locks",
            why=os.strerror(error.errno),
            do="mount it with locks (NFS: version 4), or write whole files (without parts=) elsewhere",
        ) from error
    return True
