"""Additive increase, multiplicative decrease, of entries."""

from __future__ import annotations

from outfall.async_sink.limiting.base import Answer, InFlight


class AimdLimiter:
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

    def ended(self, answer: Answer) -> None:
        share = answer.failed / answer.entries if answer.entries else 0.0
        if not self._proportional:
            share = float(share > 0)
        changed = self._limit + self._increase * (1 - share) - self._limit * (1 - self._factor) * share
        if share == 1:
            changed = min(round(changed), self._limit - 1)
        self._limit = max(1, min(round(changed), self._largest))
