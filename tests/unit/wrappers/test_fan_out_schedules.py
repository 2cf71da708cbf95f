"""Random schedules over three sinks that fail independently: a reader of each finds each epoch once, the same one."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule

from outfall.errors import OutfallError
from tests.unit.protocol.test_random_schedules import ROUTES, InPlaceSchedules, Schedules, run
from tests.unit.support.fanned import Fanned, FannedInPlace
from tests.unit.support.setups import Row, Setup


class FannedSchedules(Schedules):
    setup_type: type[Setup] = Fanned
    case: Any

    def of_epoch_in_each(self, epoch: int) -> list[Counter[Row]]:
        return [Counter({row: n for row, n in found.items() if row[0] == epoch}) for found in self.case.founds()]

    def complete(self) -> None:
        first, *others = self.of_epoch_in_each(self.epoch)
        assert others == [first] * len(others)
        super().complete()

    @rule(routes=ROUTES, refusing=st.sets(st.sampled_from([0, 2]), min_size=1))
    def some_sinks_refuse_to_commit(self, routes: list[list[int]], refusing: set[int]) -> None:
        tasks = self.bring(self.epoch, routes)
        with self.case.refused_by(sorted(refusing)):
            try:
                self.driver.run_epoch(self.epoch, tasks)
            except OutfallError:
                return self.restart()
        return self.complete()

    @invariant()
    def completed_epochs_never_change_anywhere(self) -> None:
        for epoch, rows in self.completed.items():
            assert self.of_epoch_in_each(epoch) == [rows] * 3


class FannedInPlaceSchedules(FannedSchedules, InPlaceSchedules):
    setup_type = FannedInPlace


MACHINES = [FannedSchedules, FannedInPlaceSchedules]


@pytest.mark.parametrize("examples", [6, pytest.param(25, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("machine", MACHINES)
def test_any_short_schedule_writes_each_epoch_once_to_each_of_three(machine: type[Schedules], examples: int) -> None:
    run(machine, examples=examples, steps=20)


@pytest.mark.long
@pytest.mark.parametrize("machine", MACHINES)
def test_any_long_schedule_writes_each_epoch_once_to_each_of_three(machine: type[Schedules]) -> None:
    run(machine, examples=300, steps=40)
