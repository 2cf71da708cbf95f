"""Calls of the operating system that fail, in this process: an fsync that returns EIO, a write to a full disk.

What goes through the module `os` is seen; what C code calls by itself is not (a buffered file, pyarrow, sqlite3). For
those there are real disks (`outfall.testing.disks`), and strace: `strace -f -e inject=fsync:error=EIO:when=2 …`.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

CALLS = (
    "open", "write", "writev", "pwrite", "pwritev", "fsync", "fdatasync", "ftruncate", "truncate", "rename", "replace",
    "link", "mkdir", "unlink", "remove",
)  # fmt: skip
"""The functions of `os` that can be made to fail."""


@dataclass
class CallCount:
    """What was called within a block."""

    calls: list[str] = field(default_factory=list)
    """Names, in order; the one that failed among them."""
    failed: str | None = None
    """The one that failed."""


@contextmanager
def failing_call(number: int | None, error: int = errno.EIO, *, only: str | None = None) -> Iterator[CallCount]:
    """Make the n-th call of a function of `os` fail within the block, before it does anything.

    Args:
        number: which call, from 1; `None` only counts.
        error: the error's number, such as `errno.ENOSPC`.
        only: count calls of this function only; all of `CALLS` if left out.

    Yields:
        What was called.
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
