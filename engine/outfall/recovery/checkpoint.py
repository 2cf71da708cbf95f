"""Recovery data next to Spark's checkpoint, or in another directory: the default store."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from outfall.location import LOCAL
from outfall.recovery.file_log import entry_number
from outfall.recovery.location import recovery_location, translated_errors
from outfall.recovery.log import RecoveryConfig, RecoveryLog, check_step_id, is_step_id


@dataclass(frozen=True)
class CheckpointRecoveryConfig(RecoveryConfig):
    """One file per entry under `<location>/outfall/<step_id>/`. Recovery data and checkpoint are copied together.

    Args:
        location: Spark's `checkpointLocation`, or a directory for `recovery=`: an absolute path, `file:///path`, or a
            URL with one of the schemes memory (for tests), s3, s3a, gs, gcs, abfs, abfss, az, hdfs. A path requires
            hard links and, on more than one host, a shared filesystem. It is created on the first append. Credentials
            come from the environment of the filesystem and are rejected here.

    Raises:
        ConfigurationError: The location is relative, contains credentials, or has another scheme.
    """

    location: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "location", recovery_location(self.location).url())

    def open(self, step_id: str) -> RecoveryLog:
        """Open the log of one step.

        Only the first append of a process checks that an object store creates exclusively, because tasks and `history`
        open the log too, often without write permission.

        Raises:
            ConfigurationError: The step id is not valid.
            ImportError: The package of the store is missing. The text names it.
        """
        location = recovery_location(self.location)
        directory = location.child("outfall", check_step_id(step_id))
        if location.scheme == LOCAL:
            from outfall.recovery.local_log import LocalLog

            return LocalLog(directory, step_id)
        from outfall.recovery.object_log import ObjectLog, ObjectStore

        return ObjectLog(ObjectStore(location), directory, step_id)

    def steps(self) -> Sequence[str]:
        location = recovery_location(self.location)
        directory = location.child("outfall")
        with translated_errors("listing the steps", None, directory):
            if location.scheme == LOCAL:
                names = _names
            else:
                from outfall.recovery.object_log import ObjectStore

                names = ObjectStore(location).names
            # Directories of tables and of Python's packages are called `outfall` too.
            steps = filter(is_step_id, names(directory))
            return sorted(step for step in steps if _has_entries(names, f"{directory}/{step}"))

    def url(self) -> str:
        return self.location


def _has_entries(names: Callable[[str], Sequence[str]], path: str) -> bool:
    """Whether a directory has entries, which is assumed if it cannot be listed: reading the step gives the error."""
    try:
        return any(entry_number(name) is not None for name in names(path))
    except PermissionError:
        return True


def _names(directory: str) -> list[str]:
    try:
        return os.listdir(directory)
    except (FileNotFoundError, NotADirectoryError):
        return []
