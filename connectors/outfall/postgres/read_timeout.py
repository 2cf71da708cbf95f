"""A connection that gives a silent server up.

A host that vanishes sends no reset, and a proxy may swallow what it should pass: then a reply never comes, and nobody
keeps the bounds that are the server's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from typing import Any, TypeVar

import psycopg

T = TypeVar("T")


class WatchedConnection(psycopg.Connection[tuple[Any, ...]]):
    """Closes itself when the server has said nothing for longer than `patience` while it was waited for."""

    patience: float | None = None
    """In seconds; `None` to wait for ever."""

    now: Callable[[], float] = staticmethod(time.monotonic)
    """The clock."""

    def wait(self, gen: Generator[Any, Any, T], *args: Any, **options: Any) -> T:
        """Wait for the server, as psycopg does in slices of a tenth of a second.

        Raises:
            psycopg.OperationalError: the server said nothing; whether it has done its work is unknown.
        """
        if self.patience is not None:
            gen = watched(gen, self.patience, self.close, self.now)
        return super().wait(gen, *args, **options)


def watched(
    waiting: Generator[Any, Any, T],
    patience: float,
    give_up: Callable[[], None],
    now: Callable[[], float],
) -> Generator[Any, Any, T]:
    """Pass one of psycopg's waits on, unless nothing is ready for longer than `patience`.

    Args:
        waiting: yields what it waits for, and is sent what is ready: 0 for nothing yet.
        patience: in seconds.
        give_up: called before the error is raised.
        now: the clock.
    """
    heard = now()
    try:
        wanted = next(waiting)
        while True:
            ready = yield wanted
            if ready:
                heard = now()
            elif now() - heard > patience:
                give_up()
                raise psycopg.OperationalError(f"the server has said nothing for {patience:g} s")
            wanted = waiting.send(ready)
    except StopIteration as end:
        result: T = end.value
        return result
