"""`outfall watch`, and steps whose store fails for a while."""

from __future__ import annotations

import json
import os
import re
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("click")

from rich.console import Console

from outfall.cli.commands.watch import screen, sparkline
from outfall.errors import TransientError
from outfall.metrics.location_status import LocationStatus
from outfall.metrics.step_status import StepStatus
from outfall.protocol.heartbeat import Heartbeat
from outfall.recovery import CheckpointRecoveryConfig, SqliteRecoveryConfig
from outfall.testing import LocalDriver
from tests.unit.support.command import FileStep, done, failed, in_terminal
from tests.unit.support.warehouse import PlainSink


@pytest.fixture(autouse=True)
def no_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.fixture
def step(tmp_path: Path) -> FileStep:
    return FileStep(tmp_path)


def interrupt(*args: Any, **options: Any) -> None:
    raise KeyboardInterrupt


def test_each_interval_there_is_a_look_until_it_is_interrupted(step: FileStep, monkeypatch: pytest.MonkeyPatch) -> None:
    step.write(0)
    paused: list[float] = []

    def sleep(seconds: float) -> None:
        paused.append(seconds)
        if len(paused) == 2:
            raise KeyboardInterrupt
        step.write(1)

    monkeypatch.setattr(time, "sleep", sleep)
    lines = done("watch", step.recovery, "--interval", 7, "--json").splitlines()
    assert paused == [7, 7]
    assert [json.loads(line)["locations"][0]["steps"][0]["completed"] for line in lines] == [0, 1]


def test_without_a_terminal_looks_are_printed_below_each_other(step: FileStep, monkeypatch: pytest.MonkeyPatch) -> None:
    step.write(0)
    pauses = iter([lambda: step.write(1), interrupt])
    monkeypatch.setattr(time, "sleep", lambda seconds: next(pauses)())
    text = done("watch", step.recovery)
    assert re.findall(r"^sink +completed +(\d)", text, re.MULTILINE) == ["0", "1"]
    assert "\x1b" not in text


def test_a_terminal_is_given_back_when_it_is_interrupted(step: FileStep) -> None:
    step.write(0)
    shown = in_terminal("watch", step.recovery, interrupt_at="completed")
    assert "\x1b[?1049h" in shown, "the whole screen is taken"
    assert shown.endswith("\x1b[?25h\x1b[?1049l"), "and given back, with the cursor"
    assert "Aborted" not in shown


def a_step(name: str, **known: Any) -> StepStatus:
    return StepStatus(name, "completed", epoch=7, completed=7, changed_at=NOW - timedelta(seconds=3), **known)


NOW = datetime(2026, 11, 23, 12, tzinfo=UTC)


def drawn(*locations: LocationStatus, width: int = 80, height: int | None = None) -> list[str]:
    out = Console(width=width, markup=False, highlight=False)
    with out.capture() as captured:
        out.print(screen(locations, NOW, width, height))
    return captured.get().splitlines()


def test_steps_of_several_locations_fit_80_columns_with_what_is_wrong_below() -> None:
    damaged = StepStatus("sink", "damaged", problem="entry 7 is damaged")
    lines = drawn(
        LocationStatus("/chk/flights", [a_step("sink", buffered_rows=12_345)]),
        LocationStatus("/other", checkpoints=[LocationStatus("/other/trains", [damaged])]),
        LocationStatus("kafka://host", problem="the store is away"),
    )
    assert all(len(line) <= 80 for line in lines)
    assert lines[2].split() == ["flights/sink", "completed", "7", "3", "s", "12.3k"]
    assert lines[3].split() == ["other/trains/sink", "damaged"]
    assert [line.strip() for line in lines[4:]] == [
        "kafka://host  the store is away", "other/trains/sink  entry 7 is damaged",
    ]  # fmt: skip


