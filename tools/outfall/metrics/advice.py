"""Problems of a step in plain language, with advice. The advice never loses rows."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from outfall.metrics.in_words import Severity, age, last_error_in_words, moment, remedy_of
from outfall.metrics.step_status import StepStatus
from outfall.recovery.history import EpochSummary

_LONG = 60.0
"""Seconds that an epoch can always be open without a warning."""
_LONGER = 5
"""Warn if an epoch is open this many times longer than usual."""
_SLOW_COMMIT = 0.5
"""Commits are slow above this share of the total time, if they take at least one second."""


@dataclass(frozen=True)
class Trouble:
    """A problem or a warning."""

    severity: Severity
    what: str
    do: str


def troubles(step: StepStatus, location: str, now: datetime) -> list[Trouble]:
    """Return the problems of a step, the most severe first.

    The status has the epochs to analyze. The location is for commands in the advice, and `now` is in UTC.
    """
    found = [*_of_the_log(step), *_of_the_state(step, location, now), *_of_rows(step, location), *_of_epochs(step)]
    return sorted(found, key=lambda trouble: trouble.severity != "failed")


def _of_the_log(step: StepStatus) -> Iterator[Trouble]:
    # The error's own advice is omitted, because it may name steps that lose rows.
    problem = (step.problem or "").partition(" What to do:")[0]
    if step.state == "damaged":
        yield Trouble(
            "failed",
            f"The log of this step is damaged: {problem}",
            "Stop the query and keep the damaged files. Restore the step's recovery data from a copy of the same time"
            " as Spark's checkpoint. Do not erase it, because it records which rows are in the target.",
        )
    elif step.state == "unreadable":
        yield Trouble(
            "failed",
            f"The recovery store could not be read: {problem}",
            "Try again in a moment; the query itself may be running. If the error persists, check the store, the"
            " network and the permissions of this user.",
        )
    elif step.state == "empty":
        yield Trouble("failed", "Nothing is recorded for this step.", "Check the location and the step id.")


def _of_the_state(step: StepStatus, location: str, now: datetime) -> Iterator[Trouble]:
    if step.failed:
        remedy = remedy_of(step) or "correct the cause"
        yield Trouble(
            "failed",
            f"The query has failed: {last_error_in_words(step, now)}",
            f"{remedy[:1].upper()}{remedy[1:]}. Then start it with the same checkpoint. It continues from the log.",
        )
    for beat in step.heartbeats:
        who = "the driver" if beat.who == "driver" else beat.who
        where = who if beat.epoch is None else f"in epoch {beat.epoch} {who}"
        yield Trouble(
            "failed",
            f"{where[:1].upper()}{where[1:]} has been retrying for {age(beat.since, now)} ({_attempts(beat.attempts)}):"
            f" {beat.place}, {beat.doing}: {beat.reason}",
            f"Restore {step.target or beat.place}. No data is lost: the query continues as soon as the destination"
            " responds. If the query fails before that, restart it with the same checkpoint.",
        )
    if step.state == "abandoned":
        yield Trouble(
            "failed",
            f"Data of epoch {step.epoch} was lost before publication.",
            "Let the query run, or restart it with the same checkpoint. It writes the epoch again.",
        )
    elif step.state == "moved":
        yield Trouble(
            "warning", "This step continues in another store.", f"Start the query with recovery={step.moved_to!r}."
        )
    elif step.phase is not None and step.opened_at is not None and not step.heartbeats:
        yield from _of_a_long_epoch(step, (now - step.opened_at).total_seconds(), now)


def _of_a_long_epoch(step: StepStatus, seconds: float, now: datetime) -> Iterator[Trouble]:
    usual = statistics.median([epoch.seconds for epoch in step.epochs if epoch.seconds] or [0.0])
    if seconds <= max(_LONG, _LONGER * usual) or step.opened_at is None:
        return
    name = "An epoch" if step.epoch is None or step.epoch == step.completed else f"Epoch {step.epoch}"
    others = f"; the usual duration is {usual:.1f} s" if usual else ""
    if step.phase == "tasks":
        yield Trouble(
            "warning",
            f"{name} has been open for {age(step.opened_at, now)}{others}.",
            "If the query is running, check Spark's UI for waiting tasks. If it is not running, restart it with the"
            " same checkpoint. It continues from the log.",
        )
    else:
        yield Trouble(
            "warning",
            f"{name} has been recorded but not fully published for {age(step.opened_at, now)}{others}.",
            "If the query is not running, restart it with the same checkpoint. It publishes the epoch first.",
        )


def _of_rows(step: StepStatus, location: str) -> Iterator[Trouble]:
    if step.dropped_committables:
        yield Trouble(
            "failed",
            f"{step.dropped_rows:,} rows dropped since the first epoch{_named(step.epochs, lambda e: e.dropped)}:"
            " the target rejected them, and the query uses on_known_failure=drop.",
            "These rows are not in the target. Remove the option, so that the next rejection fails the query. Find the"
            " reason in the driver's log, and write these rows again from the source.",
        )
    if dead_letters := step.totals.get("dead_letters", 0):
        yield Trouble(
            "warning",
            f"{dead_letters:,} rows have become dead letters since the first epoch"
            f"{_named(step.epochs, lambda e: e.dead_letters)}.",
            "Read the dead letters and their reasons. Fix the target, then write the rows again with outfall replay,"
            " each exactly once.",
        )
    if step.buffered_rows:
        since = f"; the oldest since {moment(step.held_since)}" if step.held_since else ""
        yield Trouble(
            "busy",
            f"{step.buffered_rows:,} rows are buffered and not yet in the target{since}.",
            "Later epochs deliver them. If the query has ended permanently, deliver them with outfall drain"
            f" {location} {step.step} and the sink's options.",
        )


def _of_epochs(step: StepStatus) -> Iterator[Trouble]:
    written = [epoch for epoch in step.epochs if epoch.seconds]
    if retries := sum(epoch.retries for epoch in written):
        yield Trouble(
            "warning",
            f"{retries:,} requests or commits were sent again after a failure{_named(written, lambda e: e.retries)}.",
            "All of them succeeded in the end. The warnings of driver and workers have the reasons. If retries are"
            " frequent, check the target.",
        )
    if step.restarts:
        yield Trouble(
            "warning",
            f"Restarted epochs since the first epoch: {step.restarts:,}.",
            "Check the driver's log for the reason why the query ended. Its data was published once or rolled back.",
        )
    seconds, commits = (
        (sum(values) for values in zip(*((e.seconds, e.commit_seconds) for e in written), strict=True))
        if written
        else (0.0, 0.0)
    )
    if seconds and commits / seconds > _SLOW_COMMIT and commits / len(written) >= 1:
        yield Trouble(
            "warning",
            f"Commits took {commits / seconds:.0%} of the time, {commits / len(written):.1f} s per epoch.",
            "Use fewer and larger epochs with a longer trigger interval, or check the load of the target.",
        )


def _named(epochs: Sequence[EpochSummary], count: Callable[[EpochSummary], int]) -> str:
    """Name the shown epochs with a count above zero."""
    found = [epoch.epoch for epoch in epochs if count(epoch)]
    if not found:
        return ""
    if len(found) == 1:
        return f", in epoch {found[0]}"
    return f", in {len(found)} of the {len(epochs)} epochs shown, last in epoch {found[-1]}"


def _attempts(number: int) -> str:
    return "1 attempt" if number == 1 else f"{number:,} attempts"
