"""When a file or an object is closed and the next one begun."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta


@dataclass(frozen=True)
class RollBounds:
    """The bounds that were asked for; without any of them nothing is closed before its time."""

    size: int | None = None
    """Bytes."""
    interval: timedelta | None = None
    rows: int | None = None
    largest: int | None = None
    """Bytes that the store takes in one object: a bound that nobody asked for."""
    clock: Callable[[], float] = time.time
    """Seconds since 1970: ages are compared across processes and restarts."""

    @property
    def bounded(self) -> bool:
        """Whether a bound was asked for."""
        return not (self.size is None and self.interval is None and self.rows is None)

    def due(self, size: int, since: float, rows: int = 0) -> bool:
        """Tell whether a file is to be closed. One that holds nothing never is.

        Args:
            size: its bytes.
            since: when it was begun, or its oldest row came, in seconds since 1970.
            rows: its rows, where they are counted.
        """
        if size == rows == 0:
            return False
        return (
            any(bound is not None and size >= bound for bound in (self.size, self.largest))
            or (self.rows is not None and rows >= self.rows)
            or (self.interval is not None and self.clock() - since >= self.interval.total_seconds())
        )

    def room(self, rows: int) -> int | None:
        """How many rows a file takes that has some already; `None` for any number."""
        return None if self.rows is None else max(0, self.rows - rows)

    def fits(self, rows: int) -> bool:
        """Whether a file may have so many rows."""
        return self.rows is None or rows <= self.rows
