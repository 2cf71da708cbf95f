"""Failing system calls in this process, such as an fsync with EIO or a write to a full disk.

Only calls through the module `os` can fail, not calls by C code (buffered files, pyarrow, sqlite3). For these, use real
disks (`outfall.testing.disks`) or strace: `strace -f -e inject=fsync:error=EIO:when=2 …`.
"""

from __future__ import annotations

import errno
import os
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

CALLS = (
    "open", "write", "writev", "pwrite", "pwritev", "fsync", "fdatasync", "ftruncate", "truncate", "rename", "replace",
    "link", "mkdir", "unlink", "remove",
)  # fmt: skip
"""The functions of `os` that can fail."""


@dataclass
class CallCount:
    """The calls within a block."""

    calls: list[str] = field(default_factory=list)
    """Names in order, including the failed call."""
    failed: str | None = None
    """The one that failed."""
    callers: frozenset[str] = frozenset()
    """The names of the functions within which it failed."""


@contextmanager
def failing_call(number: int | None, error: int = errno.EIO, *, only: str | None = None) -> Iterator[CallCount]:
    """Make the n-th call of a function of `os` in the block fail, without any effect.

    Args:
        number: number of the call, from 1; `None` only counts.
        error: error number, such as `errno.ENOSPC`.
        only: count only calls of this function; default: all of `CALLS`.

    Yields:
        The calls.
    """
    count = CallCount()
    originals = {name: getattr(os, name) for name in CALLS if hasattr(os, name)}
    left = number

    def called(name: str, args: Any, options: Any) -> Any:
        nonlocal left
        if only in (None, name):
            count.calls.append(name)
            if left is not None:
                left -= 1
                if left == 0:
                    count.failed = name
                    count.callers = frozenset(frame.f_code.co_name for frame, _ in traceback.walk_stack(None))
                    raise OSError(error, f"{os.strerror(error)} (injected into {name})")
        return originals[name](*args, **options)

    def replaced(name: str) -> Any:
        return lambda *args, **options: called(name, args, options)

    for name in originals:
        setattr(os, name, replaced(name))
    try:
        yield count
    finally:
        for name, original in originals.items():
            setattr(os, name, original)
