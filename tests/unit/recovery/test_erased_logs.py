"""Listing the steps of a store, and erasing one: what `outfall status` and `outfall reset` stand on."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from outfall.errors import ConfigurationError, RecordError
from outfall.recovery import RecoveryConfig, RecoveryLog, SqliteRecoveryConfig, recovery_config
from outfall.recovery.entries import Completed, decode_entry
from outfall.testing import LocalDriver, MemoryRecoveryConfig, crash_at
from tests.unit.support.kafka_partition import MemoryKafka
from tests.unit.support.setups import Staging

STORES: dict[str, Callable[[Path], RecoveryConfig]] = {
    "checkpoint": lambda path: recovery_config(str(path / "checkpoint")),
    "objects": lambda path: recovery_config(f"memory://{uuid.uuid4().hex}"),
    "memory": lambda path: MemoryRecoveryConfig(),
    "kafka": lambda path: MemoryKafka(),
    "sqlite": lambda path: SqliteRecoveryConfig(str(path / "db")),
}


@pytest.fixture(autouse=True)
def no_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    monkeypatch.setattr("outfall.recovery.sqlite_database.SYNCHRONOUS", "OFF")


@pytest.fixture(params=sorted(STORES))
def recovery(request: pytest.FixtureRequest, tmp_path: Path) -> RecoveryConfig:
    return STORES[request.param](tmp_path)


def filled(recovery: RecoveryConfig, step_id: str) -> RecoveryLog:
    log = recovery.open(step_id)
    for number in range(3):
        log.append(b"%d" % number, after=number)
    log.write_state("large", b"x", generation=1)
    return log


def test_the_steps_of_a_store_are_listed(recovery: RecoveryConfig) -> None:
    assert recovery.steps() == []
    for step in ("sink", "archive.2"):
        filled(recovery, step).close()
    assert recovery.steps() == ["archive.2", "sink"]


@pytest.mark.parametrize("store", ["checkpoint", "sqlite"])
def test_only_what_can_be_a_step_is_listed(store: str, tmp_path: Path) -> None:
    recovery = STORES[store](tmp_path)
    filled(recovery, "sink").close()
    place = tmp_path / ("checkpoint/outfall" if store == "checkpoint" else "db")
    (place / ".hidden").mkdir()
    (place / "a file").write_text("")
    (place / "notes").write_text("")
    assert recovery.steps() == ["sink"]


def test_a_store_that_cannot_list_says_so() -> None:
    class Silent(MemoryRecoveryConfig):
        steps = RecoveryConfig.steps

    with pytest.raises(ConfigurationError, match="Silent cannot list"):
        Silent().steps()


def test_an_erased_log_is_empty_and_begins_anew(recovery: RecoveryConfig) -> None:
    log = filled(recovery, "sink")
    other = filled(recovery, "other")
    state = log.write_state("large", b"x", generation=2)
    log.erase()
    assert log.read() == []
    if isinstance(recovery, MemoryKafka):
        recovery.compact()  # only then are states gone
    with pytest.raises(RecordError):
        log.read_state(state)
    assert len(other.read()) == 3
    log.erase()
    assert log.append(b"first", after=0) == 1
    assert [entry.data for entry in recovery.open("sink").read()] == [b"first"]


def test_erasing_what_was_never_written_makes_nothing(recovery: RecoveryConfig) -> None:
    recovery.open("sink").erase()
    assert recovery.steps() == []


def test_a_local_log_leaves_no_directory(local: str) -> None:
    log = filled(recovery_config(local), "sink")
    log.erase()
    assert os.listdir(f"{local}/outfall") == []


def test_a_torn_erasure_is_refused_by_whoever_reads_it_and_can_be_repeated(location: str) -> None:
    setup = Staging(location)
    for epoch in range(3):
        setup.run(setup.driver(), epoch)
    log = recovery_config(location).open("sink")
    last = decode_entry(log.read()[-1], "sink")
    assert isinstance(last, Completed)
    refused = 0
    for _ in range(len(log.numbers()) - 1):
        with crash_at("log: entry erased"):
            log.erase()
        if log.numbers()[0] > last.generation:  # those before are counts, and their loss is harmless
            refused += 1
            with pytest.raises(RecordError):
                setup.driver().coordinator().begin(3)
    assert refused == 3
    log.erase()
    assert log.numbers() == []


def test_a_driver_that_runs_meanwhile_is_stopped(recovery: RecoveryConfig) -> None:
    setup = Staging()
    driver = LocalDriver(setup.sink(), recovery)
    setup.run(driver, 0)
    coordinator = driver.coordinator()
    ticket = coordinator.begin(1)
    recovery.open("sink").erase()
    with pytest.raises(RecordError):
        coordinator.finish(ticket, driver.run_tasks(ticket, 1, [[]]))


def test_a_driver_that_outlives_its_log_is_told_that_the_log_is_gone(recovery: RecoveryConfig) -> None:
    setup = Staging()
    driver = LocalDriver(setup.sink(), recovery)
    setup.run(driver, 0)
    begun = driver.coordinator().begin(1)
    answers = driver.run_tasks(begun, 1, [[]])
    recovery.open("sink").erase()
    with pytest.raises(RecordError, match="is missing, and the log is now empty"):
        setup.run(driver, 1)
    with pytest.raises(RecordError, match="is missing, and the log is now empty"):
        LocalDriver(setup.sink(), recovery).coordinator().resume(answers)
