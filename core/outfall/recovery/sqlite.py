"""Recovery data in SQLite databases on the driver's own disk."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from outfall.errors import ConfigurationError
from outfall.location import LOCAL, Location, Purpose
from outfall.recovery.config import RecoveryConfig
from outfall.recovery.failures import explained
from outfall.recovery.log import RecoveryLog
from outfall.recovery.names import check_step_id, is_step_id

SCHEME = "sqlite"
_SUFFIX = ".sqlite"

_DIRECTORY = Purpose(
    "directory of SQLite databases",
    {},
    "SQLite needs a disk of the driver's own",
    "give the absolute path of a directory on the driver's durable local disk",
)


@dataclass(frozen=True)
class SqliteRecoveryConfig(RecoveryConfig):
    """One database per step, `<db_dir>/<step_id>.sqlite`: for drivers that keep a durable local disk.

    WAL mode, `synchronous=FULL`: what `append` returned survives the host. The directory must not be on a network
    filesystem, whose locks and shared memory SQLite does not trust (https://www.sqlite.org/wal.html). Only the driver
    opens a database. States travel to and from the tasks with the ticket and the answers, so all states of a step
    together are limited to 64 MiB: larger ones need a store that tasks reach too.

    Args:
        db_dir: an absolute path; made on the first append.
        deadline: seconds for which a database that somebody else holds locked is waited for.

    Raises:
        ConfigurationError: the path is relative or a URL of something else, or the deadline is not positive.
    """

    db_dir: str
    deadline: float = 30.0

    reaches_tasks: ClassVar[bool] = False

    def __post_init__(self) -> None:
        location = Location.parse(os.fspath(self.db_dir), _DIRECTORY)
        if location.scheme != LOCAL:
            raise ConfigurationError(f"{self.db_dir!r} is no directory", do=_DIRECTORY.use_instead)
        object.__setattr__(self, "db_dir", location.path)
        if self.deadline <= 0:
            raise ConfigurationError(f"deadline is {self.deadline}", do="give a positive number of seconds")

    def open(self, step_id: str) -> RecoveryLog:
        """Open the log of one step. Nothing is made before the first append.

        Raises:
            ConfigurationError: the step id will not do.
        """
        from outfall.recovery.sqlite_log import SqliteLog

        return SqliteLog(f"{self.db_dir}/{check_step_id(step_id)}{_SUFFIX}", step_id, self.deadline)

    def steps(self) -> Sequence[str]:
        with explained("listing the steps", None, self.db_dir):
            found = [os.path.splitext(name) for name in _listed(self.db_dir)]
        return sorted(stem for stem, end in found if end == _SUFFIX and is_step_id(stem))

    def url(self) -> str:
        return f"{SCHEME}://{self.db_dir}"


def _listed(directory: str) -> list[str]:
    try:
        return os.listdir(directory)
    except FileNotFoundError:
        return []
