"""Crashes at named steps of the protocol, in a test's own process or in a real one.

In one process `crash_at` raises at a step. A real driver or Python worker kills itself (SIGKILL) at a step when this
module is imported in it and the environment names the step: `OUTFALL_CRASH_AT="after PREPARED"`. Only this module reads
that variable. `OUTFALL_CRASH_ONCE` names a file that is created at the crash, so that the next run goes on; the n-th
time is `"after PREPARED#3"`.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

from outfall.steps import listen


class CrashError(BaseException):
    """Stands for the death of the process. Not an `Exception`, so that nothing on the way handles it."""


class _Countdown:
    """Matches the n-th time that a step is reached."""

    def __init__(self, spec: str) -> None:
        self._step, _, times = spec.partition("#")
        self._left = int(times or 1)

    def hit(self, step: str) -> bool:
        if step != self._step:
            return False
        self._left -= 1
        return self._left == 0


@contextmanager
def crash_at(spec: str) -> Iterator[list[str]]:
    """Raise `CrashError` at a step within the block, which swallows it.

    Args:
        spec: the step's name, with `#n` for the n-th time it is reached.

    Yields:
        The steps that were reached, in order; filled as the block runs.
    """
    seen: list[str] = []
    countdown = _Countdown(spec)

    def listener(step: str) -> None:
        seen.append(step)
        if countdown.hit(step):
            raise CrashError(spec)

    stop = listen(listener)
    try:
        yield seen
    except CrashError:
        pass
    finally:
        stop()


def _arm() -> None:
    """Kill this process at the step that the environment names, once if it names a file for that."""
    spec = os.environ.get("OUTFALL_CRASH_AT")
    if not spec:
        return
    once = os.environ.get("OUTFALL_CRASH_ONCE")
    countdown = _Countdown(spec)

    def listener(step: str) -> None:
        if countdown.hit(step) and _first_time(once):
            os.kill(os.getpid(), signal.SIGKILL)

    listen(listener)


def _first_time(once: str | None) -> bool:
    if once is None:
        return True
    try:
        os.close(os.open(once, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


_arm()
