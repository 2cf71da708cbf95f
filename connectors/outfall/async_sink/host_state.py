"""What a worker process knows of a host, across tasks and epochs: how much it bears, and when to leave it alone."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from threading import Lock

from outfall.async_sink.limiting import Limiter
from outfall.retry_log import RetryLog


class RetryBudget:
    """A token bucket: while nothing succeeds, at most a share of the requests are retries.

    Each first try brings a part of a token and each retry takes a whole one, as in the `standard` retry mode of the AWS
    SDKs (https://docs.aws.amazon.com/sdkref/latest/guide/feature-retry-behavior.html) and in Finagle's `RetryBudget`.
    A retry that succeeds brings back two, so that a destination that fails now and then is retried as often as it
    takes, and one that is back is soon used in full. Two advances are paid back before first tries bring anything
    again: a reserve, so that a short job can retry, and a token each `probe_interval`, so that the end of an outage is
    noticed.

    Not thread-safe: it belongs to the thread that decides about retries.
    """

    def __init__(
        self, ratio: float = 0.1, *, reserve: float = 10.0, capacity: float = 100.0, probe_interval: float = 15.0
    ) -> None:
        """Start with the reserve.

        Args:
            ratio: how many tokens a first try brings.
            reserve: tokens at the start.
            capacity: how many tokens can be saved up.
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
        """How many retries it allows now."""
        return self._tokens

    def earn(self) -> None:
        """Note a first try."""
        paid = min(self._owed, self._ratio)
        self._owed -= paid
        self._tokens = min(self._capacity, self._tokens + self._ratio - paid)

    def refund(self) -> None:
        """Note that a retry succeeded."""
        self._tokens = min(self._capacity, self._tokens + 2)

    def wait(self, now: float) -> float:
        """Return in how many seconds `spend` will succeed; 0 for now."""
        if self._tokens >= 1:
            return 0.0
        if self._last_probe is None:
            self._last_probe = now
        return max(0.0, self._last_probe + self._probe_interval - now)

    def spend(self, now: float) -> bool:
        """Take the token of one retry.

        Returns:
            Whether there was one; if not, `wait` says when there will be.
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
    """The moment before which nothing is sent to a host that has asked for a pause."""

    def __init__(self) -> None:
        """Start open."""
        self._until = float("-inf")

    def hold(self, until: float) -> None:
        """Send nothing before `until`. A moment before the present one changes nothing."""
        self._until = max(self._until, until)

    def wait(self, now: float) -> float:
        """Return the seconds to wait; 0 for none."""
        return max(0.0, self._until - now)


_log = logging.getLogger("outfall.async_sink")


@dataclass
class HostState:
    """How much a host bears, how many retries it is still owed, when it may be asked again, and what was warned of."""

    limiter: Limiter
    budget: RetryBudget = field(default_factory=RetryBudget)
    retry_gate: RetryGate = field(default_factory=RetryGate)
    retries: RetryLog = field(default_factory=lambda: RetryLog(_log))


def shared_host_state(key: Hashable, make: Callable[[], HostState]) -> HostState:
    """Return this process's state of a host, made on first use.

    Args:
        key: the host, with everything that the state is made of.
        make: makes the state.
    """
    with _lock:
        if key not in _states:
            _states[key] = make()
        return _states[key]


_states: dict[Hashable, HostState] = {}
_lock = Lock()
