"""What is said of a step in which something went wrong, and what is advised."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from outfall.metrics.advice import troubles
from outfall.metrics.step_status import StepStatus, read_status
from outfall.protocol.heartbeat import Heartbeat
from outfall.recovery import EpochSummary, recovery_config
from tests.unit.support.eventful import eventful_step

NOW = datetime(2026, 11, 23, 12, tzinfo=UTC)


def epoch(number: int, **known: Any) -> EpochSummary:
    nothing: dict[str, Any] = {
        "batch": number, "completed_at": NOW, "seconds": 3.0, "task_seconds": 2.9, "rows": 9, "bytes": 0, "retries": 0,
        "dead_letters": 0, "skipped": 0, "dropped": 0, "buffered_rows": 0, "held_since": None, "counts": {},
    }  # fmt: skip
    return EpochSummary(epoch=number, **(nothing | known))


def step(state: Any = "completed", **known: Any) -> StepStatus:
    usual: dict[str, Any] = {"epoch": 7, "completed": 7, "epochs": [epoch(6), epoch(7)]}
    return StepStatus("sink", state, **(usual | known))


def said(found: StepStatus) -> list[tuple[str, str, str]]:
    return [(trouble.severity, trouble.what, trouble.do) for trouble in troubles(found, "/chk", NOW)]


def open_for(seconds: float, phase: str = "tasks", **known: Any) -> StepStatus:
    opened = NOW - timedelta(seconds=seconds)
    return step("begun", epoch=8, phase=phase, opened_at=opened, **known)


BEAT = Heartbeat(
    who="driver", generation=7, epoch=8, phase="commit", since=NOW - timedelta(minutes=4), at=NOW, attempts=12,
    place="db.example.org", doing="publishing", reason="connection refused",
)  # fmt: skip

CASES: dict[str, tuple[StepStatus, str, str, str]] = {
    "damaged": (
        step("damaged", problem="entry 7 is damaged. What to do: start with a new checkpoint."),
        "failed", "damaged: entry 7 is damaged.", "Restore the step's recovery data from a copy",
    ),
    "unreadable": (step("unreadable", problem="away"), "failed", "could not be read: away", "Try again in a moment"),
    "nothing": (step("empty"), "failed", "Nothing is recorded", "Check the location"),
    "retrying": (
        open_for(900, heartbeats=[BEAT], retrying=True),
        "failed", "In epoch 8 the driver has been retrying for 4 min (12 attempts): db.example.org, publishing:"
        " connection refused", "No data is lost",
    ),
    "abandoned": (step("abandoned"), "failed", "Data of epoch 7 was lost", "It writes the epoch again"),
    "moved": (step("moved", moved_to="sqlite:///x"), "warning", "in another store", "recovery='sqlite:///x'"),
    "long open": (
        open_for(840), "warning", "Epoch 8 has been open for 14 min; the usual duration is 3.0 s.", "It continues from",
    ),
    "long recorded": (open_for(840, "commit"), "warning", "recorded but not fully published", "publishes the epoch"),
    "dropped": (
        step(dropped_rows=5, dropped_committables=1, epochs=[epoch(6, dropped=5), epoch(7)]),
        "failed", "5 rows dropped since the first epoch, in epoch 6",
        "write these rows again from the source",
    ),
    "dead letters": (
        step(totals={"dead_letters": 4}, epochs=[epoch(6, dead_letters=1), epoch(7, dead_letters=3)]),
        "warning", "4 rows have become dead letters since the first epoch, in 2 of the 2 epochs shown, last in epoch",
        "Read the dead letters",
    ),
    "buffered": (
        step(buffered_rows=1200, held_since=NOW), "busy",
        "1,200 rows are buffered and not yet in the target; the oldest",
        "outfall drain /chk sink",
    ),
    "retries": (step(epochs=[epoch(7, retries=3)]), "warning", "3 requests or commits were sent again", "check the"),
    "restarts": (step(restarts=2), "warning", "Restarted epochs since the first epoch: 2", "driver's log"),
    "slow commits": (
        step(epochs=[epoch(7, task_seconds=1.0)]), "warning", "Commits took 67% of the time, 2.0 s", "longer trigger",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_what_went_wrong_is_said_with_what_to_do(name: str) -> None:
    found, severity, what, do = CASES[name]
    (trouble,) = said(found)
    assert trouble[0] == severity
    assert what in trouble[1]
    assert do in trouble[2]


@pytest.mark.parametrize("name", CASES)
def test_no_advice_loses_rows(name: str) -> None:
    ((_, _, do),) = said(CASES[name][0])
    for wrong in ("new checkpoint", "outfall reset", "delete", "adopt_checkpoint", "ignore", "skip"):
        assert wrong not in do


def test_nothing_is_said_where_nothing_went_wrong() -> None:
    assert said(step()) == []
    assert said(open_for(50)) == [], "a minute is no time"
    assert said(open_for(290, epochs=[epoch(7, seconds=60.0, task_seconds=59.0)])) == [], "the others took as long"


def test_of_real_epochs_the_counts_are_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    eventful_step(str(tmp_path), epochs=34, outage=range(3))
    found = read_status(recovery_config(str(tmp_path)), "sink", last=100)
    assert [what for _, what, _ in said(found)] == [
        "5 rows have become dead letters since the first epoch, in 2 of the 34 epochs shown, last in epoch 32.",
        "6 requests or commits were sent again after a failure, in 3 of the 34 epochs shown, last in epoch 2.",
    ]


def test_the_worst_comes_first() -> None:
    found = said(open_for(840, buffered_rows=3, restarts=1, dropped_rows=2, dropped_committables=1))
    assert [severity for severity, _, _ in found] == ["failed", "warning", "busy", "warning"]
    assert found[0][1].startswith("2 rows dropped")
