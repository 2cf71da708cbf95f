"""Writes to a disk completely, and adds the path to errors of disks and stores."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from outfall.errors import OutfallError, TransientError
from outfall.filesystems import remedy
from outfall.store_errors import StoreError, translated

_IOV_MAX = 1024
"""Buffers per system call; Linux takes no more."""


@contextmanager
def translated_errors(
    doing: str, path: str, part: str | None = None, *, then: str = "this attempt is discarded"
) -> Iterator[None]:
    """Convert an `OSError` to an error that names the path, which errors of file descriptors do not have.

    The error also has the operation (`doing`, for example `"writing"`), the reason of the operating system or of the
    store, and the consequence (`then`). It is a `TransientError`, unless a store refuses the request for good.
    """
    try:
        yield
    except OutfallError:
        raise
    except StoreError as error:
        raise translated(error, f"{doing} {path} failed", then=then, part=part) from error.__cause__
    except OSError as error:
        raise TransientError(
            f"{doing} {path} failed",
            part=part,
            why=error.strerror or str(error),
            do=f"{remedy(error)}; {then}",
        ) from error


def write_all(fd: int, buffers: Sequence[Any]) -> int:
    """Append all bytes of the buffers to a file that was opened with `O_APPEND`; return their number.

    The system may accept only some of the bytes (a signal, a nearly full disk), so this repeats until all are written.
    """
    left = [memoryview(buffer).cast("B") for buffer in buffers if len(buffer)]
    total = 0
    while left:
        some = left[:_IOV_MAX]
        count = os.writev(fd, some)
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
