"""The state of one step, read from its log."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Literal

from outfall.contexts import is_peak
from outfall.errors import OutfallError, RecordError
from outfall.metrics.driver_process import DriverProcess
from outfall.protocol.clock import SystemClock
from outfall.protocol.failure import Failure, ends_the_query, failures_in
from outfall.protocol.heartbeat import Heartbeat, Phase, heartbeats_in, stored_beside
from outfall.protocol.journal import Journal
from outfall.recovery.entries import (
    Abandoned,
    Begin,
    Committed,
    Committing,
    Completed,
    Entry,
    Moved,
    Prepared,
    Repaired,
    Skipped,
)
from outfall.recovery.history import EpochSummary, summaries
from outfall.recovery.log import RecoveryConfig, RecoveryLog
from outfall.redaction import without_credentials

State = Literal["empty", "begun", "recorded", "committing", "completed", "abandoned", "moved", "damaged", "unreadable"]
"""State by the newest entry. `begun`: an epoch is being written, or its driver has ended. `recorded`: the epoch is
durable but not published. `committing`: parts of it may be published. `abandoned`: it must be written again. Two states
have no entry: `damaged`, and `unreadable` if the store failed, perhaps temporarily."""

_STATES: dict[type, State] = {
    Begin: "begun",
    Prepared: "recorded",
    Committing: "committing",
    Committed: "committing",
    Completed: "completed",
    Skipped: "completed",
    Abandoned: "abandoned",
    Moved: "moved",
}

_PHASES: dict[State, Phase] = {"begun": "tasks", "abandoned": "tasks", "recorded": "commit", "committing": "commit"}


@dataclass(frozen=True)
class StepStatus:
    """The state of one step at one moment."""

    step: str
    state: State
    epoch: int | None = None
    """The epoch of the state; `None` if unknown."""
    completed: int | None = None
    """The last completed epoch."""
    completed_at: datetime | None = None
    """Time of its completion by the driver's clock, UTC."""
    phase: Phase | None = None
    """Phase of the open epoch: `tasks` until it is recorded, then `commit`. `None` without an open epoch."""
    opened_at: datetime | None = None
    """The first BEGIN of the open epoch, UTC: a restart does not change it."""
    changed_at: datetime | None = None
    """Time of the newest entry, UTC."""
    incarnation: str | None = None
    generation: int = 0
    restarts: int = 0
    """Number of restarted epochs, including the open one."""
    retrying: bool = False
    """Whether the driver or tasks retry an operation; see `heartbeats`."""
    heartbeats: list[Heartbeat] = field(default_factory=list)
    """Retries within the last 90 seconds, in order of their start."""
    last_error: Failure | None = None
    """The last error since the last completed epoch. One with a reason is preferred."""
    failed: bool = False
    """Whether an error has ended the query or job, and no entry is newer."""
    sink: str | None = None
    """The sink's kind."""
    target: str | None = None
    children: dict[str, str] = field(default_factory=dict)
    """Child sink → its target."""
    guarantee: str | None = None
    """Guarantee of the last completed epoch; `NONE` after rows were dropped."""
    totals: dict[str, int] = field(default_factory=dict)
    """Counters since the first epoch; see `outfall.recovery.entries.Completed.totals`."""
    peaks: dict[str, int] = field(default_factory=dict)
    """Peak counters of the last completed epoch; see `outfall.contexts.Metrics`."""
    recorded_rows: int = 0
    """Rows that are recorded but not fully published."""
    dropped_rows: int = 0
    """Rows dropped since the first epoch by the query's `CommitPolicy`."""
    dropped_committables: int = 0
    outfall: str | None = None
    """Outfall version of the newest epoch."""
    query_id: str | None = None
    driver: str | None = None
    """Host and process id of the newest driver."""
    states: int = 0
    """Number of recorded states of parts and writers."""
    buffered_rows: int = 0
    """Rows that the sink has buffered."""
    held_since: datetime | None = None
    moved_to: str | None = None
    """URL of the store where the step continues."""
    problem: str | None = None
    """Why the log cannot be read."""
    epochs: list[EpochSummary] = field(default_factory=list)
    """The last epochs, oldest first."""


class StepWatch:
    """Reads one step repeatedly, and decodes its entries only if there are others, or after some time.

    Entries never change, except by damage.
    """

    def __init__(self, recovery: RecoveryConfig, step_id: str, *, again: float = 60.0) -> None:
        """Create a watch without reading.

        Args:
            recovery: location of the log.
            step_id: the step id.
            again: seconds after which entries are decoded again.
        """
        self._again = again
        self._recovery = recovery
        self._step_id = step_id
        self._driver = DriverProcess()
        self._numbers: list[int] | None = None
        self._decoded = 0.0
        self._status = StepStatus(step_id, "unreadable")

    def look(self) -> StepStatus:
        """Return the current state of the step, without its epochs.

        It has also failed if its driver, which ran on this host, has ended with an epoch open.

        If the log cannot be read, the state is `damaged` or `unreadable`, and all other fields keep their last values.
        """
        try:
            with closing(self._recovery.open_read_only(self._step_id)) as log:
                numbers = log.numbers()
                now = time.monotonic()
                if numbers != self._numbers or now - self._decoded >= self._again:
                    self._status, self._numbers = _status(log, self._step_id, last=0, before=None), numbers
                    self._decoded = now
                else:
                    self._status = _with_heartbeats(self._status, log)
            ended = self._status.phase is not None and self._driver.has_ended(self._status.driver)
            return replace(self._status, failed=True) if ended else self._status
        except RecordError as error:
            return self._troubled("damaged", str(error))
        except OutfallError as error:
            return self._troubled("unreadable", str(error))
        except Exception as error:  # any error of a store's client may be temporary
            return self._troubled("unreadable", without_credentials(f"{type(error).__name__}: {error}"))

    def _troubled(self, state: State, problem: str) -> StepStatus:
        self._numbers = None
        return replace(self._status, state=state, problem=problem)


