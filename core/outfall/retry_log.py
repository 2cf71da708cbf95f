"""Logs retries as warnings, so that each outage is visible: the first retry, then one per interval.

The caller that runs tasks or commits can observe the retries: see `watched_by`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from threading import Lock
from typing import TypeAlias

from outfall.errors import printable

INTERVAL = 30.0
"""Seconds between two warnings of one outage."""
QUIET = 5.0
"""Seconds without a retry after which a failed first attempt is a new outage."""


@dataclass(frozen=True)
class Retry:
    """A failed attempt that is retried."""

    place: str
    """The server, bucket or step with the outage, without credentials."""
    doing: str
    """The operation that failed."""
    reason: str
    """The reason, without secrets."""


RetryWatcher: TypeAlias = Callable[[Retry], None]
"""Called for each retry in the thread that retries. Must return at once and not raise."""

_watcher: ContextVar[RetryWatcher | None] = ContextVar("_watcher", default=None)


@contextmanager
def watched_by(watcher: RetryWatcher) -> Iterator[None]:
    """Report retries of this thread, and of coroutines that it starts, to `watcher` within the body."""
    before = _watcher.set(watcher)
    try:
        yield
    finally:
        _watcher.reset(before)


def watcher() -> RetryWatcher | None:
    """Return the watcher of this thread's retries, to pass it to a new thread. See `watch_thread`."""
    return _watcher.get()


def watch_thread(found: RetryWatcher | None) -> None:
    """Set the watcher of this thread, as the `initializer` of a pool."""
    _watcher.set(found)


class RetryLog:
    """Logs retries as warnings. Keep one instance per process, in the module that retries.

    Thread-safe. A place has the outage: a server, a bucket, a step that commits. All retries at one place within
    `interval` seconds give one warning. The next warning states their number. A new outage is logged at once, also
    within `interval`: it begins if a first attempt fails after `QUIET` seconds without a retry.
    """

    def __init__(self, log: logging.Logger, *, interval: float = INTERVAL) -> None:
        """Start without warnings."""
        self._log = log
        self._interval = interval
        self._lock = Lock()
        self._warned: dict[str, float] = {}
        """The time of the last warning per place."""
        self._last: dict[str, float] = {}
        """The time of the last retry per place, logged or not."""
        self._silent: dict[str, int] = {}
        """The number of retries per place since the last warning."""

    def retry(
        self,
        place: str,
        doing: str,
        *,
        attempt: int,
        attempts: int | None = None,
        reason: str,
        left: float | None,
        now: float | None = None,
    ) -> None:
        """Report a failed attempt that is retried. Logs it unless this outage was logged shortly before.

        Called before each retry. Calls the watcher each time. Retries are counted by `place`, which has no credentials.
        `doing` is the operation that failed, such as `"publishing t"`, and `reason` has no secrets. `attempt` counts
        from 1; `attempts` is the maximum, or `None` if it is unlimited. `left` are the seconds until the deadline;
        `None` if there is none. `now` is the time on the caller's monotonic clock; `None` for the system's.
        """
        now = time.monotonic() if now is None else now
        watch = _watcher.get()
        if watch is not None:
            watch(Retry(place, doing, reason))
        with self._lock:
            warned = self._warned.get(place)
            begins = attempt == 1 and now - self._last.get(place, now) >= QUIET
            self._last[place] = now
            if warned is not None and now - warned < self._interval and not begins:
                self._silent[place] = self._silent.get(place, 0) + 1
                return
            self._warned[place] = now
            silent = self._silent.pop(place, 0)
        self._log.warning(
            "%s: %s failed (attempt %d%s%s) and is retried: %s%s",
            place,
            doing,
            attempt,
            "" if attempts is None else f" of {attempts}",
            "" if left is None else f", {max(0.0, left):.0f} s left",
            printable(reason),
            f"; {silent} more retries since the last warning" if silent else "",
        )
