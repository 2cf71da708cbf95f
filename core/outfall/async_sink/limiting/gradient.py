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
        if self._reached and not self._refused and current is not None and current <= past:
            self._limit = min(self._limit + 1, self._largest)
        elif self._refused or too_long:
            self._limit = max(1, floor(self._limit * self._ratio))


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