def test_what_is_tried_again_is_said_with_its_last_reason() -> None:
    beat = Heartbeat(
        who="task 3", generation=7, epoch=8, phase="tasks", since=NOW - timedelta(minutes=2), at=NOW, attempts=4,
        place="https://host", doing="sending", reason="connection refused",
    )  # fmt: skip
    step = a_step("sink", heartbeats=[beat], retrying=True)
    lines = drawn(LocationStatus("/chk", [step]), width=200)
    assert lines[2].split()[:2] == ["sink", "retrying"]
    assert lines[3].strip() == (
        "sink  retrying: task 3 since 2026-11-23 11:58:00 UTC, 4 attempts; https://host, sending: connection refused"
    )


def test_nothing_that_a_log_says_controls_the_terminal() -> None:
    evil = "\x1b]0;title\x07\x9b2J\nsink  completed"
    beat = Heartbeat(
        who="task 3", generation=7, epoch=8, phase="tasks", since=NOW, at=NOW, attempts=4, place=evil, doing=evil,
        reason=evil,
    )  # fmt: skip
    steps = [a_step(evil, heartbeats=[beat], retrying=True), StepStatus("sink", "damaged", problem=evil)]
    lines = drawn(LocationStatus(f"/{evil}", steps), LocationStatus("/chk", problem=evil), width=1000)
    assert len(lines) == 2 + 2 + 3  # time, headings, steps, what is wrong with them
    assert all(line.isprintable() for line in lines)


def test_steps_that_find_no_room_are_counted() -> None:
    lines = drawn(LocationStatus("/chk", [a_step(f"step-{number}") for number in range(30)]), height=24)
    assert len(lines) <= 23
    assert lines[-1].strip() == "and 10 more"


def test_a_plot_is_as_high_as_its_largest_value() -> None:
    assert sparkline([0, 1, 2, 4, 8]) == "▁▂▃▅█"
    assert sparkline([0, 0]) == "▁▁"
    assert sparkline([]) == ""


@pytest.fixture
def unreadable(tmp_path: Path) -> Callable[[], None]:
    """A step in SQLite whose tables its driver has not made yet, beside one that is whole. Makes them when called."""
    recovery = SqliteRecoveryConfig(str(tmp_path / "db"))
    for name in ("archive", "sink"):
        LocalDriver(PlainSink(), recovery, step_id=name).run_epoch(0, [[1]])

    def set_version(version: int) -> None:
        with closing(sqlite3.connect(tmp_path / "db/archive.sqlite", isolation_level=None)) as connection:
            connection.execute(f"PRAGMA user_version = {version}")

    set_version(0)
    return lambda: set_version(1)


@pytest.mark.usefixtures("unreadable")
def test_a_step_that_cannot_be_read_now_hides_no_other(tmp_path: Path) -> None:
    text = failed("status", f"sqlite://{tmp_path}/db")
    assert "step archive: the log cannot be read at the moment" in text
    assert "does not have the tables of this release yet" in text
    assert "step sink: epoch 0 completed" in text


def test_it_goes_on_when_a_step_cannot_be_read(
    tmp_path: Path, unreadable: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses = iter([unreadable, interrupt])
    monkeypatch.setattr(time, "sleep", lambda seconds: next(pauses)())
    looks = [json.loads(line) for line in done("watch", f"sqlite://{tmp_path}/db", "--json").splitlines()]
    states = [[step["state"] for step in look["locations"][0]["steps"]] for look in looks]
    assert states == [["unreadable", "completed"], ["completed", "completed"]]


@pytest.mark.parametrize("error", [TransientError("the store is away"), RuntimeError("the store is away.")])
def test_it_goes_on_when_steps_cannot_be_listed(
    step: FileStep, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    step.write(0)

    def away(recovery: object) -> list[str]:
        raise error

    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(CheckpointRecoveryConfig, "steps", away)
        assert "the store is away" in failed("status", step.recovery)
        pauses = iter([meanwhile.undo, interrupt])
        monkeypatch.setattr(time, "sleep", lambda seconds: next(pauses)())
        looks = [json.loads(line)["locations"][0] for line in done("watch", step.recovery, "--json").splitlines()]
    assert looks[0]["steps"] == []
    assert looks[0]["problem"].endswith("the store is away.")
    assert looks[1]["steps"][0]["state"] == "completed"
