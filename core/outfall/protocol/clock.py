"""Time as the protocol needs it, so that tests can bring their own."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """A monotonic clock that can wait."""

    def now(self) -> float:
        """Return seconds since some fixed moment."""

    def time(self) -> float:
        """Return seconds since 1970, comparable between processes of one host."""

    def sleep(self, seconds: float) -> None:
        """Wait."""


class SystemClock:
    """The machine's own clock."""

    def now(self) -> float:
        """Return `time.monotonic()`."""
        return time.monotonic()

    def time(self) -> float:
        """Return `time.time()`."""
        return time.time()

    def sleep(self, seconds: float) -> None:
        """Wait with `time.sleep`."""
        time.sleep(seconds)


def utc_time(clock: Clock) -> datetime:
    """Return the wall clock's time in UTC."""
    return datetime.fromtimestamp(clock.time(), UTC)