def look(recovery: RecoveryConfig, step_id: str, *, last: int, before: int | None = None) -> StepStatus:
    """Read a step like `read_status`. Errors become the state `damaged` or `unreadable`."""
    try:
        return read_status(recovery, step_id, last=last, before=before)
    except RecordError as error:
        return StepStatus(step_id, "damaged", problem=str(error))
    except OutfallError as error:
        return StepStatus(step_id, "unreadable", problem=str(error))


def read_status(recovery: RecoveryConfig, step_id: str, *, last: int, before: int | None = None) -> StepStatus:
    """Read a step's log. Writes nothing; safe while the query runs.

    Args:
        recovery: location of the log.
        step_id: the step id.
        last: number of epochs to return. With 0, only the newest entries are read.
        before: return only epochs before this one, for paging.

    Raises:
        RecordError: an entry is damaged or has a newer format.
        TransientError, ConfigurationError: the store cannot be read.
    """
    with closing(recovery.open_read_only(step_id)) as log:
        return _status(log, step_id, last, before)


def _status(log: RecoveryLog, step_id: str, last: int, before: int | None) -> StepStatus:
    journal = Journal(log, step_id, SystemClock())
    entries = journal.read_all() if last else _newest(journal)
    if not entries:
        return StepStatus(step_id, "empty")
    begin, view = journal.view.begin, journal.view
    state = _STATES[next(type(entry) for entry in reversed(entries) if not isinstance(entry, Repaired))]
    phase = _PHASES.get(state)
    completed = next((entry for entry in reversed(entries) if isinstance(entry, Completed)), None)
    status = StepStatus(
        step=step_id,
        state=state,
        epoch=view.open_epoch if view.open_epoch is not None else _recorded(view.unfinished, view.completed),
        completed=view.completed,
        completed_at=view.completed_time,
        phase=phase,
        opened_at=view.opened_at if phase else None,
        changed_at=entries[-1].time,
        incarnation=view.incarnation,
        generation=view.generation,
        restarts=view.totals.get("restarts", 0) + len(view.lost),
        sink=None if begin is None else begin.sink,
        target=None if begin is None or begin.target is None else without_credentials(begin.target),
        children={} if begin is None else _children(begin),
        guarantee=(completed.guarantee or None) if completed else None,
        totals=dict(view.totals),
        peaks={name: peak for name, peak in completed.counts.items() if is_peak(name)} if completed else {},
        recorded_rows=view.unfinished.counts.get("rows", 0) if view.unfinished else 0,
        dropped_rows=view.totals.get("dropped_rows", 0),
        dropped_committables=view.totals.get("dropped_committables", 0),
        outfall=None if begin is None else begin.outfall,
        query_id=view.query_id,
        driver=None if begin is None else begin.driver,
        states=len(view.states) + len(view.writer_states),
        buffered_rows=view.buffered.rows,
        held_since=view.buffered.oldest,
        moved_to=view.moved_to,
        epochs=_epochs(entries, last, before),
    )
    return _with_heartbeats(status, log)


def _newest(journal: Journal) -> list[Entry]:
    journal.read()
    return journal.entries


def _with_heartbeats(status: StepStatus, log: RecoveryLog) -> StepStatus:
    stored = stored_beside(log)
    found = heartbeats_in(stored, generation=status.generation, now=datetime.now(UTC))
    since = status.completed_at
    # A query that was refused, because the step is that of another one, says nothing of that.
    own = [each for each in failures_in(stored) if each.query_id is None or each.query_id == status.query_id]
    failures = [each for each in own if since is None or each.at > since]
    changed = status.changed_at
    return replace(
        status,
        heartbeats=found,
        retrying=bool(found),
        last_error=max(failures, key=lambda each: (bool(each.error), each.at), default=None),
        failed=ends_the_query([each for each in failures if changed is None or each.at >= changed]),
    )


def _epochs(entries: Sequence[Entry], last: int, before: int | None) -> list[EpochSummary]:
    found = [epoch for epoch in summaries(entries) if before is None or epoch.epoch < before]
    return found[-last:] if last else []


def _children(begin: Begin) -> dict[str, str]:
    return {name: without_credentials(child.target or child.sink) for name, child in begin.children.items()}


def _recorded(unfinished: Prepared | None, completed: int | None) -> int | None:
    return completed if unfinished is None else unfinished.epoch
