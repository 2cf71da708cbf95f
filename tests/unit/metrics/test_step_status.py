"""What a step's log says of an open epoch, and how little is read to say it."""

from __future__ import annotations

import os
from contextlib import closing, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from outfall.file import FileSink
from outfall.metrics.driver_process import DriverProcess
from outfall.metrics.step_status import StepWatch, read_status
from outfall.protocol.failure import DRIVER, recorded
from outfall.protocol.heartbeat import Heartbeat
from outfall.recovery import recovery_config
from outfall.recovery.local_log import LocalLog
from outfall.recovery.log import heartbeat_name
from outfall.testing import LocalDriver, crash_at
from tests.unit.support.command import FileStep


@pytest.fixture(autouse=True)
def no_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.fixture
def step(tmp_path: Path) -> FileStep:
    return FileStep(tmp_path)


@pytest.fixture
def watch(step: FileStep) -> StepWatch:
    return StepWatch(recovery_config(step.recovery), "sink")


def beat(step: FileStep, *, age: float = 0, generation: int = 1) -> None:
    at = datetime.now(UTC) - timedelta(seconds=age)
    with closing(recovery_config(step.recovery).open("sink")) as log:
        found = Heartbeat(
            who="driver",
            generation=generation,
            epoch=0,
            phase="commit",
            since=at,
            at=at,
            attempts=3,
            place="server s",
            doing="publishing",
            reason="it is away",
        )
        log.set_heartbeat(heartbeat_name("driver", generation), found.model_dump_json().encode())


@pytest.mark.parametrize(
    ("point", "phase", "recorded"),
    [("after BEGIN", "tasks", 0), ("after PREPARED", "commit", 4), ("before COMPLETED", "commit", 4)],
)
def test_an_open_epoch_says_its_phase_since_when_and_what_is_recorded(
    step: FileStep, watch: StepWatch, point: str, phase: str, recorded: int
) -> None:
    step.write(0)
    before = datetime.now(UTC)
    with crash_at(point):
        step.write(1)
    found = watch.look()
    assert (found.phase, found.recorded_rows, found.completed) == (phase, recorded, 0)
    assert found.opened_at is not None
    assert before <= found.opened_at <= datetime.now(UTC)
    assert found.completed_at is not None
    assert found.completed_at <= before
    step.write(1, 2)
    found = watch.look()
    assert (found.phase, found.opened_at, found.recorded_rows, found.totals["rows"]) == (None, None, 0, 12)


def test_restarts_are_seen_before_the_epoch_is_completed_and_never_go_back(step: FileStep, watch: StepWatch) -> None:
    seen = []
    for _ in range(3):
        with crash_at("after BEGIN"):
            step.write(0)
        seen.append(watch.look().restarts)
    step.write(0)
    seen.append(watch.look().restarts)
    step.write(1)
    seen.append(watch.look().restarts)
    assert seen == [0, 1, 2, 3, 3]


def test_what_is_tried_again_is_said_until_it_is_old(step: FileStep, watch: StepWatch) -> None:
    step.write(0)
    assert not watch.look().retrying
    beat(step)
    found = watch.look()
    assert (found.retrying, found.heartbeats[0].attempts, found.heartbeats[0].place) == (True, 3, "server s")
    assert read_status(recovery_config(step.recovery), "sink", last=0).retrying
    beat(step, age=91)
    assert not watch.look().retrying
    beat(step, generation=0)
    assert not watch.look().retrying


def test_an_idle_step_costs_no_reading(step: FileStep, watch: StepWatch, monkeypatch: pytest.MonkeyPatch) -> None:
    step.write(0)
    first = watch.look()

    def read(log: object, path: str) -> bytes:
        raise AssertionError(path)

    listed: list[str] = []
    names = LocalLog._list

    def listing(log: LocalLog, directory: str) -> list[str]:
        listed.append(directory)
        return names(log, directory)

    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(LocalLog, "_load", read)
        meanwhile.setattr(LocalLog, "_list", listing)
        assert watch.look() == first
    assert len(listed) == 1
    step.write(1)
    assert watch.look().completed == 1


