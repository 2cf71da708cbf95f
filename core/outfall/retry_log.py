"""Warnings of retries, so that each outage shows itself: the first is logged, and then one at intervals."""

from __future__ import annotations

import logging
import time
from threading import Lock

INTERVAL = 30.0
"""Seconds between two warnings of one outage."""
QUIET = 5.0
"""Seconds without a retry after which a first try that fails is a new outage."""


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

        Called before each further try.

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
