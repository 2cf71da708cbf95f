"""State of a host in a worker process, across tasks and epochs: its limit, retry budget and requested pause."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from threading import Lock

from outfall.async_sink.limiting import Limiter
from outfall.retry_log import RetryLog


class RetryBudget:
    """A token bucket: while no request succeeds, at most a share of the requests are retries.

    Each first attempt adds a fraction of a token and each retry takes one, as in the `standard` retry mode of the AWS
    SDKs (https://docs.aws.amazon.com/sdkref/latest/guide/feature-retry-behavior.html) and in Finagle's `RetryBudget`.

    A successful retry adds two tokens. A destination with occasional failures is therefore retried as often as needed,
    and a recovered destination soon gets full load. Two advances are repaid before first attempts add tokens again: a
    reserve, so that a short job can retry, and one token per `probe_interval`, to detect the end of an outage.

    Not thread-safe: it belongs to the thread that decides about retries.
    """

    def __init__(
        self, ratio: float = 0.1, *, reserve: float = 10.0, capacity: float = 100.0, probe_interval: float = 15.0
    ) -> None:
        """Start with the reserve.

        Args:
            ratio: tokens that a first attempt adds.
            reserve: tokens at the start.
            capacity: maximum number of tokens.
            probe_interval: seconds after which an empty bucket gets a token.

        Raises:
            ValueError: a number is out of range.
        """
        if not 0 <= ratio <= 1 or not 0 <= reserve <= capacity or capacity < 1 or probe_interval <= 0:
            raise ValueError(
                "a retry budget needs 0 <= ratio <= 1, 0 <= reserve <= capacity, capacity >= 1 and probe_interval > 0,"
                f" not {ratio}, {reserve}, {capacity}, {probe_interval}"
            )
        self._ratio = ratio
        self._capacity = capacity
        self._probe_interval = probe_interval
        self._tokens = reserve
        self._owed = reserve
        self._last_probe: float | None = None

    @property
    def tokens(self) -> float:
        """Number of retries allowed now."""
        return self._tokens

    def earn(self) -> None:
        """Record a first attempt."""
        paid = min(self._owed, self._ratio)
        self._owed -= paid
        self._tokens = min(self._capacity, self._tokens + self._ratio - paid)

    def refund(self) -> None:
        """Record a successful retry."""
        self._tokens = min(self._capacity, self._tokens + 2)

    def wait(self, now: float) -> float:
        """Return the seconds until `spend` succeeds; 0 for now."""
        if self._tokens >= 1:
            return 0.0
        if self._last_probe is None:
            self._last_probe = now
        return max(0.0, self._last_probe + self._probe_interval - now)

    def spend(self, now: float) -> bool:
        """Take the token of one retry.

        Returns:
            Whether there was one. If not, see `wait`.
        """
        if self._tokens >= 1:
            self._tokens -= 1
            return True
        if self.wait(now) > 0:
            return False
        self._last_probe = now
        self._owed += 1
        return True


class RetryGate:
    """The time until which no request is sent to a host that requested a pause."""

    def __init__(self) -> None:
        """Start open."""
        self._until = float("-inf")

    def hold(self, until: float) -> None:
        """Send nothing before `until`. A time before the current one has no effect."""
        self._until = max(self._until, until)

    def wait(self, now: float) -> float:
        """Return the seconds to wait; 0 for none."""
        return max(0.0, self._until - now)


_log = logging.getLogger("outfall.async_sink")


@dataclass
class HostState:
    """State of a host: limiter, retry budget, requested pause, and log of retries."""

    limiter: Limiter
    budget: RetryBudget = field(default_factory=RetryBudget)
    retry_gate: RetryGate = field(default_factory=RetryGate)
    retries: RetryLog = field(default_factory=lambda: RetryLog(_log))


def shared_host_state(key: Hashable, make: Callable[[], HostState]) -> HostState:
    """Return this process's state of a host, created on first use.

    Args:
        key: the host, with all settings that the state depends on.
        make: creates the state.
    """
    with _lock:
        if key not in _states:
            _states[key] = make()
        return _states[key]


_states: dict[Hashable, HostState] = {}
_lock = Lock()
