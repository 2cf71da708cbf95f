"""Opening, filling and looking into checkpoint logs, and acting in the middle of a call."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import fsspec

from outfall import trace_points
from outfall.recovery import CheckpointRecoveryConfig, RecoveryLog


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
    fs, path = fsspec.core.url_to_fs(location)
    root = f"{path}/outfall/sink/"
    return sorted(name.removeprefix(root) for name in fs.find(root))


@contextmanager
def once_at(step: str, act: Callable[[], object]) -> Iterator[None]:
    """Let somebody else act when a writer reaches a step for the first time."""
    pending = [act]

    def listener(reached: str) -> None:
        if reached == step and pending:
            pending.pop()()

    remove = trace_points.listen(listener)
    try:
        yield
    finally:
        remove()
    assert not pending, f"{step!r} was not reached"
