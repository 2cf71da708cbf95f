"""A clock that a test moves."""

from __future__ import annotations


class FakeClock:
    """Time that passes only when somebody sleeps, and then at once."""

    def __init__(self) -> None:
        """Start at second 0."""
        self.seconds = 0.0
        self.sleeps: list[float] = []

    def now(self) -> float:
        """Return the seconds slept so far."""
        return self.seconds

    def time(self) -> float:
        """Return the seconds slept so far."""
        return self.seconds

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        self.sleeps.append(seconds)
        self.seconds += seconds
