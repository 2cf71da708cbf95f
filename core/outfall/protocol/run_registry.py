"""What one driver process remembers of the steps it runs."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass


@dataclass(frozen=True)
class RunPosition:
    """Where a run of a query stands in a step's log."""

    run: str
    last: int
    """Number of the newest entry that this run has read or written."""
    done: int | None
    """The last epoch that this run completed or skipped."""


class RunRegistry:
    """Positions by recovery location, step and run: a run that was overtaken is still known when it wakes.

    Without it a driver that was overtaken while it slept would read the newer one's entries as its own past and go on;
    with it the older driver loses, whichever wakes first.
    """

    def __init__(self) -> None:
        """Remember nothing yet."""
        self._positions: dict[tuple[str, str, str], RunPosition] = {}
        self._warned: dict[tuple[str, str, str], int] = {}
        self._lock = threading.Lock()

    def recall(self, url: str, step_id: str, run: str) -> RunPosition | None:
        """Return this run's position; another run's is of no use."""
        with self._lock:
            return self._positions.get((_place(url), step_id, run))

    def remember(self, url: str, step_id: str, position: RunPosition) -> None:
        """Keep the position in place of the run's former one."""
        with self._lock:
            self._positions[(_place(url), step_id, position.run)] = position

    def warns(self, url: str, step_id: str, run: str, period: int) -> bool:
        """Whether this run is to warn of something now: at first, and then once in each period of time."""
        with self._lock:
            before, self._warned[url, step_id, run] = self._warned.get((url, step_id, run)), period
            return before != period


def _place(url: str) -> str:
    """Name a location by what it is: two spellings of a path are one log."""
    scheme, separator, path = url.rpartition("://")
    return f"{scheme}{separator}{os.path.realpath(path)}" if path.startswith("/") else url


PROCESS_REGISTRY = RunRegistry()
"""The memory of this process."""
