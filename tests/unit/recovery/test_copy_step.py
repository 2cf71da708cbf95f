"""Moving a step's recovery data to another store."""

from __future__ import annotations

import itertools
import os
import uuid
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from outfall.errors import ConfigurationError, FencedError, OutfallError, RecordError
from outfall.recovery import RecoveryConfig, SqliteRecoveryConfig, copy_step, history, recovery_config
from outfall.testing import LocalDriver, MemoryRecoveryConfig, crash_at
from tests.unit.support.hoarding import HoardingInParts
from tests.unit.support.kafka_partition import MemoryKafka
from tests.unit.support.setups import Row

LARGE = "x" * 100_000

STORES: dict[str, Callable[[Path], RecoveryConfig]] = {
    "checkpoint": lambda path: recovery_config(str(path / "checkpoint")),
    "objects": lambda path: recovery_config(f"memory://{uuid.uuid4().hex}"),
    "memory": lambda path: MemoryRecoveryConfig(),
    "sqlite": lambda path: SqliteRecoveryConfig(str(path / "db")),
    "kafka": lambda path: MemoryKafka(),
}


@pytest.fixture(autouse=True)
def no_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is durable is tested elsewhere."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    monkeypatch.setattr("outfall.recovery.sqlite_database.SYNCHRONOUS", "OFF")


class Step:
    """A step with held rows in its states, one of them large."""

    def __init__(self, recovery: RecoveryConfig) -> None:
        self.setup = HoardingInParts()
        self.rows: Counter[Row] = Counter()
        for batch in range(2):
            self.run(self.driver(recovery), batch)

    def driver(self, recovery: RecoveryConfig) -> LocalDriver:
        return LocalDriver(self.setup.sink(), recovery)

    def run(self, driver: LocalDriver, batch: int) -> bool:
        rows: list[Row] = [(batch, LARGE if i == 1 else "a", i) for i in range(3)]
        result = driver.run_epoch(batch, [[(str(row[2]), list(row)) for row in rows]])
        if not result.skipped:
            self.rows.update(rows)
        return result.skipped

    def check(self, recovery: RecoveryConfig) -> None:
        assert not self.run(self.driver(recovery), 2)
        self.driver(recovery).drain()
        assert self.setup.found() == self.rows


@pytest.mark.parametrize(("source", "target"), list(itertools.permutations(STORES, 2)))
def test_a_step_goes_on_in_the_other_store_and_not_in_the_old(source: str, target: str, tmp_path: Path) -> None:
    old, new = STORES[source](tmp_path), STORES[target](tmp_path)
    step = Step(old)
    driver = step.driver(old)
    assert step.run(driver, 1)
    copied = copy_step(old, new)
    assert copied.states >= 1
    assert copied.bytes > len(LARGE)
    assert history(new) == history(old)
    for late in (driver, step.driver(old)):
        with pytest.raises(FencedError):
            step.run(late, 2)
    with pytest.raises(FencedError, match="was moved to"):
        step.driver(old).drain()
    assert step.run(step.driver(new), 1)
    step.check(new)


def test_a_driver_in_the_middle_of_an_epoch_is_fenced(tmp_path: Path) -> None:
    old, new = STORES["checkpoint"](tmp_path), STORES["sqlite"](tmp_path)
    step = Step(old)
    driver = step.driver(old)
    coordinator = driver.coordinator()
    ticket = coordinator.begin(2)
    answers = driver.run_tasks(ticket, 2, [[("0", [2, "a", 0])]])
    copy_step(old, new)
    with pytest.raises(FencedError):
        coordinator.finish(ticket, answers)
    step.check(new)


@pytest.mark.thorough
@pytest.mark.parametrize("target", STORES)
@pytest.mark.parametrize("point", ["copy: MOVED", "log: state durable#2", "log: entry restored", "copy: restored"])
def test_a_copy_that_died_is_not_taken_for_a_log_and_can_be_made_again(target: str, point: str, tmp_path: Path) -> None:
    old, new = STORES["checkpoint"](tmp_path), STORES[target](tmp_path / "new")
    step = Step(old)
    entries = old.open("sink").numbers()
    with crash_at(point):
        copy_step(old, new)
    for late in (old,) if new.open("sink").numbers() == entries else (old, new):
        with pytest.raises(OutfallError):
            step.run(step.driver(late), 2)
    copy_step(old, new)
    step.check(new)


def test_a_target_that_holds_something_is_refused_and_the_source_goes_on(tmp_path: Path) -> None:
    old, new = STORES["checkpoint"](tmp_path), STORES["sqlite"](tmp_path)
    step, other = Step(old), Step(new)
    with pytest.raises(ConfigurationError, match="already contains recovery data of this step"):
        copy_step(old, new)
    step.check(old)
    other.check(new)


def test_what_was_moved_elsewhere_is_copied_from_there(tmp_path: Path) -> None:
    old, new = STORES["checkpoint"](tmp_path), STORES["sqlite"](tmp_path)
    step = Step(old)
    copy_step(old, new)
    with pytest.raises(ConfigurationError, match=r"was already moved to sqlite:"):
        copy_step(old, MemoryRecoveryConfig())
    third = MemoryRecoveryConfig()
    copy_step(new, third)
    step.check(third)


def test_nothing_to_copy_and_one_store_are_refused(tmp_path: Path) -> None:
    config = STORES["checkpoint"](tmp_path)
    with pytest.raises(ConfigurationError, match="no recovery data to copy"):
        copy_step(config, MemoryRecoveryConfig())
    with pytest.raises(ConfigurationError, match="source and target are both"):
        copy_step(config, config.url())


@pytest.mark.parametrize("store", STORES)
def test_one_store_under_two_names_is_refused_and_goes_on(
    store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    config = STORES[store](tmp_path / "real")
    again = STORES[store](tmp_path / "link") if store in ("checkpoint", "sqlite") else config
    names = itertools.count()
    monkeypatch.setattr(type(config), "url", lambda self: f"name {next(names)}")
    step = Step(config)
    before = config.open("sink").read()
    with pytest.raises(ConfigurationError, match="are one store"):
        copy_step(config, again)
    assert config.open("sink").read() == before
    assert not list(tmp_path.rglob("g0-*"))
    step.check(config)


def test_a_target_that_cannot_be_written_leaves_the_source_alone(tmp_path: Path) -> None:
    old = STORES["checkpoint"](tmp_path)
    step = Step(old)
    (tmp_path / "file").write_text("")
    with pytest.raises(OutfallError):
        copy_step(old, SqliteRecoveryConfig(str(tmp_path / "file" / "db")))
    step.check(old)


def test_a_lost_state_is_an_error(tmp_path: Path) -> None:
    old = STORES["checkpoint"](tmp_path)
    Step(old)
    for state in (tmp_path / "checkpoint" / "outfall" / "sink" / "states").iterdir():
        state.unlink()
    with pytest.raises(RecordError, match="is not in"):
        copy_step(old, MemoryRecoveryConfig())
