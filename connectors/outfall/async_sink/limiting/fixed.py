"""A limit that stays."""

from __future__ import annotations

from outfall.async_sink.limiting.base import Answer, InFlight


class FixedLimiter:
    """So many requests at a time, whatever happens."""

    def __init__(self, requests: int) -> None:
        """Set the limit.

        Raises:
            ValueError: it is below 1.
        """
        if requests < 1:
            raise ValueError(f"a limit of requests must be at least 1, not {requests}")
        self._requests = requests

    @property
    def limit(self) -> int:
        """In requests."""
        return self._requests

    def batch_size(self, largest: int) -> int:
        return largest

    def admits(self, in_flight: InFlight, entries: int) -> bool:
        return in_flight.requests < self._requests

    def started(self, in_flight: InFlight) -> None:
        pass

    def ended(self, answer: Answer) -> None:
        pass
