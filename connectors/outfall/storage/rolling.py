"""The bounds at which a file or an object is closed and the next one begins."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta


@dataclass(frozen=True)
class RollBounds:
    """The bounds of a file or an object. Without bounds, nothing is closed early."""

    size: int | None = None
    """Size in bytes."""
    interval: timedelta | None = None
    rows: int | None = None
    largest: int | None = None
    """The store's limit of an object, in bytes, which applies without any other bound."""
    clock: Callable[[], float] = time.time
    """Returns seconds since 1970, because ages are compared across processes and restarts."""

    @property
    def bounded(self) -> bool:
        """Whether the options set a bound."""
        return not (self.size is None and self.interval is None and self.rows is None)

    def due(self, size: int, since: float, rows: int = 0) -> bool:
        """Return whether a file has reached a bound. An empty file never has.

        `size` is in bytes. `since` is the time of the file's creation or of its oldest row, in seconds since 1970.
        `rows` is 0 if they are not counted.
        """
        if size == rows == 0:
            return False
        return (
            self.full(size)
            or (self.rows is not None and rows >= self.rows)
            or (self.interval is not None and self.clock() - since >= self.interval.total_seconds())
        )

    def full(self, size: int) -> bool:
        """Return whether a file has reached a bound of its size."""
        return any(bound is not None and size >= bound for bound in (self.size, self.largest))

    def room(self, rows: int) -> int | None:
        """Return how many more rows fit into a file with `rows` rows; `None` for any number."""
        return None if self.rows is None else max(0, self.rows - rows)

    def fits(self, rows: int) -> bool:
        """Return whether a file may have `rows` rows."""
        return self.rows is None or rows <= self.rows
