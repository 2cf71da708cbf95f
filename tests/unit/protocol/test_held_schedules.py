"""Random schedules with a sink that holds rows back, and drains among them: in the end each row is there once."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule

from outfall.capability_checks import resolve
from outfall.errors import FencedError, OutfallError
from outfall.testing import crash_at
from tests.unit.protocol.test_random_schedules import POINTS, ROUTES, Begun, Schedules, run
from tests.unit.support.hoarding import Hoarding, HoardingInParts

DRAIN_POINTS = POINTS | st.sampled_from(["task: before flush", "task: after prepare_commit#2", "after BEGIN"])


class HoardingSchedules(Schedules):
    """Rows come late, and none comes twice, is lost or is of another content than the rest of its epoch."""

    setup_type = Hoarding

    def complete(self) -> None:
        self.completed[self.epoch] = Counter()
        self.epoch += 1

    def routed(self, begun: Begun) -> list[list[tuple[str | None, list[Any]]]]:
        if resolve(begun.driver.sink).fixed:
            return begun.driver.route(begun.tasks)
        return [[(None, list(task))] for task in begun.tasks]

    @rule()
    def what_is_held_is_drained(self) -> None:
        try:
            self.driver.drain()
        except FencedError:
            self.restart()
            return
        self.nothing_is_held()

    @rule(point=DRAIN_POINTS)
    def a_drain_dies(self, point: str) -> None:
        with crash_at(point), suppress(FencedError):
            self.driver.drain()
        self.restart()

    @rule(routes=ROUTES, point=DRAIN_POINTS)
    def a_drain_dies_and_the_next_batch_comes(self, routes: list[list[int]], point: str) -> None:
        self.a_drain_dies(point)
        self.an_epoch_runs(routes)

    def nothing_is_held(self) -> None:
        assert self.driver.coordinator()._step.journal.read().buffered.rows == 0
        for epoch in self.completed:
            assert self.of_epoch(epoch) in [Counter(content) for content in self.contents[epoch]]

    def a_completed_epoch_is_brought_again(self, routes: list[list[int]]) -> None:
        """Skipped here: whether the next epoch is recorded cannot be told from what is found."""

    @rule(routes=ROUTES)
    def the_completed_batch_is_brought_again(self, routes: list[list[int]]) -> None:
        self.restart()
        if self.epoch == 0:
            return None
        tasks = self.bring(self.epoch - 1, routes)
        try:
            result = self.driver.run_epoch(self.epoch - 1, tasks)
        except OutfallError:
            return self.restart()
        assert result.skipped
        return self.restart()

    @invariant()
    def completed_epochs_never_change(self) -> None:
        """No row twice, and none of two contents of one epoch."""
        found = self.case.found()
        assert all(count == 1 for count in found.values())
        for epoch, contents in self.contents.items():
            rows = Counter({row: 1 for row in found if row[0] == epoch})
            assert not rows or any(rows <= Counter(content) for content in contents)

    def teardown(self) -> None:
        super().teardown()
        self.restart()
        self.driver.drain()
        self.nothing_is_held()


class HoardingInPartsSchedules(HoardingSchedules):
    setup_type = HoardingInParts


MACHINES = [HoardingSchedules, HoardingInPartsSchedules]


@pytest.mark.parametrize("examples", [8, pytest.param(25, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("machine", MACHINES)
def test_any_short_schedule_delivers_each_row_once(machine: type[Schedules], examples: int) -> None:
    run(machine, examples=examples, steps=20)


@pytest.mark.long
@pytest.mark.parametrize("machine", MACHINES)
def test_any_long_schedule_delivers_each_row_once(machine: type[Schedules]) -> None:
    run(machine, examples=300, steps=40)
