"""Epochs without rows, without answers, with one part and with a thousand."""

from __future__ import annotations

from collections import Counter
from itertools import chain

import pytest

from outfall.testing import LocalDriver, crash_at
from tests.unit.support.journals import kinds
from tests.unit.support.setups import EXACTLY_ONCE, InPlace, Setup, Staging, content, counted
from tests.unit.support.shelf import Shelf, ShelfSink


@pytest.mark.parametrize("tasks", [[], [[]], [[], [], []]], ids=["no task", "one task", "three tasks"])
@pytest.mark.parametrize("setup_type", EXACTLY_ONCE)
def test_an_empty_epoch_completes(setup_type: type[Setup], tasks: list[list[object]]) -> None:
    setup = setup_type()
    driver = setup.driver()
    result = driver.run_epoch(0, tasks)
    assert (result.epoch, result.skipped, result.counts.get("rows", 0)) == (0, False, 0)
    assert setup.found() == Counter()
    setup.run(driver, 1)
    setup.drain(2)
    assert setup.found() == counted(content(1))


def test_an_epoch_without_committables_needs_no_commit() -> None:
    setup = Staging()
    setup.driver().run_epoch(0, [[]])
    assert kinds(setup.recovery) == ["begin", "prepared", "completed"]
    assert setup.warehouse.offers == []


def test_no_answers_complete_the_epoch() -> None:
    setup = Staging()
    coordinator = setup.driver().coordinator()
    assert coordinator.finish(coordinator.begin(0), []).epoch == 0
    assert setup.driver().coordinator().begin(1).epoch == 1


def test_no_answers_of_a_completed_epoch_skip_it() -> None:
    setup = Staging()
    setup.run(setup.driver(), 0)
    coordinator = setup.driver().coordinator()
    assert coordinator.finish(coordinator.begin(0), []).skipped


def test_an_empty_replay_of_an_epoch_that_had_rows_leaves_none() -> None:
    setup = InPlace()
    with crash_at("after seal"):
        setup.run(setup.driver(), 0)
    setup.driver().run_epoch(0, [])
    assert setup.found() == Counter()


def test_batches_without_values_are_never_written() -> None:
    setup = Staging()
    driver = setup.driver()
    coordinator = driver.coordinator()
    ticket = coordinator.begin(0)
    coordinator.finish(ticket, [driver.run_task(ticket, 0, 0, [(None, []), (None, []), (None, [])])])
    assert setup.warehouse.published == {}


def test_one_part_takes_all_keys() -> None:
    shelf = Shelf()
    LocalDriver(ShelfSink(shelf, ["only"]), Staging().recovery).run_epoch(0, [[(str(i), i) for i in range(7)]])
    assert shelf.files["only"].values == list(range(7))


def test_a_thousand_parts_survive_a_crash_and_a_restart() -> None:
    shelf, recovery = Shelf(), Staging().recovery
    names = [f"p{i}" for i in range(1000)]

    def run(epoch: int, step: int) -> None:
        driver = LocalDriver(ShelfSink(shelf, names), recovery)
        driver.run_epoch(epoch, [[(str(i), (epoch, i)) for i in range(0, 1000, step)]])

    run(0, 1)
    with crash_at("fake: part sealed#500"):
        run(1, 1)
    run(1, 2)
    assert Counter(chain(*(file.values for file in shelf.files.values()))) == Counter(
        [(0, i) for i in range(1000)] + [(1, i) for i in range(0, 1000, 2)]
    )


def test_from_200_tasks_to_2_and_back() -> None:
    setup = Staging()

    def tasks(epoch: int, count: int) -> list[list[tuple[int, int]]]:
        return [[(epoch, i)] for i in range(count)]

    with crash_at("before PREPARED"):
        setup.driver().run_epoch(0, tasks(0, 200))
    assert len(setup.warehouse.staged) == 200
    setup.driver().run_epoch(0, tasks(0, 2))
    assert setup.warehouse.staged == {}
    driver = setup.driver()
    for epoch in range(1, 50):
        driver.run_epoch(epoch, tasks(epoch, 2))
    driver.run_epoch(50, tasks(50, 200))
    assert setup.found() == Counter((e, i) for e in range(51) for i in range(200 if e == 50 else 2))
