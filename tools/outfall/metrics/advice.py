"""What went wrong in a step, in plain words, and what to do about it. No advice loses rows."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from outfall.metrics.in_words import Severity, age, moment
from outfall.metrics.step_status import StepStatus
from outfall.recovery.history import EpochSummary

_LONG = 60.0
"""Seconds for which an epoch may be open whatever the others took."""
_LONGER = 5
"""How many times as long as the others an epoch may be open."""
_SLOW_COMMIT = 0.5
"""The share of the time above which commits are called slow, where they take a second or more."""


@dataclass(frozen=True)
class Trouble:
    """Something that went wrong, or may."""

    severity: Severity
    what: str
    do: str


def troubles(step: StepStatus, location: str, now: datetime) -> list[Trouble]:
    """Return what went wrong in a step, the worst first.

    Args:
        step: the step, with as many of its last epochs as are to be judged.
        location: the recovery location, for commands that are named.
        now: the time, UTC.
    """
    found = [*_of_the_log(step), *_of_the_state(step, location, now), *_of_rows(step, location), *_of_epochs(step)]
    return sorted(found, key=lambda trouble: trouble.severity != "failed")


def _of_the_log(step: StepStatus) -> Iterator[Trouble]:
    # What the error itself advises is left to those who read it: here no way is named on which rows could be lost.
    problem = (step.problem or "").partition(" What to do:")[0]
    if step.state == "damaged":
        yield Trouble(
            "failed",
            f"The log of this step is damaged: {problem}",
            "Stop the query, keep what is there, and restore the step's recovery data from a copy that is of the same"
            " time as Spark's checkpoint. Do not erase it: it says which rows are in the target.",
        )
    elif step.state == "unreadable":
        yield Trouble(
            "failed",
            f"The store of the log could not be read: {problem}",
            "Look again in a moment, the query may go on all the same. If it stays so, check the store, the network and"
            " the rights of this user.",
        )
    elif step.state == "empty":
        yield Trouble("failed", "Nothing is recorded of this step.", "Check the location and the name of the step.")


def _of_the_state(step: StepStatus, location: str, now: datetime) -> Iterator[Trouble]:
    for beat in step.heartbeats:
        who = "the driver" if beat.who == "driver" else beat.who
        where = who if beat.epoch is None else f"in epoch {beat.epoch} {who}"
        yield Trouble(
            "failed",
            f"{where[:1].upper()}{where[1:]} has been trying again for {age(beat.since, now)}, {_times(beat.attempts)}:"
            f" {beat.place}, {beat.doing}: {beat.reason}",
            f"Look after {step.target or beat.place}. Nothing is lost: the query goes on as soon as it is back; where"
            " it gives up before, start it again with the same checkpoint.",
        )
    if step.state == "abandoned":
        yield Trouble(
            "failed",
            f"Data of epoch {step.epoch} was lost before any of it was published.",
            "Let the query run, or start it again with the same checkpoint: it writes the epoch anew.",
        )
    elif step.state == "moved":
        yield Trouble(
            "warning", "This step goes on in another store.", f"Start the query with recovery={step.moved_to!r}."
        )
    elif step.phase is not None and step.opened_at is not None and not step.heartbeats:
        yield from _of_a_long_epoch(step, (now - step.opened_at).total_seconds(), now)


def _of_a_long_epoch(step: StepStatus, seconds: float, now: datetime) -> Iterator[Trouble]:
    usual = statistics.median([epoch.seconds for epoch in step.epochs if epoch.seconds] or [0.0])
    if seconds <= max(_LONG, _LONGER * usual) or step.opened_at is None:
        return
    name = "An epoch" if step.epoch is None or step.epoch == step.completed else f"Epoch {step.epoch}"
    others = f"; the others took {usual:.1f} s" if usual else ""
    if step.phase == "tasks":
        yield Trouble(
            "warning",
            f"{name} has been open for {age(step.opened_at, now)}{others}.",
            "If the query runs, look in Spark's UI for tasks that wait. If it does not, start it again with the same"
            " checkpoint: it goes on where the log ends.",
        )
    else:
        yield Trouble(
            "warning",
            f"{name} is recorded and not wholly published since {age(step.opened_at, now)}{others}.",
            "If the query does not run, start it again with the same checkpoint: that publishes the epoch first.",
        )


def _of_rows(step: StepStatus, location: str) -> Iterator[Trouble]:
    if step.dropped_committables:
        yield Trouble(
            "failed",
            f"{step.dropped_rows:,} rows were dropped since the first epoch{_named(step.epochs, lambda e: e.dropped)}:"
            " the target refused them, and the query says on_known_failure=drop.",
            "These rows are not in the target. Take the option away, so that the next refusal stops the query; find the"
            " reason in the driver's log, and write these rows again from the source.",
        )
    if letters := step.totals.get("dead_letters", 0):
        yield Trouble(
            "warning",
            f"{letters:,} rows became dead letters since the first epoch"
            f"{_named(step.epochs, lambda e: e.dead_letters)}.",
            "Read them where they were written, each with its reason; correct the target, and write them again by"
            " outfall replay, each once.",
        )
    if step.rows_held:
        since = f", the oldest since {moment(step.held_since)}" if step.held_since else ""
        yield Trouble(
            "busy",
            f"{step.rows_held:,} rows are buffered, and not in the target yet{since}.",
            "Later epochs deliver them. If the query has ended for good, deliver them by outfall drain"
            f" {location} {step.step} with the sink's options.",
        )


def _of_epochs(step: StepStatus) -> Iterator[Trouble]:
    written = [epoch for epoch in step.epochs if epoch.seconds]
    if retries := sum(epoch.retries for epoch in written):
        yield Trouble(
            "warning",
            f"{retries:,} requests or commits were sent again after a failure{_named(written, lambda e: e.retries)}.",
            "All went through in the end. The warnings of driver and workers name the reasons; if they come again and"
            " again, look after the target.",
        )
    if step.restarts:
        yield Trouble(
            "warning",
            f"An epoch had to be begun again {_times(step.restarts)} since the first one.",
            "Look in the driver's log for why the query ended. What it had written was published once or taken back.",
        )
    seconds, commits = (
        (sum(values) for values in zip(*((e.seconds, e.commit_seconds) for e in written), strict=True))
        if written
        else (0.0, 0.0)
    )
    if seconds and commits / seconds > _SLOW_COMMIT and commits / len(written) >= 1:
        yield Trouble(
            "warning",
            f"Commits took {commits / seconds:.0%} of the time, {commits / len(written):.1f} s for each epoch.",
            "Make epochs fewer and larger by a longer trigger interval, or look at the load of the target.",
        )


def _named(epochs: Sequence[EpochSummary], count: Callable[[EpochSummary], int]) -> str:
    """Name the epochs shown in which something was counted."""
    found = [epoch.epoch for epoch in epochs if count(epoch)]
    if not found:
        return ""
    if len(found) == 1:
        return f", in epoch {found[0]}"
    return f", in {len(found)} of the {len(epochs)} epochs shown, last in epoch {found[-1]}"


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number:,} times"
