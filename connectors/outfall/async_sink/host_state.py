"""What a worker process knows of a host, kept across tasks and epochs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from threading import Lock

from outfall.async_sink.limiting import Limiter
from outfall.async_sink.retrying import NotBefore, RetryBudget
from outfall.retry_log import RetryLog

_log = logging.getLogger("outfall.async_sink")


@dataclass
class HostState:
    """How much a host bears, how many retries it is still owed, when it may be asked again, and what was warned of."""

    limiter: Limiter
    budget: RetryBudget = field(default_factory=RetryBudget)
    not_before: NotBefore = field(default_factory=NotBefore)
    retries: RetryLog = field(default_factory=lambda: RetryLog(_log))


_states: dict[Hashable, HostState] = {}
_lock = Lock()


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
