"""The words and units in which people are told how a step stands, the same on every screen and page."""

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
    """Return a step's state in a word, and how bad it is."""
    return ("retrying", "failed") if step.retrying and step.problem is None else _STATES[step.state]


def state_in_words(step: StepStatus, now: datetime) -> str:
    """Say in a sentence how a step stands, and since when."""
    since = "" if step.changed_at is None else f", {age(step.changed_at, now)} ago"
    match step.state:
        case "empty":
            return "nothing is recorded"
        case "begun":
            epoch = "an epoch" if step.epoch is None or step.epoch == step.completed else f"epoch {step.epoch}"
            return f"{epoch} is being written, or was when its driver ended{since}"
        case "recorded":
            return f"epoch {step.epoch} is recorded and not published{since}"
        case "committing":
            return f"epoch {step.epoch} is being published, or was when its driver ended{since}"
        case "abandoned":
            return f"epoch {step.epoch} lost data before it was published, and is to be written anew{since}"
        case "moved":
            return f"moved to {step.moved_to}{since}"
        case "damaged":
            return "its log cannot be read"
        case "unreadable":
            return "its log cannot be read now"
        case "completed":
            return f"epoch {step.completed} is completed{since}"


def retrying_in_words(step: StepStatus) -> str | None:
    """Say what driver and tasks try again, since when, and why; `None` where they do not."""
    if not step.heartbeats:
        return None
    first, newest = step.heartbeats[0], max(step.heartbeats, key=lambda beat: beat.at)
    who = first.who if len(step.heartbeats) == 1 else f"{len(step.heartbeats)} tasks or drivers"
    tries = sum(beat.attempts for beat in step.heartbeats)
    return f"{who} since {moment(first.since)}, {tries:,} tries; {newest.place}, {newest.doing}: {newest.reason}"


def age(time: datetime, now: datetime) -> str:
    """Return how long ago a time was, in its largest unit."""
    seconds = int((now - time).total_seconds())
    for size, name in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds // size} {name}"
    return f"{max(0, seconds)} s"


def moment(time: datetime) -> str:
    """A time as people read it, in UTC."""
    return time.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def byte_size(count: int) -> str:
    """A number of bytes in at most eight letters."""
    size, units = float(count), ["B", "kB", "MB", "GB", "TB", "PB"]
    while size >= 999.5 and len(units) > 1:
        size /= 1000
        units.pop(0)
    return f"{count} B" if units[0] == "B" else f"{size:.3g} {units[0]}"
