"""Search for recovery locations below a directory or a prefix."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress

from outfall.errors import ConfigurationError
from outfall.location import LOCAL
from outfall.recovery.checkpoint import CheckpointRecoveryConfig
from outfall.recovery.location import recovery_location, translated_errors
from outfall.recovery.log import RecoveryConfig

DEPTH = 4
"""Number of searched levels below a directory."""

_OTHERS = {"outfall", "offsets", "commits", "sources", "state", "_temporary", "_spark_metadata"}
"""Directories of Spark and Outfall that contain no checkpoint and may contain very many files."""


def locations_in(recovery: RecoveryConfig) -> list[RecoveryConfig]:
    """Return the location itself if it has steps, else the locations below it. Other stores are returned as they are.

    Raises `ConfigurationError` or `TransientError` if the store cannot be listed.
    """
    searched = isinstance(recovery, CheckpointRecoveryConfig) and not recovery.steps()
    return locations_below(recovery) if searched else [recovery]


def locations_below(recovery: RecoveryConfig) -> list[RecoveryConfig]:
    """Return locations with steps at most 4 levels below a directory or prefix.

    The search does not descend into a location with steps. Raises `ConfigurationError` or `TransientError` if the store
    cannot be listed.
    """
    return list(_search(recovery, DEPTH)) if isinstance(recovery, CheckpointRecoveryConfig) else []


def _search(location: CheckpointRecoveryConfig, depth: int) -> Iterator[CheckpointRecoveryConfig]:
    for name in sorted(set(_directories(location)) - _OTHERS) if depth else ():
        # Invalid names of locations cannot have recovery data.
        with suppress(ConfigurationError):
            found = CheckpointRecoveryConfig(f"{location.url().rstrip('/')}/{name}")
            if found.steps():
                yield found
            elif not name.startswith("."):
                yield from _search(found, depth - 1)


def _directories(config: CheckpointRecoveryConfig) -> Sequence[str]:
    location = recovery_location(config.url())
    with translated_errors("searching for recovery data", None, location.path):
        if location.scheme != LOCAL:
            # Imported here, because only object stores need fsspec.
            from outfall.recovery.object_log import ObjectStore

            return ObjectStore(location).directories(location.child())
        try:
            with os.scandir(location.path) as found:
                return [entry.name for entry in found if entry.is_dir()]
        except (FileNotFoundError, PermissionError):
            # An unreadable directory belongs to another user and contains no own checkpoints.
            return []
