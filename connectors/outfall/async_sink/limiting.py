"""Limits on concurrent load: one fixed limit, and two that adapt to the responses."""

from __future__ import annotations

from dataclasses import dataclass
from math import floor, sqrt
from typing import Protocol


@dataclass(frozen=True)
class InFlight:
    """The load that one partition has in flight."""

    requests: int = 0
    entries: int = 0


@dataclass(frozen=True)
class EndedRequest:
    """The end of one request."""

    now: float
    """When it ended, in seconds."""
    entries: int
    """Number of its entries."""
    failed: int
    """Number of its entries to be sent again; all after a timeout."""
    seconds: float | None
    """From its start to its response; `None` after a failure or timeout, which does not measure the destination."""

    def __post_init__(self) -> None:
        if not 0 <= self.failed <= self.entries:
            raise ValueError(f"{self.failed} of {self.entries} entries cannot have failed")


class Limiter(Protocol):
    """Decides whether another request may start, and adapts to the requests that end.

    It does not count requests in flight, so a task that dies leaves no count behind: one limiter serves all epochs of a
    worker process, for one host. It never blocks a partition that has nothing in flight. A request in back-off is not
    in flight.
    """

    @property
    def limit(self) -> int:
        """The current limit, in the limiter's own unit."""

    def batch_size(self, largest: int) -> int:
        """Return the maximum number of entries of the next request, from 1 to `largest`."""

    def admits(self, in_flight: InFlight, entries: int) -> bool:
        """Whether a request of this many entries may start in addition to those in flight."""

    def started(self, in_flight: InFlight) -> None:
        """Record a started request; `in_flight` includes it."""

    def ended(self, answer: EndedRequest) -> None:
        """Record the end of a request."""


class FixedLimiter(Limiter):
    """A fixed number of concurrent requests."""

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
    """A limit on entries in flight: raised by a constant after a success, lowered by a factor after a failure.

    After Flink's `AIMDScalingStrategy` and `CongestionControlRateLimitingStrategy` (FLIP-242), with its parameters.
    Unlike Flink's, each decrease is strict, for every size and factor: with rounding up, Flink's limit stayed above 50
    with a factor of 0.99. With `proportional=True` a partial failure counts as both, in proportion, as in DCTCP (RFC
    8257), so one hot key does not throttle all others.
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
            largest: maximum of the limit.
            initial: the limit at the start.
            increase: entries added after a success.
            decrease_factor: factor after a failure, between 0 and 1.
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
    """A limit on concurrent requests, found by latency: more requests than the limit only wait longer.

    Vector's adaptive request concurrency (https://vector.dev/docs/architecture/arc/; RFC 1858 of its repository). Once
    per mean round trip, it compares the mean of the last round trips with the moving average of all earlier ones. The
    limit rises by one if that mean is no longer and the limit was reached. It falls by a factor if a request was
    rejected, or if the mean is longer by some standard deviations.

    It is stricter than Vector in one respect. The moving average follows a latency that grows in small steps. With
    varying round trips, Vector's limit climbs to several times the capacity of the destination. Here the limit rises
    only if this has increased the throughput: see `_Yields`.
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
            largest: maximum of the limit.
            initial: the limit at the start.
            decrease_ratio: factor of a decrease, between 0 and 1.
            ewma_alpha: weight of new round trips in the moving average, between 0 and 1.
            deviations: number of standard deviations above the average that lowers the limit.

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
        # Rounded, because the mean of equal round trips must be equal to them.
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
        # Not if they are equal, unlike Vector: a service of constant latency has no deviation.
        too_long = current is not None and past < current and past + self._deviations * self._past.deviation <= current
        if self._refused or too_long:
            self._limit = max(1, floor(self._limit * self._ratio))
        elif self._reached and current is not None:
            # Called even if the limit will not grow: the record must not consist of lucky round trips only.
            best = self._yields.best_after(self._limit, current)
            if best < self._limit or current <= past:
                self._limit = min(best, self._largest)


class _Yields:
    """The recent throughput of each limit: requests divided by round trip (Little's law)."""

    _LATELY = 300
    """Number of samples after which the record of a limit is outdated."""
    _SMALLER = 0.8
    """A limit is compared with one that is smaller by this factor, so that the difference exceeds noise."""
    _SHARE = 0.5
    """The minimum share of the additional requests that must show up as throughput."""
    _WEIGHT = 0.4

    def __init__(self) -> None:
        self._found: dict[int, tuple[float, int]] = {}
        self._now = 0
        self._went_back = 0

    def best_after(self, limit: int, seconds: float) -> int:
        """Record a mean round trip and return the next limit.

        One more if the throughput exceeds that of a smaller limit, the same if it is equal, one less if it is lower. If
        the record of the smaller limit is outdated, the smaller limit itself, for comparison.
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
