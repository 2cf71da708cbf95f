"""Nothing grows with the number of epochs."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from outfall.protocol.step import KNOWN_STEPS, EpochOptions, RunRegistry
from outfall.recovery import history
from outfall.recovery.history import KEPT_EPOCHS
from outfall.testing import LocalDriver, MemoryRecoveryConfig
from tests.unit.protocol.test_states import StateSink
from tests.unit.recovery.test_records import ENTRIES
from tests.unit.support.file_target import open_files
from tests.unit.support.journals import entries
from tests.unit.support.setups import InPlace, Staging


def files(recovery: Path) -> int:
    return sum(1 for path in recovery.rglob("*") if path.is_file())


def run_in_place(driver: LocalDriver, epochs: range) -> None:
    for epoch in epochs:
        driver.run_epoch(epoch, [[("1", epoch)]])


def test_entries_are_bounded_over_epochs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outfall.protocol.journal.KEPT_EPOCHS", 10)
    setup = InPlace(str(tmp_path))
    driver = setup.driver()
    run_in_place(driver, range(20))
    after = files(tmp_path)
    run_in_place(driver, range(20, 60))
    assert files(tmp_path) == after <= 15
    assert setup.found() == Counter(range(60))


def test_entries_of_hundreds_of_epochs_are_bounded() -> None:
    setup = InPlace()
    run_in_place(setup.driver(), range(KEPT_EPOCHS + 50))
    assert len(entries(setup.recovery)) <= KEPT_EPOCHS + 5


def test_large_states_are_bounded(tmp_path: Path) -> None:
    for epoch in range(12):
        LocalDriver(StateSink(), str(tmp_path)).run_epoch(epoch, [[("0", "x" * 100_000)]])
    assert len(list(tmp_path.glob("outfall/sink/states/*"))) <= 2


@pytest.mark.skipif(sys.platform != "linux", reason="counts /proc/self/fd")
def test_open_files_stay_flat_over_drivers_and_epochs(tmp_path: Path) -> None:
    setup = Staging(str(tmp_path))
    setup.run(setup.driver(), 0)
    before = open_files(tmp_path)
    for epoch in range(1, 30):
        setup.run(setup.driver(), epoch)
    assert open_files(tmp_path) == before


def test_what_a_driver_remembers_is_bounded() -> None:
    setup = Staging()
    memory = RunRegistry()
    driver = setup.driver()
    driver._memory = memory
    for epoch in range(20):
        setup.run(driver, epoch)
    assert len(memory._positions) == len(memory._entries) == 1


def test_nothing_is_remembered_of_a_job_whose_log_is_deleted() -> None:
    memory = RunRegistry()
    driver = LocalDriver(Staging().sink(), MemoryRecoveryConfig(), options=EpochOptions(final=True))
    driver._memory = memory
    driver.run_epoch(0, [[1]])
    assert not memory._entries


def test_only_the_entries_of_the_last_used_steps_are_remembered() -> None:
    memory = RunRegistry()
    for number in [*range(KNOWN_STEPS), 0, KNOWN_STEPS]:
        memory.remember_entries("url", f"step-{number}", {1: (b"{}", ENTRIES[0])})
    assert [bool(memory.recall_entries("url", f"step-{number}")) for number in (0, 1, 2, KNOWN_STEPS)] == [1, 0, 1, 1]


def test_a_restart_reads_few_entries_whatever_came_before() -> None:
    setup = Staging()
    driver = setup.driver()
    for epoch in range(30):
        setup.run(driver, epoch)
    log = setup.driver().recovery.open("sink")
    sizes: list[int | None] = []
    original = type(log).read

    def counting(self: object, *, last: int | None = None, **more: Any) -> object:
        sizes.append(last)
        return original(log, last=last, **more)

    coordinator = setup.driver().coordinator()
    coordinator._step.journal._log.read = counting.__get__(log)  # type: ignore[method-assign]
    coordinator.begin(30)
    assert all(size is not None and size < 20 for size in sizes)


def test_an_epoch_reads_its_log_once() -> None:
    setup = Staging()
    driver = setup.driver()
    for epoch in range(5):
        setup.run(driver, epoch)
    coordinator = setup.driver().coordinator()
    journal, reads = coordinator._step.journal, []
    read = journal._log.read
    journal._log.read = lambda **which: reads.append(which) or read(**which)  # type: ignore[method-assign,func-returns-value]
    ticket = coordinator.begin(5)
    coordinator.finish(ticket, driver.run_tasks(ticket, 5, [[1]]))
    assert len(reads) == 1
    assert [entry["kind"] for entry in entries(setup.recovery)].count("begin") == 1


@pytest.mark.long
def test_nothing_grows_over_ten_thousand_epochs(tmp_path: Path) -> None:
    setup = InPlace(str(tmp_path))
    driver = setup.driver()
    run_in_place(driver, range(200))
    after, opened = files(tmp_path), open_files(tmp_path)
    run_in_place(driver, range(200, 10_000))
    assert (files(tmp_path), open_files(tmp_path)) == (after, opened)
    assert len(history(str(tmp_path))) == KEPT_EPOCHS
