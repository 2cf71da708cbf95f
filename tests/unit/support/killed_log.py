"""A log whose process is killed (-9) between any two side effects, and what the next one finds and removes."""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Callable, Sequence

from outfall.trace_points import listen
from tests.unit.support.logs import files, filled, numbers, opened


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


def check_killed_at_each_step(
    locations: Callable[[str], str],
    before: int,
    action: str,
    expected: Sequence[str],
    there: int = 0,
    only: slice = slice(None),
) -> None:
    """Kill a process at each step of one action; the next writer goes on, and its clean-up removes what is left.

    Args:
        locations: makes a new location of a name.
        before: the number of entries before the action.
        action: `append`, `state` or `clean_up`.
        expected: the steps of the action.
        there: at how many of the last ones the appended entry is there.
        only: at which of them to kill.
    """
    seen: list[str] = []
    act(prepared(locations("whole"), before), action, seen.append)
    assert seen == expected
    for at, step in list(enumerate(expected, start=1))[only]:
        location = prepared(locations(str(at)), before)
        killed(location, action, at)
        entries = before + (at > len(expected) - there)
        check_after_death(location, list(range(1, entries + 1)), action, f"at step {at}, {step!r}")


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
