"""A driver writes a step once in an epoch: a second write would be taken for a replay, and its rows be dropped."""

from __future__ import annotations

from pathlib import Path

import pytest

from outfall.errors import StepInUseError
from outfall.file import FileSink
from outfall.protocol.step import RunPosition, RunRegistry
from outfall.recovery import recovery_config
from outfall.testing import LocalDriver
from tests.unit.support.points import error_of
from tests.unit.support.setups import Staging, content, counted


def test_the_second_write_of_a_step_in_one_epoch_is_an_error() -> None:
    setup = Staging()
    driver = setup.driver()
    setup.run(driver, 0)
    with pytest.raises(StepInUseError, match="its own step_id"):
        setup.run(driver, 0)
    assert setup.found() == counted(content(0))


@pytest.mark.parametrize("scheme", ["", "sqlite://"])
def test_the_second_write_of_a_step_under_another_spelling_of_its_location_is_an_error(
    tmp_path: Path, scheme: str
) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    driver = LocalDriver(FileSink(tmp_path / "out"), f"{scheme}{tmp_path}/real")
    driver.run_epoch(0, [[{"id": 1}]])
    driver.recovery = recovery_config(f"{scheme}{tmp_path}/link")
    # It would be taken for a replay, and its rows be dropped.
    with pytest.raises(StepInUseError):
        driver.run_epoch(0, [[{"id": 2}]])


def test_the_second_write_after_a_skipped_one_is_an_error() -> None:
    setup = Staging()
    setup.run(setup.driver(), 0)
    driver = setup.driver()
    assert setup.run(driver, 0).skipped
    with pytest.raises(StepInUseError):
        setup.run(driver, 0)


def test_an_epoch_that_failed_may_be_run_again_by_the_same_driver() -> None:
    setup = Staging()
    driver = setup.driver()
    with setup.warehouse.replies_lost():
        assert error_of(lambda: setup.run(driver, 0)) is not None
    assert setup.run(driver, 0, "b").skipped
    assert setup.found() == counted(content(0, "a"))


def test_two_steps_in_one_epoch_do_not_meet() -> None:
    setup = Staging()
    for step in ("one", "two"):
        setup.run(LocalDriver(setup.sink(), setup.recovery, step_id=step), 0)
    assert setup.found() == counted(content(0) * 2)


def test_memory_of_a_driver_knows_each_run() -> None:
    memory = RunRegistry()
    memory.remember("url", "sink", RunPosition("old", 4, 0))
    memory.remember("url", "sink", RunPosition("new", 8, 1))
    assert memory.recall("url", "sink", "old") == RunPosition("old", 4, 0)
    assert memory.recall("url", "sink", "new") == RunPosition("new", 8, 1)
    assert memory.recall("url", "other", "new") is None
