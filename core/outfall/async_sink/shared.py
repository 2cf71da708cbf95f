"""What a worker process knows of a host, kept across tasks and epochs."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from threading import Lock

from outfall.async_sink.limiting import Limiter
from outfall.async_sink.retrying import NotBefore, RetryBudget


@dataclass
class HostState:
    """How much a host bears, how many retries it is still owed, and when it may be asked again."""

    limiter: Limiter
    budget: RetryBudget = field(default_factory=RetryBudget)
    not_before: NotBefore = field(default_factory=NotBefore)


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
