"""A local log whose process is killed between any two side effects."""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from outfall.trace_points import listen
from tests.unit.support.logs import files, filled, numbers, opened

WRITING = ["log: file created", "log: file filled"]
APPENDING = [
    *WRITING,
    "log: temporary written",
    "log: linked",
    "log: directory synced",
    "log: temporary removed",
]
MADE = "log: directory made"


def act(location: str, action: str, listener: Callable[[str], None]) -> None:
    """Do one thing to the log, with the steps of it told."""
    log = opened(location)
    after = max(numbers(log), default=0)
    remove = listen(listener)
    try:
        if action == "append":
            log.append(b'{"by":"child"}', after=after)
        elif action == "state":
            log.write_state("part", b"x" * 100_000, generation=after)
        else:
            log.clean_up(keep=[after], states=[], generation=99)
    finally:
        remove()


def killed(location: str, action: str, at: int) -> None:
    """The same in a process that is killed at the nth step."""
    child = os.fork()
    if child == 0:
        steps = itertools.count(1)

        def die(step: str) -> None:
            if next(steps) == at:
                os.kill(os.getpid(), signal.SIGKILL)

        try:
            act(location, action, die)
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status)
    assert os.WTERMSIG(status) == signal.SIGKILL


@pytest.mark.parametrize(
    ("before", "action", "expected"),
    [
        (0, "append", ["log: newest checked", MADE, MADE, MADE, *APPENDING]),
        (2, "append", ["log: newest checked", *APPENDING]),
        (2, "state", [MADE, *WRITING, "log: state written", "log: state durable"]),
        (3, "clean_up", ["log: entry cleaned up", "log: entry cleaned up"]),
    ],
)
def test_killed_at_any_step_the_log_is_whole_and_goes_on(
    before: int, action: str, expected: list[str], tmp_path: Path
) -> None:
    seen: list[str] = []
    act(prepared(str(tmp_path / "whole"), before), action, seen.append)
    assert seen == expected
    for at, step in enumerate(expected, start=1):
        location = prepared(str(tmp_path / str(at)), before)
        killed(location, action, at)
        durable = action == "append" and step in APPENDING[3:]
        check_after_death(location, [*range(1, before + 1), *([before + 1] if durable else [])], action, f"at {step!r}")


def prepared(location: str, entries: int) -> str:
    if entries:
        filled(location, entries)
    return location


def check_after_death(location: str, expected: list[int], action: str, where: str) -> None:
    log = opened(location)
    found = log.read()
    assert all(entry.data.endswith(b"}") for entry in found), where
    if action == "clean_up":
        assert found[-1].number == expected[-1], where
    else:
        assert [entry.number for entry in found] == expected, where
    newest = max(expected, default=0)
    assert log.append(b'{"by":"next"}', after=newest) == newest + 1, where
    log.clean_up(keep=[newest + 1], states=[], generation=newest + 1)
    assert files(location) == [f"{newest + 1:020d}.json"], where
