"""How answers reach a partition: its own state is touched by one thread only."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from queue import Empty, SimpleQueue

Letter = Callable[[], None]


class Mailbox:
    """Letters from any thread, taken and opened by the partition's (Flink's `MailboxExecutor`); and its clock.

    A test brings another one, in which time passes only while somebody waits
    (`outfall.testing.virtual_time.VirtualMailbox`).
    """

    def __init__(self) -> None:
        """Start empty."""
        self._letters: SimpleQueue[Letter] = SimpleQueue()

    def now(self) -> float:
        """Return seconds since some fixed moment. Any thread may ask."""
        return time.monotonic()

    def utc(self) -> datetime:
        """Return the time, for what is stored: of another process `now` means nothing."""
        return datetime.now(UTC)

    def put(self, letter: Letter) -> None:
        """Add a letter. Any thread may."""
        self._letters.put(letter)

    def take(self, seconds: float | None = 0.0) -> Letter | None:
        """Take the next letter.

        Args:
            seconds: how long to wait for one; `None` for as long as it takes.

        Returns:
            The letter, or `None` when none came.
        """
        try:
            if seconds is not None and seconds <= 0:
                return self._letters.get_nowait()
            return self._letters.get(timeout=seconds)
        except Empty:
            return None
