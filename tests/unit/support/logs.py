"""Opening, filling and looking into checkpoint logs, and acting in the middle of a call."""

from __future__ import annotations

from typing import Any

from outfall.filesystems import open_filesystem
from outfall.recovery import CheckpointRecoveryConfig, RecoveryLog
from outfall.recovery.location import recovery_location


def opened(location: str) -> RecoveryLog:
    return CheckpointRecoveryConfig(location).open("sink")


def filled(location: str, count: int) -> RecoveryLog:
    log = opened(location)
    for number in range(count):
        log.append(b'{"entry":%d}' % (number + 1), after=number)
    return log


def numbers(log: RecoveryLog, **which: Any) -> list[int]:
    return [entry.number for entry in log.read(**which)]


def files(location: str) -> list[str]:
    """The names of all files of the step, relative to its directory."""
    fs, path = open_filesystem(recovery_location(location), "a test of")
    root = f"{path}/outfall/sink/"
    return sorted(name.removeprefix(root) for name in fs.find(root))
