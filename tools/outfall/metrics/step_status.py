"""One step, as its log is at one moment."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from outfall.errors import OutfallError, RecordError
from outfall.protocol.clock import SystemClock
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
from outfall.recovery.log import RecoveryConfig
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


@dataclass(frozen=True)
class StepStatus:
    """One step, as its log was at one moment."""

    step: str
    state: State
    epoch: int | None = None
    """The epoch that the state is of; `None` where none is known."""
    completed: int | None = None
    """The last completed epoch."""
    changed_at: datetime | None = None
    """When the newest entry was made, UTC."""
    incarnation: str | None = None
    generation: int = 0
    sink: str | None = None
    """The sink's kind."""
    target: str | None = None
    children: dict[str, str] = field(default_factory=dict)
    """The targets of the sinks that the sink consists of, by name."""
    guarantee: str | None = None
    """That of the last completed epoch; `NONE` once rows were dropped."""
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
        last: how many of the last epochs to return.
        before: return only epochs before this one, so that older ones can be paged through.

    Raises:
        RecordError: an entry is damaged or of a newer format.
        TransientError, ConfigurationError: the store cannot be read.
    """
    with closing(recovery.open_read_only(step_id)) as log:
        journal = Journal(log, step_id, SystemClock())
        entries, view = journal.read_all(), journal.view
    if not entries:
        return StepStatus(step_id, "empty")
    begin = view.begin
    return StepStatus(
        step=step_id,
        state=_STATES[next(type(entry) for entry in reversed(entries) if not isinstance(entry, Repaired))],
        epoch=view.open_epoch if view.open_epoch is not None else _recorded(view.unfinished, view.completed),
        completed=view.completed,
        changed_at=entries[-1].time,
        incarnation=view.incarnation,
        generation=view.generation,
        sink=None if begin is None else begin.sink,
        target=None if begin is None or begin.target is None else without_credentials(begin.target),
        children={} if begin is None else _children(begin),
        guarantee=_guarantee(entries),
        dropped_rows=view.totals.get("dropped_rows", 0),
        dropped_committables=view.totals.get("dropped_committables", 0),
        outfall=None if begin is None else begin.outfall,
        query_id=view.query_id,
        driver=None if begin is None else begin.driver,
        states=len(view.states) + len(view.writer_states),
        rows_held=view.held.rows,
        held_since=view.held.oldest,
        moved_to=view.moved_to,
        epochs=[epoch for epoch in summaries(entries) if before is None or epoch.epoch < before][-last:]
        if last
        else [],
    )


def _epochs(entries: Sequence[Entry], last: int, before: int | None) -> list[EpochSummary]:
    found = [epoch for epoch in summaries(entries) if before is None or epoch.epoch < before]
    return found[-last:] if last else []


def _children(begin: Begin) -> dict[str, str]:
    return {name: without_credentials(child.target or child.sink) for name, child in begin.children.items()}


def _recorded(unfinished: Prepared | None, completed: int | None) -> int | None:
    return completed if unfinished is None else unfinished.epoch


def _guarantee(entries: Sequence[Entry]) -> str | None:
    found = [entry.guarantee for entry in entries if isinstance(entry, Completed)]
    return (found[-1] or None) if found else None
