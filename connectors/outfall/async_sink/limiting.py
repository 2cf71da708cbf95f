"""How much may be under way to a destination at a time: a limit that stays, and two that learn from what comes back."""

from __future__ import annotations

from dataclasses import dataclass
from math import floor, sqrt
from typing import Protocol


@dataclass(frozen=True)
class InFlight:
    """What one partition has under way."""

    requests: int = 0
    entries: int = 0


@dataclass(frozen=True)
class EndedRequest:
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

    def ended(self, answer: EndedRequest) -> None:
        """Learn how a request ended."""


class FixedLimiter(Limiter):
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

    def ended(self, answer: EndedRequest) -> None:
        pass


class AimdLimiter(Limiter):
    """A limit of entries under way: up by a constant after a success, down by a factor after a failure.

    After Flink's `AIMDScalingStrategy` and `CongestionControlRateLimitingStrategy` (FLIP-242), with its parameters.
    Unlike there a decrease is strict, for every size and factor: rounding up kept Flink's from going below 50 with a
    factor of 0.99. With `proportional=True` a request that failed in part is both, in that proportion, as in DCTCP
    (RFC 8257): one hot key does not throttle all others.
    """

    def __init__(
        self,
        largest: int,
        *,
        initial: int | None = None,
        increase: int = 10,
        decrease_factor: float = 0.5,
        proportional: bool = False,
    ) -> None:
        """Start at `initial`, or at `largest`.

        Args:
            largest: the limit is never above it.
            initial: the limit at the start.
            increase: entries added after a success.
            decrease_factor: what is left after a failure, between 0 and 1.
            proportional: whether a partial failure counts in part.

        Raises:
            ValueError: a number is out of range.
        """
        initial = largest if initial is None else initial
        if not 1 <= initial <= largest:
            raise ValueError(f"a limit needs 1 <= initial <= largest, not {initial} and {largest}")
        if increase < 1:
            raise ValueError(f"increase must be at least 1, not {increase}")
        if not 0 < decrease_factor < 1:
            raise ValueError(f"decrease_factor must be between 0 and 1, not {decrease_factor}")
        self._largest = largest
        self._increase = increase
        self._factor = decrease_factor
        self._proportional = proportional
        self._limit = initial

    @property
    def limit(self) -> int:
        """In entries."""
        return self._limit

    def batch_size(self, largest: int) -> int:
        return min(largest, self._limit)

    def admits(self, in_flight: InFlight, entries: int) -> bool:
        return in_flight.requests == 0 or in_flight.entries + entries <= self._limit

    def started(self, in_flight: InFlight) -> None:
        pass

    def ended(self, answer: EndedRequest) -> None:
        share = answer.failed / answer.entries if answer.entries else 0.0
        if not self._proportional:
            share = float(share > 0)
        changed = self._limit + self._increase * (1 - share) - self._limit * (1 - self._factor) * share
        if share == 1:
            changed = min(round(changed), self._limit - 1)
        self._limit = max(1, min(round(changed), self._largest))


