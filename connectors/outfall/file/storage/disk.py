"""Writing to a disk: all bytes, and errors that say of what they are."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from outfall.errors import OutfallError, TransientError
from outfall.filesystems import remedy

_IOV_MAX = 1024
"""Buffers per system call; Linux takes no more."""


@contextmanager
def explained(
    doing: str, path: str, part: str | None = None, *, then: str = "nothing of this attempt counts"
) -> Iterator[None]:
    """Turn an `OSError` into an error that names the path: one from a file descriptor carries none.

    Args:
        doing: what fails, as `"writing"`.
        path: where.
        part: the part, if it is one's.
        then: what follows from the failure.

    Raises:
        TransientError: with the operating system's reason.
    """
    try:
        yield
    except OutfallError:
        raise
    except OSError as error:
        raise TransientError(
            f"{doing} {path} failed",
            part=part,
            why=error.strerror or str(error),
            do=f"{remedy(error)}; {then}",
        ) from error


def write_all(fd: int, buffers: Sequence[Any], position: int | None = None) -> int:
    """Write every byte of the buffers, at `position` or, without one, where the descriptor stands.

    The system may take a part of the bytes only (a signal, a disk nearly full), so this goes on until all are taken.

    Returns:
        How many bytes were written.
    """
    left = [memoryview(buffer).cast("B") for buffer in buffers if len(buffer)]
    total = 0
    while left:
        some = left[:_IOV_MAX]
        count = os.writev(fd, some) if position is None else os.pwritev(fd, some, position + total)
        total += count
        left = _after(left, count)
    return total


def _after(left: list[memoryview], count: int) -> list[memoryview]:
    index = 0
    while index < len(left) and count >= len(left[index]):
        count -= len(left[index])
        index += 1
    rest = left[index:]
    return [rest[0][count:], *rest[1:]] if count else rest
