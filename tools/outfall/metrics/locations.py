"""Which recovery locations lie below a directory or a prefix."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress

from outfall.errors import ConfigurationError
from outfall.location import LOCAL
from outfall.recovery.checkpoint import CheckpointRecoveryConfig
from outfall.recovery.location import explained, recovery_location
from outfall.recovery.log import RecoveryConfig

DEPTH = 4
"""Levels below a directory that are searched."""

_OTHERS = {"outfall", "offsets", "commits", "sources", "state", "_temporary", "_spark_metadata"}
"""Directories of Spark's and of ours, which hold no checkpoint and may hold very many files."""


def locations_in(recovery: RecoveryConfig) -> list[RecoveryConfig]:
    """Return a location itself where steps are recorded in it, else those below it; other stores as they are.

    Raises:
        ConfigurationError, TransientError: the store cannot be listed.
    """
    searched = isinstance(recovery, CheckpointRecoveryConfig) and not recovery.steps()
    return locations_below(recovery) if searched else [recovery]


def locations_below(recovery: RecoveryConfig) -> list[RecoveryConfig]:
    """Return the locations with steps in the directories of one on a disk or in an object store, at most 4 levels down.

    Nothing is searched below a location that has steps.

    Raises:
        ConfigurationError, TransientError: the store cannot be listed.
    """
    return list(_search(recovery, DEPTH)) if isinstance(recovery, CheckpointRecoveryConfig) else []


def _search(location: CheckpointRecoveryConfig, depth: int) -> Iterator[CheckpointRecoveryConfig]:
    for name in sorted(set(_directories(location)) - _OTHERS) if depth else ():
        # What no location can be called, none was ever written to.
        with suppress(ConfigurationError):
            found = CheckpointRecoveryConfig(f"{location.url().rstrip('/')}/{name}")
            if found.steps():
                yield found
            elif not name.startswith("."):
                yield from _search(found, depth - 1)


def _directories(config: CheckpointRecoveryConfig) -> Sequence[str]:
    location = recovery_location(config.url())
    with explained("searching for recovery data", None, location.path):
        if location.scheme != LOCAL:
            # Here and not above: fsspec is needed for object stores only.
            from outfall.recovery.object_log import ObjectStore

            return ObjectStore(location).directories(location.path)
        try:
            with os.scandir(location.path) as found:
                return [entry.name for entry in found if entry.is_dir()]
        except (FileNotFoundError, PermissionError):
            # One that may not be read is somebody else's, and hides none of ours.
            return []
