"""Clients that were closed and are kept, connected, for who opens the same next."""

from __future__ import annotations

import os
import threading
from collections.abc import Hashable, Mapping
from typing import Generic, Protocol, TypeVar

Secrets = Mapping[str, str]


class CanShut(Protocol):
    """What is kept."""

    def shut(self) -> None:
        """Let go of its connections and threads. It is not used again."""


T = TypeVar("T", bound=CanShut)


class Idle(Generic[T]):
    """Keeps what was closed, with its connections and what it knows, for who opens it next.

    Each epoch opens it anew. To connect and to have a producer registered would take the better part of a second each
    time.
    """

    def __init__(self, most: int) -> None:
        """Keep nothing yet, and never more than so many."""
        self.most = most
        self._kept: dict[tuple[int, Hashable], tuple[Secrets, T]] = {}
        self._lock = threading.Lock()

    def take(self, key: Hashable, secrets: Secrets) -> T | None:
        """Return what was kept in this process, if anything was; it is the caller's then.

        Args:
            key: what it is of. Secrets stand in it as they were given, by reference.
            secrets: the client's properties as they are now. What has others is shut: nobody will ask for it again.
        """
        with self._lock:
            known, kept = self._kept.pop((os.getpid(), key), (secrets, None))
        if kept is None or known == secrets:
            return kept
        kept.shut()
        return None

    def keep(self, key: Hashable, secrets: Secrets, closed: T) -> None:
        """Keep something. A second one of its kind is shut, and so is the one kept longest when there are too many."""
        me = os.getpid()
        with self._lock:
            _, kept = self._kept.setdefault((me, key), (secrets, closed))
            # What a parent process kept has no threads here, and is left alone.
            own = [known for known in self._kept if known[0] == me]
            spent = [self._kept.pop(known)[1] for known in own[: max(0, len(own) - self.most)]]
        if kept is not closed:
            spent.append(closed)
        for old in spent:
            old.shut()

    def clear(self) -> list[T]:
        """Return what was kept in this process, and keep it no longer."""
        with self._lock:
            own = [known for known in self._kept if known[0] == os.getpid()]
            return [self._kept.pop(known)[1] for known in own]

    def all(self) -> list[T]:
        """Return what is kept in this process now."""
        with self._lock:
            return [kept for (pid, _), (_, kept) in self._kept.items() if pid == os.getpid()]
