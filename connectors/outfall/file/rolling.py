"""When a file is closed and the next one begun."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

from outfall.file.options import FileOptions


@dataclass(frozen=True)
class Rolling:
    """The bounds of a file; without any it is never closed before its time."""

    size: int | None = None
    """Bytes."""
    age: float | None = None
    """Seconds."""
    clock: Callable[[], float] = time.time
    """Seconds since 1970: ages are compared across processes and restarts."""

    @classmethod
    def of(cls, options: FileOptions) -> Self:
        """Take the bounds from a sink's options."""
        interval = options.roll_interval
        return cls(options.roll_bytes, interval.total_seconds() if interval else None)

    @property
    def ever(self) -> bool:
        """Whether there is a bound at all."""
        return self.size is not None or self.age is not None

    def due(self, size: int, since: float) -> bool:
        """Tell whether a file of `size` bytes, begun at `since`, is to be closed before the next rows."""
        if size == 0:
            return False
        return (self.size is not None and size >= self.size) or (
            self.age is not None and self.clock() - since >= self.age
        )
