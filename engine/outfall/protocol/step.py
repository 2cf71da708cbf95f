"""One step on the driver: its sink, its log, its options, and the positions of its runs."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from outfall.capability_checks import ResolvedSink
from outfall.protocol.clock import Clock
from outfall.protocol.commit_retry import CommitPolicy
from outfall.protocol.failure import DRIVER, recorded
from outfall.protocol.heartbeat import Phase, heartbeat
from outfall.protocol.journal import Journal, KnownEntries
from outfall.recovery.log import RecoveryConfig
from outfall.telemetry import EpochTelemetry

MakeSourceDurable = Callable[[int | None, bool], None]
"""Takes the batch, `None` if only the tasks learn it, and whether this is the first call since the log began or was
written by another release, which may not have synced earlier batches."""


@dataclass(frozen=True)
class EpochOptions:
    """How the epochs of a step run."""

    commit: CommitPolicy = field(default_factory=CommitPolicy)
    adopt_checkpoint: bool = False
    """Whether an empty log may begin at any batch id."""
    open_before: int | None = None
    """The batch that Spark had begun and not committed before this run, which an empty log may not begin with."""
    any_later: bool = False
    """Whether epochs may skip numbers, as in batch jobs with an epoch."""
    end_of_input: bool = False
    """Whether each epoch is the end of the input, so that sinks deliver buffered rows, as in batch jobs."""
    moved: bool = False
    """Whether targets may have other names than recorded: see `outfall.protocol.moving`."""
    worker_count: int = 0
    key: str | None = None
    """The routing column, if there is one."""
    columns: str = ""
    """A digest of the columns of the rows; empty if unknown."""
    started: float | None = None
    """The Unix time at which this run of the query was started; `None` if unknown."""
    final: bool = False
    """Whether the recovery data is deleted after this epoch, as in batch jobs that are never resumed."""
    driver_process: int = field(default_factory=os.getpid)
    """The id of a process on this host that lives as long as the driver."""
    make_source_durable: MakeSourceDurable | None = None
    """Syncs the engine's record of a batch, so that it can replay the same batch after any crash. Called before BEGIN,
    after the log was read."""


@dataclass(frozen=True)
class RunPosition:
    """The position of a run of a query in a step's log."""

    run: str
    last: int
    """The number of the newest entry that this run has read or written."""
    done: int | None
    """The last epoch that this run completed or skipped."""


class RunRegistry:
    """What a process keeps between epochs: the last entries of each step, and positions by location, step and run.

    A run that was overtaken is recognized when it resumes.

    Without the registry, a driver that was overtaken while suspended would take the newer driver's entries for its own
    and continue. With it, the older driver fails, whichever resumes first.
    """

    def __init__(self) -> None:
        """Start without positions."""
        self._positions: dict[tuple[str, str, str], RunPosition] = {}
        self._reported: dict[tuple[str, str, str, str], int] = {}
        self._buffered: dict[tuple[str, str], int] = {}
        self._entries: dict[tuple[str, str], KnownEntries] = {}
        self._lock = threading.Lock()

    def recall(self, url: str, step_id: str, run: str) -> RunPosition | None:
        """Return the position of this run."""
        with self._lock:
            return self._positions.get((_place(url), step_id, run))

    def remember(self, url: str, step_id: str, position: RunPosition) -> None:
        """Replace the position of the run."""
        with self._lock:
            self._positions[(_place(url), step_id, position.run)] = position

    def recall_entries(self, url: str, step_id: str) -> KnownEntries:
        """Return the entries of a step that this process has read or appended last."""
        with self._lock:
            return self._entries.get((_place(url), step_id), {})

    def remember_entries(self, url: str, step_id: str, known: KnownEntries) -> None:
        """Replace the known entries of a step. Those of the step that was used least recently are forgotten."""
        with self._lock:
            self._entries.pop((_place(url), step_id), None)
            self._entries[_place(url), step_id] = known
            if len(self._entries) > KNOWN_STEPS:
                del self._entries[next(iter(self._entries))]

    def reports(self, url: str, step_id: str, run: str, topic: str, period: int) -> bool:
        """Return whether this run should log a topic now: the first time, and then once per period."""
        with self._lock:
            key = url, step_id, run, topic
            before, self._reported[key] = self._reported.get(key), period
            return before != period

    def remember_buffered(self, url: str, step_id: str, rows: int) -> None:
        """Replace the number of rows that a step has buffered."""
        with self._lock:
            self._buffered[_place(url), step_id] = rows

    def buffered(self) -> list[tuple[str, str, int]]:
        """Return the steps with buffered rows: location, step, rows."""
        with self._lock:
            return [(url, step_id, rows) for (url, step_id), rows in self._buffered.items() if rows]


KNOWN_STEPS = 32
"""The number of steps whose entries a process keeps."""

PROCESS_REGISTRY = RunRegistry()
"""What this process keeps."""


@dataclass(frozen=True)
class Step:
    """One step during one epoch on the driver."""

    resolved: ResolvedSink
    """Its sink, and what it can do."""
    step_id: str
    recovery: RecoveryConfig
    """The location of its log."""
    journal: Journal
    """Its log."""
    options: EpochOptions
    clock: Clock
    run: str | None
    """Identifies this run of the query within the process; `None` if no position is remembered between epochs."""
    registry: RunRegistry
    telemetry: EpochTelemetry

    @property
    def sink(self) -> Any:
        """The sink itself."""
        return self.resolved.sink

    @property
    def capabilities(self) -> frozenset[type]:
        """What the sink can do."""
        return self.resolved.capabilities

    def heartbeat(self, phase: Phase) -> AbstractContextManager[None]:
        """Write a heartbeat of the driver during retries. See `outfall.protocol.heartbeat`."""

        def place() -> tuple[int, int | None]:
            view = self.journal.view
            return view.generation, view.unfinished.epoch if view.unfinished else view.open_epoch

        return heartbeat(self.recovery, self.step_id, "driver", phase, place)

    def recorded(self, query_id: str | None = None) -> AbstractContextManager[None]:
        """Store an error of the driver as the last one of the step. See `outfall.protocol.failure`."""
        if self.options.final:
            return nullcontext()  # the log is deleted
        return recorded(
            self.recovery, self.step_id, DRIVER, query_id=query_id, readable=lambda: self.journal.view.last > 0
        )

    def position(self) -> RunPosition | None:
        """Return the position of this run in the log; `None` before its first epoch."""
        return None if self.run is None else self.registry.recall(self.recovery.url(), self.step_id, self.run)

    def remember(self, done: int | None) -> None:
        """Remember the end of the log, as last read or written, as the position of this run.

        `done` is the batch that this run has just completed or skipped.
        """
        if self.run is not None:
            position = RunPosition(self.run, self.journal.view.last, done)
            self.registry.remember(self.recovery.url(), self.step_id, position)


def _place(url: str) -> str:
    """Return a unique name of a location: two spellings of a path are one log."""
    scheme, separator, path = url.rpartition("://")
    return f"{scheme}{separator}{os.path.realpath(path)}" if path.startswith("/") else url
