"""Directories whose names survive the host."""

from __future__ import annotations

import os
from contextlib import suppress

from outfall.trace_points import reached


def make_durably(directory: str) -> None:
    """Make a directory with what is missing above it, durably.

    Each level's name is durable before anything is made below it. So of the levels found only the deepest may not be
    yet, when its maker died: it is synced even though it is there.
    """
    missing = _missing_levels(directory)
    deepest = os.path.dirname(missing[0]) if missing else directory
    # Who may not read the level above did not make this one.
    with suppress(PermissionError):
        sync_directory(os.path.dirname(deepest))
    for level in missing:
        with suppress(FileExistsError):
            os.mkdir(level)
        reached("log: directory made")
        sync_directory(os.path.dirname(level))


def sync_directory(path: str) -> None:
    """Make the names in a directory durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _missing_levels(directory: str) -> list[str]:
    """The levels of a path that do not exist, from the top."""
    missing: list[str] = []
    while not os.path.isdir(directory):
        missing.insert(0, directory)
        directory = os.path.dirname(directory)
    return missing
