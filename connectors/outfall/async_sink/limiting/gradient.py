"""A limit of requests that follows the destination's latency."""

from __future__ import annotations

from math import floor, sqrt

from outfall.async_sink.limiting.base import Answer, InFlight


class GradientLimiter:
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

    def ended(self, answer: Answer) -> None:
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
