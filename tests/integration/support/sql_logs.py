"""Logs in a database: what the tests of PostgreSQL and of MySQL write and read."""

from __future__ import annotations

from contextlib import closing

from outfall.recovery import RecoveryConfig, RecoveryLog

STEPS = ("log: newest checked", "log: entry inserted", "log: before commit")
"""The trace points between the statements of an append."""


def filled(recovery: RecoveryConfig, count: int) -> RecoveryLog:
    log = recovery.open("sink")
    for after in range(count):
        log.append(b"%d" % (after + 1), after=after)
    return log


def contents(recovery: RecoveryConfig) -> list[bytes]:
    with closing(recovery.open("sink")) as log:
        return [entry.data for entry in log.read()]
