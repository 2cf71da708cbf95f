"""Attempts of one driver at one task: those that do not count change nothing, whenever they write."""

from __future__ import annotations

from collections import Counter

import pytest

from outfall.capabilities import WriterInitContext
from outfall.errors import SealError, StaleWriterError
from tests.unit.support.points import error_of, meanwhile
from tests.unit.support.setups import InPlace, Staging, content, counted


class Stalled:
    """A task attempt that stops after its first value and can be woken, while another attempt of its driver wins."""

    def __init__(self, setup: InPlace) -> None:
        self.driver = setup.driver()
        self.coordinator = self.driver.coordinator()
        self.ticket = self.coordinator.begin(0)
        context = WriterInitContext(
            "sink", self.ticket.incarnation, self.ticket.generation, epoch=0, part="a", attempt=-1
        )
        self._partition = self.driver.sink.bind(context).build_part("sink", "a", None)
        self._partition.write_batch(["stalled"])
        self.answers = self.driver.run_tasks(self.ticket, 0, [[("0", (0, "a", 0))]])

    def wake(self) -> None:
        with pytest.raises(StaleWriterError):
            self._partition.write_batch(["late"])
        with pytest.raises(StaleWriterError):
            self._partition.snapshot()

    def finish(self) -> None:
        self.coordinator.finish(self.ticket, self.answers)


@pytest.mark.parametrize("moment", ["winner wrote", "after PREPARED", "after COMPLETED", "next epoch"])
def test_a_stalled_attempt_of_the_same_generation_changes_nothing(moment: str) -> None:
    setup = InPlace()
    stalled = Stalled(setup)
    if moment == "winner wrote":
        stalled.wake()
    with meanwhile(moment, stalled.wake):
        stalled.finish()
    if moment == "next epoch":
        stalled.driver.run_epoch(1, [])
        stalled.wake()
    assert setup.found() == Counter([(0, "a", 0)])


def test_an_attempt_that_overtakes_the_winner_makes_the_epoch_run_again() -> None:
    setup = InPlace()
    driver = setup.driver()
    coordinator = driver.coordinator()
    ticket = coordinator.begin(0)
    winner = driver.run_task(ticket, 0, 0, [("a", ["winner"])])
    driver.run_task(ticket, 0, 0, [("a", ["speculative"])])
    with pytest.raises(SealError):
        coordinator.finish(ticket, [winner])
    setup.run(driver, 0)
    assert setup.found() == counted(content(0))


def test_a_sealed_part_refuses_the_epochs_own_attempts() -> None:
    setup = InPlace()
    driver = setup.driver()
    coordinator = driver.coordinator()
    ticket = coordinator.begin(0)
    answers = [driver.run_task(ticket, 0, 0, [("a", [(0, "a", 0)])])]
    with meanwhile("after PREPARED", lambda: error_of(lambda: driver.run_task(ticket, 0, 0, [("a", ["late"])]))):
        coordinator.finish(ticket, answers)
    with pytest.raises(StaleWriterError):
        driver.run_task(ticket, 0, 0, [("b", ["late"])])
    assert setup.found() == Counter([(0, "a", 0)])


def test_an_attempt_of_a_staging_sink_that_is_not_delivered_stays_invisible_and_is_cleaned_up() -> None:
    setup = Staging()
    driver = setup.driver()
    coordinator = driver.coordinator()
    ticket = coordinator.begin(0)
    driver.run_task(ticket, 0, 0, [(None, ["speculative"])])
    coordinator.finish(ticket, [driver.run_task(ticket, 0, 0, [(None, [(0, "a", 0)])])])
    driver.run_task(ticket, 0, 0, [(None, ["late"])])
    assert len(setup.warehouse.staged) == 2
    setup.run(driver, 1)
    assert setup.warehouse.staged == {}
    assert setup.found() == Counter([(0, "a", 0)]) + counted(content(1))
