"""The clock of the protocol, which tests replace."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """A monotonic clock that can wait."""

    def now(self) -> float:
        """Return the seconds since a fixed moment."""

    def time(self) -> float:
        """Return the Unix time in seconds, comparable between processes of one host."""

    def sleep(self, seconds: float) -> None:
        """Wait."""


class SystemClock:
    """The clock of the operating system."""

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
    """Return the wall clock time in UTC."""
    return datetime.fromtimestamp(clock.time(), UTC)
