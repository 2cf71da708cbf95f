"""Warnings of retries, so that each outage shows itself: the first is logged, and then one at intervals.

Who runs tasks or commits can watch what is tried again meanwhile: see `watched_by`.
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

INTERVAL = 30.0
"""Seconds between two warnings of one outage."""
QUIET = 5.0
"""Seconds without a retry after which a first try that fails is a new outage."""


@dataclass(frozen=True)
class Retry:
    """One try that failed and is made again."""

    place: str
    """What has the outage, without credentials."""
    doing: str
    """What failed."""
    reason: str
    """Why, without secrets."""


RetryWatcher: TypeAlias = Callable[[Retry], None]
"""Told of each retry, in the thread that tries again: it returns at once and raises nothing."""

_watcher: ContextVar[RetryWatcher | None] = ContextVar("_watcher", default=None)


@contextmanager
def watched_by(watcher: RetryWatcher) -> Iterator[None]:
    """Tell `watcher`, and nobody else, of what this thread, or a coroutine that it starts, tries again meanwhile."""
    before = _watcher.set(watcher)
    try:
        yield
    finally:
        _watcher.reset(before)


def watcher() -> RetryWatcher | None:
    """Return who is told of this thread's retries, for the threads that it starts: see `watch_thread`."""
    return _watcher.get()


def watch_thread(found: RetryWatcher | None) -> None:
    """Tell who watches another thread of this one's retries too, as the `initializer` of a pool."""
    _watcher.set(found)


class RetryLog:
    """Warns of what is tried again. Keep one per process, in the module that tries again.

    Thread-safe. A place is what has the outage: a server, a bucket, a step that commits. All that is tried again at one
    place within `interval` gives one warning, and the next one says how many it stands for. A second outage is warned
    of at once, also within `interval`: it begins where a first try fails after `QUIET` seconds without a retry.

    Args:
        log: takes the warnings.
        interval: seconds between two warnings of one outage.
    """

    def __init__(self, log: logging.Logger, *, interval: float = INTERVAL) -> None:
        """Start with no warning given."""
        self._log = log
        self._interval = interval
        self._lock = Lock()
        self._warned: dict[str, float] = {}
        """When each place was last warned of."""
        self._last: dict[str, float] = {}
        """When each place last had a retry, warned of or not."""
        self._silent: dict[str, int] = {}
        """How many retries of each place were not warned of since."""

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
        """Say that something failed and is tried again, unless this outage was warned of shortly before.

        Called before each further try. Who watches is told each time.

        Args:
            place: what the retries are counted by, without credentials.
            doing: what failed, such as `"publishing t"`.
            attempt: the number of the try that failed, from 1.
            attempts: how many tries there are at most; `None` where they are not counted.
            reason: why, without secrets.
            left: seconds until it is given up; `None` where no deadline ends it.
            now: the time on the caller's own monotonic clock; `None` for the machine's.
        """
        now = time.monotonic() if now is None else now
        told = _watcher.get()
        if told is not None:
            told(Retry(place, doing, reason))
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
            "%s: %s failed (attempt %d%s%s) and is tried again: %s%s",
            place,
            doing,
            attempt,
            "" if attempts is None else f" of {attempts}",
            "" if left is None else f", {max(0.0, left):.0f} s left",
            reason,
            f"; {silent} more retries since the last warning" if silent else "",
        )
