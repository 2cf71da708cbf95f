"""Clients of services, kept by a process: making one takes longer than many a task."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Hashable
from typing import Any, Generic, Protocol, TypeVar

_MOST = 8


class _Access(Hashable, Protocol):
    """How a service is reached. Two that are equal share a client."""

    def make(self) -> Any: ...


A = TypeVar("A", bound=_Access)


class ProcessClients(Generic[A]):
    """The clients of this process, shared by its threads and tasks, each made when it is first asked for.

    Few are kept, those used last: what each task unpickles anew may count as another access. A child process makes its
    own.
    """

    def __init__(self, most: int = _MOST) -> None:
        """Keep nothing yet, and never more than so many."""
        self._most = most
        self._after_fork()
        os.register_at_fork(after_in_child=self._after_fork)

    def _after_fork(self) -> None:
        """Begin anew: the parent's connections are the parent's, and its lock may be held."""
        self._lock = threading.Lock()
        self._made: OrderedDict[A, Any] = OrderedDict()

    def get(self, access: A) -> Any:
        """Return the client of an access. What its `make` raises is raised, and the next call tries again."""
        with self._lock:  # boto3's sessions may not be made in two threads at once
            client = self._made.get(access)
            if client is None:
                client = self._made[access] = access.make()
            self._made.move_to_end(access)
            if len(self._made) > self._most:
                self._made.popitem(last=False)
            return client

    def drop(self, access: A, client: Any) -> None:
        """Have the next call make a new client in place of this one, unless that has happened already."""
        with self._lock:
            if self._made.get(access) is client:
                del self._made[access]
