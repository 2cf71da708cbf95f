"""Making the names of new files durable: one sync of a directory does it for all that a process has created there."""

from __future__ import annotations

import itertools

from outfall.file.disk import sync_directory

_ticks = itertools.count(1)
_durable: dict[str, int] = {}
"""By directory: what was created before this tick has a durable name."""


def name_created() -> int:
    """Tell that a file may have been created whose name is not durable yet; return what `sync_name` needs."""
    return next(_ticks)


def sync_name(directory: str, created: int) -> bool:
    """Make a name durable.

    Args:
        directory: where it is.
        created: what `name_created` returned once the file was there.

    Returns:
        Whether the directory was synced; otherwise it was already, for another file, after this one was created.
    """
    if _durable.get(directory, 0) > created:
        return False
    now = next(_ticks)
    sync_directory(directory)
    # Another thread may have been faster; then the directory is synced once too often.
    _durable[directory] = now
    return True
