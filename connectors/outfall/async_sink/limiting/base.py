"""What a limiter is asked and told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class InFlight:
    """What one partition has under way."""

    requests: int = 0
    entries: int = 0


@dataclass(frozen=True)
class Answer:
    """How one request ended."""

    now: float
    """When, in seconds."""
    entries: int
    """How many entries it held."""
    failed: int
    """How many of them have to be sent again; all after a timeout."""
    seconds: float | None
    """From its start to its answer; `None` where that says nothing about the destination: it failed or timed out."""

    def __post_init__(self) -> None:
        if not 0 <= self.failed <= self.entries:
            raise ValueError(f"{self.failed} of {self.entries} entries cannot have failed")


class Limiter(Protocol):
    """Decides whether another request may start, and learns from those that end.

    It holds no count of what is under way, so that a task that dies leaves nothing behind in it: one limiter serves all
    epochs of a worker process, for one host. It never makes a partition wait that has nothing under way. A request that
    waits for its back-off is not under way.
    """

    @property
    def limit(self) -> int:
        """The present limit, in the limiter's own unit."""

    def batch_size(self, largest: int) -> int:
        """Return how many entries the next request may hold, from 1 to `largest`."""

    def admits(self, in_flight: InFlight, entries: int) -> bool:
        """Whether a request of so many entries may start beside what is under way."""

    def started(self, in_flight: InFlight) -> None:
        """Learn that a request has started; `in_flight` includes it."""

    def ended(self, answer: Answer) -> None:
        """Learn how a request ended."""