class GradientLimiter(Limiter):
    """Requests under way, limited where more of them only wait longer.

    Vector's adaptive request concurrency (https://vector.dev/docs/architecture/arc/; RFC 1858 of its repository): once
    per mean round trip the mean of the last ones is compared with the moving average of all before. Up by one when it
    is no longer than that and the limit was reached; down by a factor when a request was refused, or when it is longer
    by some standard deviations.

    Stricter than Vector in one thing. The moving average follows a latency that grows by small steps, and where round
    trips vary the limit climbs to several times what the destination bears. So it goes up only where that has brought
    more: see `_Yields`.
    """

    def __init__(
        self,
        largest: int = 200,
        *,
        initial: int = 1,
        decrease_ratio: float = 0.9,
        ewma_alpha: float = 0.4,
        deviations: float = 2.5,
    ) -> None:
        """Start at `initial`.

        Args:
            largest: the limit is never above it.
            initial: the limit at the start.
            decrease_ratio: what is left of the limit, between 0 and 1.
            ewma_alpha: the weight of new round trips in the moving average, between 0 and 1.
            deviations: by how many standard deviations a round trip must be too long.

        Raises:
            ValueError: a number is out of range.
        """
        if not 1 <= initial <= largest:
            raise ValueError(f"a limit needs 1 <= initial <= largest, not {initial} and {largest}")
        if not 0 < decrease_ratio < 1 or not 0 < ewma_alpha < 1 or deviations < 0:
            raise ValueError(
                "decrease_ratio and ewma_alpha must be between 0 and 1 and deviations not negative, not"
                f" {decrease_ratio}, {ewma_alpha}, {deviations}"
            )
        self._largest = largest
        self._ratio = decrease_ratio
        self._deviations = deviations
        self._limit = initial
        self._past = _MovingAverage(ewma_alpha)
        self._yields = _Yields()
        self._next_update = float("-inf")
        self._begin_interval()

    @property
    def limit(self) -> int:
        """In requests."""
        return self._limit

    def batch_size(self, largest: int) -> int:
        return largest

    def admits(self, in_flight: InFlight, entries: int) -> bool:
        return in_flight.requests < self._limit

    def started(self, in_flight: InFlight) -> None:
        self._reached |= in_flight.requests >= self._limit

    def ended(self, answer: EndedRequest) -> None:
        self._refused |= answer.failed > 0
        if answer.seconds is not None:
            self._total += answer.seconds
            self._count += 1
        # Rounded, since the mean of equal round trips must be equal to them.
        current = round(self._total / self._count, 6) if self._count else None
        if self._past.mean is None:
            self._first(answer.now, current)
        elif answer.now >= self._next_update:
            self._adjust(current, self._past.mean)
            if current is not None:
                self._past.add(current)
            self._next_update = answer.now + self._past.mean
            self._begin_interval()

    def _first(self, now: float, current: float | None) -> None:
        if current is not None:
            self._past.add(current)
            self._next_update = now + current

    def _begin_interval(self) -> None:
        self._total, self._count = 0.0, 0
        self._refused = self._reached = False

    def _adjust(self, current: float | None, past: float) -> None:
        # Not when they are equal, as Vector has it: a service of constant latency has no deviation.
        too_long = current is not None and past < current and past + self._deviations * self._past.deviation <= current
        if self._refused or too_long:
            self._limit = max(1, floor(self._limit * self._ratio))
        elif self._reached and current is not None:
            # Asked also where the limit will not grow: what is noted must not be the lucky round trips alone.
            best = self._yields.best_after(self._limit, current)
            if best < self._limit or current <= past:
                self._limit = min(best, self._largest)


class _Yields:
    """The throughput that each limit has brought lately: requests by round trip (Little's law)."""

    _LATELY = 300
    """Times a limit was looked at, after which a destination may be another one."""
    _SMALLER = 0.8
    """A limit is compared with one this much smaller, so that the difference is more than chance."""
    _SHARE = 0.5
    """Which part of the larger limit's requests must come through, at least."""
    _WEIGHT = 0.4

    def __init__(self) -> None:
        self._found: dict[int, tuple[float, int]] = {}
        self._now = 0
        self._went_back = 0

    def best_after(self, limit: int, seconds: float) -> int:
        """Note a mean round trip and return the limit to try next.

        One more while that brings more than a smaller limit did, the same where it does not, one less where it brings
        less; and where it is too long ago that a smaller one was seen, that one, for comparison.
        """
        self._now += 1
        rate = self._note(limit, limit / max(seconds, 1e-6))
        smaller = [other for other in self._found if other <= limit * self._SMALLER and self._is_fresh(other)]
        if smaller:
            other = max(smaller)
            before = self._found[other][0]
            if rate < before:
                return limit - 1
            return limit + (rate >= before * (1 + self._SHARE * (limit / other - 1)))
        if self._now - self._went_back <= self._LATELY:
            return limit + 1
        self._went_back = self._now
        return max(1, floor(limit * self._SMALLER))

    def _note(self, limit: int, rate: float) -> float:
        if limit in self._found and self._is_fresh(limit):
            before = self._found[limit][0]
            rate = before + self._WEIGHT * (rate - before)
        self._found[limit] = rate, self._now
        return rate

    def _is_fresh(self, limit: int) -> bool:
        return self._now - self._found[limit][1] <= self._LATELY


class _MovingAverage:
    """Exponentially weighted mean and variance (Finch, "Incremental calculation of weighted mean and variance")."""

    def __init__(self, alpha: float) -> None:
        self._alpha = alpha
        self.mean: float | None = None
        self._variance = 0.0

    @property
    def deviation(self) -> float:
        return sqrt(self._variance)

    def add(self, value: float) -> None:
        if self.mean is None:
            self.mean = value
            return
        difference = value - self.mean
        increment = self._alpha * difference
        self.mean += increment
        self._variance = (1 - self._alpha) * (self._variance + difference * increment)
