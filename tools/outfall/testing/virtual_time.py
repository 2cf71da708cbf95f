"""Virtual time for asynchronous sinks: it advances only during waits, without delay."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import count

from outfall.async_sink import EventQueue

Event = Callable[[], None]
_BEGINNING = datetime(2026, 1, 1, tzinfo=UTC)


class VirtualEventQueue(EventQueue):
    """The event queue and clock of an `AsyncSinkPartition` in a single-threaded test.

    `at` schedules an action. It runs when the partition waits until that time.
    """

    def __init__(self) -> None:
        """Start at second 0."""
        super().__init__()
        self.seconds = 0.0
        self._arrived: deque[Event] = deque()
        self._later: list[tuple[float, int, Event]] = []
        self._order = count()

    def now(self) -> float:
        """Return the total seconds of all waits."""
        return self.seconds

    def utc(self) -> datetime:
        """Return the time; second 0 is the start of 2026."""
        return _BEGINNING + timedelta(seconds=self.seconds)

    def put(self, event: Event) -> None:
        """Add an event."""
        self._arrived.append(event)

    def at(self, seconds: float, happening: Event) -> None:
        """Schedule an action, such as the response to a request."""
        heapq.heappush(self._later, (seconds, next(self._order), happening))

    def advance(self, seconds: float) -> None:
        """Advance the time and run the scheduled actions, without taking events."""
        until = self.seconds + seconds
        while self._later and self._later[0][0] <= until:
            self._next()
        self.seconds = until

    def take(self, seconds: float | None = 0.0) -> Event | None:
        """Take the next event, and advance the time until there is one.

        Raises `TimeoutError` if the wait would never end.
        """
        until = None if seconds is None else self.seconds + max(0.0, seconds)
        while not self._arrived and self._later and (until is None or self._later[0][0] <= until):
            self._next()
        if self._arrived:
            return self._arrived.popleft()
        if until is None:
            raise TimeoutError("nothing will ever happen")
        self.seconds = until
        return None

    def _next(self) -> None:
        moment, _, happening = heapq.heappop(self._later)
        self.seconds = max(self.seconds, moment)
        happening()