def test_a_look_reads_the_newest_entries_only(
    step: FileStep, watch: StepWatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    step.write(*range(30))
    loaded: list[str] = []
    load = LocalLog._load
    monkeypatch.setattr(LocalLog, "_load", lambda log, path: loaded.append(path) or load(log, path))  # type: ignore[func-returns-value]
    assert watch.look().totals["rows"] == 120
    assert len(loaded) <= 12


def test_a_log_that_cannot_be_read_keeps_what_was_known(
    step: FileStep, watch: StepWatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    step.write(0)
    watch.look()

    def fail(log: object) -> list[int]:
        raise RuntimeError("no answer from https://me:geheim@host")

    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(LocalLog, "numbers", fail)
        found = watch.look()
    assert (found.state, found.totals["rows"]) == ("unreadable", 4)
    assert found.problem == "RuntimeError: no answer from https://***@host"
    newest = max((Path(step.recovery) / "outfall/sink").glob("*.json"))
    whole = newest.read_bytes()
    newest.write_bytes(whole[:-5])
    found = watch.look()
    assert (found.state, found.totals["rows"]) == ("damaged", 4)
    newest.write_bytes(whole)
    found = watch.look()
    assert (found.state, found.problem) == ("completed", None)


@pytest.mark.parametrize("completed", [False, True], ids=["never completed", "completed before"])
def test_an_epoch_that_begins_again_is_as_old_as_its_first_beginning(
    step: FileStep, watch: StepWatch, completed: bool
) -> None:
    """Otherwise a query that dies every few minutes would never be stuck."""
    if completed:
        step.write(0)
    before = datetime.now(UTC)
    with crash_at("after BEGIN"):
        step.write(int(completed))
    first = watch.look().opened_at
    assert first is not None
    assert first >= before
    for point in ("after BEGIN", "before PREPARED", "after PREPARED"):
        with crash_at(point):
            step.write(int(completed))
        assert watch.look().opened_at == first
    step.write(int(completed))
    assert watch.look().opened_at is None
    with crash_at("after BEGIN"):
        step.write(int(completed) + 1)
    again = watch.look().opened_at
    assert again is not None
    assert again > first


def test_damage_to_an_entry_that_was_read_before_is_seen(step: FileStep) -> None:
    step.write(0)
    watch = StepWatch(recovery_config(step.recovery), "sink", again=0)
    assert watch.look().state == "completed"
    entry = max(Path(step.recovery, "outfall/sink").glob("*.json"))
    sound = entry.read_bytes()
    entry.chmod(0o600)
    entry.write_bytes(b"\0" * len(sound))
    found = watch.look()
    assert (found.state, found.completed) == ("damaged", 0)
    entry.write_bytes(sound)
    assert watch.look().state == "completed"


def test_a_query_that_was_refused_because_another_one_has_the_step_says_nothing_of_that(
    step: FileStep, watch: StepWatch
) -> None:
    recovery = recovery_config(step.recovery)
    LocalDriver(FileSink(str(step.path)), step.recovery, query_id="first").run_epoch(0, [["a"]])
    for query_id, failed in (("second", False), ("first", True)):
        with suppress(ValueError), recorded(recovery, "sink", DRIVER, 1, query_id=query_id):
            raise ValueError
        found = watch.look()
        assert (found.failed, found.last_error is not None) == (failed, failed)


@pytest.mark.parametrize(("point", "failed"), [("after BEGIN", True), ("after COMPLETED", False)])
def test_the_end_of_a_driver_with_an_epoch_open_is_a_failure(
    step: FileStep, watch: StepWatch, monkeypatch: pytest.MonkeyPatch, point: str, failed: bool
) -> None:
    with crash_at(point):
        step.write(0)
    assert not watch.look().failed
    monkeypatch.setattr(DriverProcess, "has_ended", lambda *_: True)
    assert watch.look().failed is failed
