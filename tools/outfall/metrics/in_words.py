"""Words and units for the state of a step, shared by all commands and the report."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Literal

from outfall.metrics.step_status import State, StepStatus

Severity = Literal["ok", "busy", "warning", "failed"]

_STATES: dict[State, tuple[str, Severity]] = {
    "empty": ("nothing", "failed"),
    "begun": ("writing", "busy"),
    "recorded": ("recorded", "warning"),
    "committing": ("committing", "busy"),
    "completed": ("completed", "ok"),
    "abandoned": ("abandoned", "failed"),
    "moved": ("moved", "warning"),
    "damaged": ("damaged", "failed"),
    "unreadable": ("unreadable", "failed"),
}


def state_word(step: StepStatus) -> tuple[str, Severity]:
    """Return a step's state as one word, and its severity."""
    if step.problem is None and step.failed:
        return "failed", "failed"
    return ("retrying", "failed") if step.retrying and step.problem is None else _STATES[step.state]


def state_in_words(step: StepStatus, now: datetime) -> str:
    """Describe the state of a step and the age of its newest entry."""
    ago = "" if step.changed_at is None else f" {age(step.changed_at, now)} ago"
    match step.state:
        case "empty":
            return "nothing is recorded"
        case "begun":
            epoch = "an epoch" if step.epoch is None or step.epoch == step.completed else f"epoch {step.epoch}"
            return f"{epoch} began{ago} and is not completed"
        case "recorded":
            return f"epoch {step.epoch} was recorded{ago} and is not published"
        case "committing":
            return f"epoch {step.epoch} is not fully published, last entry{ago}"
        case "abandoned":
            return f"epoch {step.epoch} lost data before publication{ago}; the query writes it again"
        case "moved":
            return f"moved to {step.moved_to}{ago}"
        case "damaged":
            return "the log is damaged"
        case "unreadable":
            return "the log cannot be read at the moment"
        case "completed":
            return f"epoch {step.completed} completed{ago}"


def retrying_in_words(step: StepStatus) -> str | None:
    """Describe the current retries of driver and tasks; `None` if there are none."""
    if not step.heartbeats:
        return None
    first, newest = step.heartbeats[0], max(step.heartbeats, key=lambda beat: beat.at)
    who = first.who if len(step.heartbeats) == 1 else f"{len(step.heartbeats)} processes"
    attempts = sum(beat.attempts for beat in step.heartbeats)
    return f"{who} since {moment(first.since)}, {attempts:,} attempts; {newest.place}, {newest.doing}: {newest.reason}"


def last_error_in_words(step: StepStatus, now: datetime) -> str | None:
    """Describe the last error of a step with its age; `None` if there is none since the last completed epoch."""
    error = step.last_error
    if error is None:
        return None
    where = error.who if error.failed_in is None else f"{error.who}, epoch {error.failed_in}"
    if not error.error:
        return f"{age(error.at, now)} ago, {where}: Spark ended the epoch; the query was stopped, or failed"
    return f"{age(error.at, now)} ago, {where}: {error.error}{error.reason and f': {error.reason}'}"


def remedy_of(step: StepStatus) -> str | None:
    """Return what to do about the last error of a step; `None` if there is none."""
    if step.last_error is None:
        return None
    if step.last_error.do:
        return step.last_error.do
    if step.last_error.reason:
        return None
    return "read the driver's log, which has the text of the error, or print reason(query.exception())"


def tables_in_words(step: StepStatus) -> str | None:
    """Describe the tables of the last completed epoch; `None` unless a column names them."""
    newest = next((epoch for epoch in reversed(step.epochs) if epoch.table_count), None)
    if newest is None:
        return None
    largest = ", ".join(f"{name} ({rows:,} rows)" for name, rows in list(newest.tables.items())[:_SHOWN_TABLES])
    every = f"{newest.table_count:,} in epoch {newest.epoch}"
    return f"{every}: {largest}" if newest.table_count <= _SHOWN_TABLES else f"{every}, the largest: {largest}"


_SHOWN_TABLES = 5


def age(time: datetime, now: datetime) -> str:
    """Return the age of a time in its largest unit."""
    seconds = int((now - time).total_seconds())
    for size, name in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds // size} {name}"
    return f"{max(0, seconds)} s"


def moment(time: datetime) -> str:
    """Format a time in UTC."""
    return time.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def byte_size(count: int) -> str:
    """Format a number of bytes with at most eight characters."""
    size, units = float(count), ["B", "kB", "MB", "GB", "TB", "PB"]
    while size >= 999.5 and len(units) > 1:
        size /= 1000
        units.pop(0)
    return f"{count} B" if units[0] == "B" else f"{size:.3g} {units[0]}"
