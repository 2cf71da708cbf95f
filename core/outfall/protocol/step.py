"""One step on the driver: what is written, where it is recorded, how epochs are run, and what its runs have done."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from outfall.protocol.clock import Clock
from outfall.protocol.commit_retry import CommitPolicy
from outfall.protocol.heartbeat import Phase, heartbeat
from outfall.protocol.journal import Journal
from outfall.recovery.log import RecoveryConfig
from outfall.telemetry import EpochTelemetry

MakeSourceDurable = Callable[[int | None, bool], None]
"""Takes the batch, `None` where only the tasks learn it, and whether this is the first time since the log began or was
written by another release, which may have left earlier batches as they were."""


@dataclass(frozen=True)
class EpochOptions:
    """How a step's epochs are run."""

    commit: CommitPolicy = field(default_factory=CommitPolicy)
    adopt_checkpoint: bool = False
    """Whether an empty log may begin at any batch id."""
    any_later: bool = False
    """Whether epochs may leave numbers out, as in batch jobs that name their epoch."""
    end_of_input: bool = False
    """Whether each epoch is the last for now, so that sinks that hold rows back deliver them, as in batch jobs."""
    worker_count: int = 0
    key: str | None = None
    """The column that says which part a row belongs to, where there is one: for sinks that stand on it."""
    started: float | None = None
    """When this run of the query was started, in seconds since 1970; `None` where that is not known."""
    final: bool = False
    """Whether the recovery data is thrown away after this epoch, as by batch jobs that are never resumed."""
    make_source_durable: MakeSourceDurable | None = None
    """Makes durable what the engine has recorded of a batch, so that it can bring the same one after any crash. Called
    before BEGIN, once the log was read."""


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


PROCESS_REGISTRY = RunRegistry()
"""What this process remembers of its runs."""


@dataclass(frozen=True)
class Step:
    """One step, as a driver holds it for one epoch."""

    sink: Any
    step_id: str
    recovery: RecoveryConfig
    """Where its log is."""
    journal: Journal
    """Its log."""
    options: EpochOptions
    clock: Clock
    run: str | None
    """Identifies this run of the query within the process; `None` where nothing is to be remembered between epochs."""
    registry: RunRegistry
    telemetry: EpochTelemetry

    def heartbeat(self, phase: Phase) -> AbstractContextManager[None]:
        """Write a heartbeat of the driver while something is tried again: see `outfall.protocol.heartbeat`."""

        def place() -> tuple[int, int | None]:
            view = self.journal.view
            return view.generation, view.unfinished.epoch if view.unfinished else view.open_epoch

        return heartbeat(self.recovery, self.step_id, "driver", phase, place)

    def position(self) -> RunPosition | None:
        """Return where this run stands in the log; `None` before its first epoch."""
        return None if self.run is None else self.registry.recall(self.recovery.url(), self.step_id, self.run)

    def remember(self, done: int | None) -> None:
        """Remember that this run stands at the log's end as it was last read or written.

        Args:
            done: the batch that it has completed or skipped just now.
        """
        if self.run is not None:
            position = RunPosition(self.run, self.journal.view.last, done)
            self.registry.remember(self.recovery.url(), self.step_id, position)


def _place(url: str) -> str:
    """Name a location by what it is: two spellings of a path are one log."""
    scheme, separator, path = url.rpartition("://")
    return f"{scheme}{separator}{os.path.realpath(path)}" if path.startswith("/") else url
