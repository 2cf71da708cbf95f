"""The disks of `outfall.testing`, or a skipped test; and the rights and limits of a lesser process."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TypeVar

from outfall.testing import disks
from outfall.testing.conformance import NotApplicableError
from outfall.testing.disks import LoopDisk as Disk
from outfall.testing.disks import MemoryDisk as Memory
from tests.programs import absent, program

_NOBODY = 65534
D = TypeVar("D")

__all__ = ["Disk", "Memory", "longest_file", "loop_disk", "memory_disk", "unprivileged"]


@contextmanager
def memory_disk(path: Path, options: str) -> Iterator[Memory]:
    """Mount a tmpfs, or skip the test."""
    with _or_skip(disks.memory_disk(path, options)) as disk:
        yield disk


@contextmanager
def loop_disk(path: Path, *, size: int = 16 << 20) -> Iterator[Disk]:
    """Mount a new ext4, or skip the test."""
    program("mkfs.ext4")
    with _or_skip(disks.loop_disk(path, size=size)) as disk:
        yield disk


@contextmanager
def unprivileged() -> Iterator[None]:
    """Be nobody, if this process is root."""
    if os.getuid() != 0:
        yield
        return
    groups = os.getgroups()
    os.setgroups([])
    # The saved id stays root's, so that there is a way back.
    os.setresuid(_NOBODY, _NOBODY, 0)
    try:
        yield
    finally:
        os.setresuid(0, 0, 0)
        os.setgroups(groups)


@contextmanager
def longest_file(size: int) -> Iterator[None]:
    """Set what `ulimit -f` sets."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@contextmanager
def _or_skip(disk: AbstractContextManager[D]) -> Iterator[D]:
    try:
        mounted = disk.__enter__()
    except NotApplicableError as reason:
        absent(str(reason))
    try:
        yield mounted
    finally:
        disk.__exit__(None, None, None)
