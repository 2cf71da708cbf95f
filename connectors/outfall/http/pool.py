"""Connections that wait for their next request, kept in a process from one epoch to the next."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable

from outfall.http.connection import Connection

IDLE_SECONDS = 50.0
"""Servers and balancers close what was silent for a minute or so; a connection is better closed before."""


class IdleConnections:
    """At most so many idle connections for each key; the one that was used last is taken first.

    Args:
        longest: how many are kept for one key.
        clock: seconds.
    """

    def __init__(self, longest: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._longest = longest
        self._clock = clock
        self._lock = threading.Lock()
        self._idle: dict[Hashable, deque[Connection]] = {}

    def take(self, key: Hashable) -> Connection | None:
        """Return a connection that the server has not closed, as far as one can see."""
        key = (os.getpid(), key)
        while True:
            with self._lock:
                waiting = self._idle.get(key)
                if not waiting:
                    return None
                connection = waiting.pop()
            if self._clock() - connection.idle_since <= IDLE_SECONDS and not connection.stale():
                return connection
            connection.close()

    def give_back(self, key: Hashable, connection: Connection) -> None:
        """Keep a connection for the next request."""
        connection.idle_since = self._clock()
        with self._lock:
            waiting = self._idle.setdefault((os.getpid(), key), deque())
            waiting.append(connection)
            oldest = waiting.popleft() if len(waiting) > self._longest else None
        if oldest is not None:
            oldest.close()

    def close(self) -> None:
        """Close all of them."""
        with self._lock:
            idle, self._idle = self._idle, {}
        for waiting in idle.values():
            for connection in waiting:
                connection.close()
