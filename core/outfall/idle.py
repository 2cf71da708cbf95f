"""A cache of clients that are not in use and stay connected, for the next use with the same settings."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Hashable, Mapping
from typing import Generic, Protocol, TypeVar

Secrets = Mapping[str, str]


class CanShut(Protocol):
    """An object that can be cached."""

    def shut(self) -> None:
        """Close its connections and threads. It is not used again."""


T = TypeVar("T", bound=CanShut)


class Idle(Generic[T]):
    """Caches objects with their connections and state, for the next use, which has each to itself.

    Each epoch needs them again. Connecting and registering a producer of Kafka takes most of a second each time.
    """

    def __init__(self, most: int) -> None:
        """Start empty; the cache holds at most this many objects."""
        self.most = most
        self._kept: dict[tuple[int, Hashable], tuple[Secrets, T]] = {}
        self._lock = threading.Lock()

    def take(self, key: Hashable, secrets: Secrets, usable: Callable[[T], bool] = lambda _: True) -> T | None:
        """Remove and return a cached object of this process, if any. One that is not `usable` is closed.

        The key contains secrets as they were given, by reference. `secrets` are the current properties of the client:
        an object with other ones is closed, because nothing will request it again.
        """
        with self._lock:
            known, kept = self._kept.pop((os.getpid(), key), (secrets, None))
        if kept is None or (known == secrets and usable(kept)):
            return kept
        kept.shut()
        return None

    def keep(self, key: Hashable, secrets: Secrets, closed: T) -> None:
        """Cache an object. A second one with the same key is closed, and so is the oldest one if the cache is full."""
        me = os.getpid()
        with self._lock:
            _, kept = self._kept.setdefault((me, key), (secrets, closed))
            # Objects cached by a parent process have no threads here, and are ignored.
            own = [known for known in self._kept if known[0] == me]
            spent = [self._kept.pop(known)[1] for known in own[: max(0, len(own) - self.most)]]
        if kept is not closed:
            spent.append(closed)
        for old in spent:
            old.shut()

    def clear(self) -> list[T]:
        """Remove and return all cached objects of this process."""
        with self._lock:
            own = [known for known in self._kept if known[0] == os.getpid()]
            return [self._kept.pop(known)[1] for known in own]

    def all(self) -> list[T]:
        """Return all cached objects of this process."""
        with self._lock:
            return [kept for (pid, _), (_, kept) in self._kept.items() if pid == os.getpid()]
