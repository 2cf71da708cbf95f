"""Locks on small files that are never removed."""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from outfall.errors import ConfigurationError, TargetLostError, TransientError

LINE = 512
"""Bytes of a line. A power loss does not tear the write of one sector, and a fixed length gives fixed positions."""


@dataclass(frozen=True)
class Patience:
    """The timeout of a lock. Its holders keep it for one short write, unless they are stopped."""

    seconds: float = 30.0
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


@contextmanager
def locked(
    path: str,
    patience: Patience,
    *,
    create: bool = True,
    shared: bool = False,
    holder: Callable[[int], str] | None = None,
) -> Iterator[int]:
    """Hold a lock on a file, and yield the file's descriptor.

    The file is never removed, because a waiting process would then lock a deleted file. `holder` describes the possible
    holder, given the descriptor; by default that is the contents of the file. Raises `TransientError` if another
    process holds the lock for longer than `patience`, `TargetLostError` if the directory, or with `create=False` the
    file, does not exist, and `ConfigurationError` if the filesystem has no locks.
    """
    fd = _open(path, create)
    try:
        _lock(fd, path, fcntl.LOCK_SH if shared else fcntl.LOCK_EX, patience, holder or _file_says)
        yield fd
    finally:
        # Closing is not enough: a child process that was forked in the meantime would keep the lock.
        fcntl.flock(fd, fcntl.LOCK_UN)
        os.close(fd)


def is_locked(path: str) -> bool:
    """Return whether a process holds an exclusive lock on a file."""
    try:
        fd = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        if _try_lock(fd, path, fcntl.LOCK_SH):
            fcntl.flock(fd, fcntl.LOCK_UN)
            return False
        return True
    finally:
        os.close(fd)


def peek(path: str) -> str | None:
    """Read the first line of a file without its lock; `None` if there is no file.

    During a write, the line may be torn. Take the lock for a reliable result.
    """
    try:
        fd = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        return read_line(fd)
    finally:
        os.close(fd)


def read_line(fd: int, number: int = 0) -> str:
    """Return one line of a file; empty if it was never written or is not text."""
    return line_of(os.pread(fd, LINE, number * LINE)).decode(errors="replace")


def line_of(data: bytes) -> bytes:
    """Return the contents of a line without padding."""
    return data.rstrip(b"\0 \n")


def write_line(fd: int, line: str, number: int = 0) -> None:
    """Replace one line of a file in one system call, so that a killed process leaves the old or the new line."""
    data = line.encode().ljust(LINE - 1) + b"\n"
    if len(data) > LINE:
        raise ValueError(f"a line of {len(data)} bytes does not fit into {LINE}")
    if os.pwrite(fd, data, number * LINE) != len(data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _file_says(fd: int) -> str:
    return f"the lock file contains: {read_line(fd) or 'nothing yet'}"


def _open(path: str, create: bool) -> int:
    try:
        return os.open(path, os.O_RDWR | (os.O_CREAT if create else 0), 0o666)
    except FileNotFoundError as error:
        raise TargetLostError(
            f"{path} does not exist",
            why="the target's directory was moved, deleted or overwritten while the query ran",
            do="restore the directory, or start the query with a new checkpoint",
        ) from error


def _lock(fd: int, path: str, kind: int, patience: Patience, holder: Callable[[int], str]) -> None:
    deadline = patience.clock() + patience.seconds
    pause = 0.002
    while not _try_lock(fd, path, kind):
        if patience.clock() >= deadline:
            raise TransientError(
                f"{path} has been locked by another process for more than {patience.seconds:g} s",
                why=holder(fd),
                do="end the process with that host and pid, which releases the lock: a process that holds a lock this"
                " long is stopped, or its host is down",
            )
        patience.sleep(pause)
        pause = min(pause * 2, 0.25)


def _try_lock(fd: int, path: str, kind: int) -> bool:
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
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
