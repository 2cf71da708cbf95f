"""One step, as its log is at one moment."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Literal

from outfall.contexts import is_peak
from outfall.errors import OutfallError, RecordError
from outfall.protocol.clock import SystemClock
from outfall.protocol.heartbeat import Heartbeat, Phase, read_heartbeats
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
"""What the newest entry says. `begun`: an epoch is being written, or was when its driver ended; `recorded`: it is
durable and not published; `committing`: some of it may be published; `abandoned`: it is to be written anew.
Two are of a log that says nothing: `damaged`, and `unreadable` when the store failed, which may pass."""

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
    """One step, as its log was at one moment."""

    step: str
    state: State
    epoch: int | None = None
    """The epoch that the state is of; `None` where none is known."""
    completed: int | None = None
    """The last completed epoch."""
    completed_at: datetime | None = None
    """When it was completed, by the clock of its driver, UTC."""
    phase: Phase | None = None
    """What an open epoch is in: `tasks` until it is recorded, then `commit`. `None` while none is open."""
    opened_at: datetime | None = None
    """When the open epoch began, UTC."""
    changed_at: datetime | None = None
    """When the newest entry was made, UTC."""
    incarnation: str | None = None
    generation: int = 0
    restarts: int = 0
    """How often an epoch had to be begun again, the open one included."""
    retrying: bool = False
    """Whether driver or tasks try something again: `heartbeats` says what."""
    heartbeats: list[Heartbeat] = field(default_factory=list)
    """What is tried again, or was within the last 90 seconds; what began first comes first."""
    sink: str | None = None
    """The sink's kind."""
    target: str | None = None
    children: dict[str, str] = field(default_factory=dict)
    """The targets of the sinks that the sink consists of, by name."""
    guarantee: str | None = None
    """That of the last completed epoch; `NONE` once rows were dropped."""
    totals: dict[str, int] = field(default_factory=dict)
    """What was counted since the first epoch: see `outfall.recovery.entries.Completed.totals`."""
    peaks: dict[str, int] = field(default_factory=dict)
    """The counters of the last completed epoch that are no sums: see `outfall.contexts.Metrics`."""
    recorded_rows: int = 0
    """Rows that are recorded and not wholly published."""
    dropped_rows: int = 0
    """Rows that were dropped since the first epoch, as the query's `CommitPolicy` said."""
    dropped_committables: int = 0
    outfall: str | None = None
    """The version that began the newest epoch."""
    query_id: str | None = None
    driver: str | None = None
    """Host and process id of the newest driver."""
    states: int = 0
    """How many states are recorded: of parts and of writers."""
    rows_held: int = 0
    """Rows that the sink holds back."""
    held_since: datetime | None = None
    moved_to: str | None = None
    """Where the step goes on instead."""
    problem: str | None = None
    """Why the log cannot be read."""
    epochs: list[EpochSummary] = field(default_factory=list)
    """The last ones, oldest first."""


class StepWatch:
    """Looks at one step again and again, and reads its entries only where there are others than before."""

    def __init__(self, recovery: RecoveryConfig, step_id: str) -> None:
        """Look at nothing yet."""
        self._recovery = recovery
        self._step_id = step_id
        self._numbers: list[int] | None = None
        self._status = StepStatus(step_id, "unreadable")

    def look(self) -> StepStatus:
        """Return the step as it is now, without its epochs.

        Of one that cannot be read the state is `damaged` or `unreadable`, and all else as it was when it could be.
        """
        try:
            with closing(self._recovery.open_read_only(self._step_id)) as log:
                numbers = log.numbers()
                if numbers != self._numbers:
                    self._status, self._numbers = _status(log, self._step_id, last=0, before=None), numbers
                else:
                    self._status = _with_heartbeats(self._status, log)
            return self._status
        except RecordError as error:
            return self._troubled("damaged", str(error))
        except OutfallError as error:
            return self._troubled("unreadable", str(error))
        except Exception as error:  # a store's client: whatever it raises, the next look may succeed
            return self._troubled("unreadable", without_credentials(f"{type(error).__name__}: {error}"))

    def _troubled(self, state: State, problem: str) -> StepStatus:
        self._numbers = None
        return replace(self._status, state=state, problem=problem)


def look(recovery: RecoveryConfig, step_id: str, *, last: int, before: int | None = None) -> StepStatus:
    """Read a step's log as `read_status` does; one that cannot be read has the state `damaged` or `unreadable`."""
    try:
        return read_status(recovery, step_id, last=last, before=before)
    except RecordError as error:
        return StepStatus(step_id, "damaged", problem=str(error))
    except OutfallError as error:
        return StepStatus(step_id, "unreadable", problem=str(error))


def read_status(recovery: RecoveryConfig, step_id: str, *, last: int, before: int | None = None) -> StepStatus:
    """Read a step's log. Writes nothing; safe while the query runs.

    Args:
        recovery: where the log is.
        step_id: the step's id.
        last: how many of the last epochs to return. With 0 only the newest entries are read.
        before: return only epochs before this one, so that older ones can be paged through.

    Raises:
        RecordError: an entry is damaged or of a newer format.
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
        opened_at=begin.time if begin and phase else None,
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
        rows_held=view.held.rows,
        held_since=view.held.oldest,
        moved_to=view.moved_to,
        epochs=_epochs(entries, last, before),
    )
    return _with_heartbeats(status, log)


def _newest(journal: Journal) -> list[Entry]:
    journal.read()
    return journal.entries


def _with_heartbeats(status: StepStatus, log: RecoveryLog) -> StepStatus:
    found = read_heartbeats(log, generation=status.generation, now=datetime.now(UTC))
    return replace(status, heartbeats=found, retrying=bool(found))


def _epochs(entries: Sequence[Entry], last: int, before: int | None) -> list[EpochSummary]:
    found = [epoch for epoch in summaries(entries) if before is None or epoch.epoch < before]
    return found[-last:] if last else []


def _children(begin: Begin) -> dict[str, str]:
    return {name: without_credentials(child.target or child.sink) for name, child in begin.children.items()}


def _recorded(unfinished: Prepared | None, completed: int | None) -> int | None:
    return completed if unfinished is None else unfinished.epoch
