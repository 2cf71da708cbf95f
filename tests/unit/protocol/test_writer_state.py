"""State of dynamic sinks: after rescaling each state is consumed by exactly one writer, or carried forward."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from outfall.protocol.step import EpochOptions
from outfall.testing import LocalDriver, crash_at
from tests.unit.support.journals import entries
from tests.unit.support.setups import Staging
from tests.unit.support.warehouse import HoldingSink, Warehouse, rows_of


class Case:
    """One step that holds rows back for an epoch, written by changing numbers of workers."""

    def __init__(self, recovery: str | None = None) -> None:
        self.warehouse = Warehouse()
        self.recovery = recovery or Staging().recovery
        self.epoch = 0

    def run(
        self, tasks: list[list[object]], *, fixed: bool = True, step_id: str = "sink", adopts: tuple[str, ...] = ()
    ) -> None:
        sink = HoldingSink(self.warehouse, adopts=adopts)
        options = EpochOptions(worker_count=len(tasks) if fixed else 0)
        rows: list[list[object]] = [[[row] for row in task] for task in tasks]
        LocalDriver(sink, self.recovery, step_id=step_id, options=options).run_epoch(self.epoch, rows)
        self.epoch += 1

    def emitted(self) -> Counter[object]:
        return Counter(value for row in rows_of(self.warehouse) for value in row)

    def held(self, step_id: str = "sink") -> int:
        prepared = [entry for entry in entries(self.recovery, step_id) if entry["kind"] == "prepared"]
        return len(prepared[-1]["writer_states"])


def test_rows_held_back_come_with_the_next_epoch() -> None:
    case = Case()
    case.run([[1, 2], [3]])
    assert (case.emitted(), case.held()) == (Counter(), 3)
    case.run([[4], []])
    assert (case.emitted(), case.held()) == (Counter([1, 2, 3]), 1)


def test_rescaling_from_2_to_4_to_1_consumes_each_state_once() -> None:
    case = Case()
    case.run([[1, 2, 3], [4, 5]])
    case.run([[6], [7], [8], [9, 10]])
    assert case.emitted() == Counter([1, 2, 3, 4, 5])
    case.run([[11]])
    assert case.emitted() == Counter(range(1, 11))
    case.run([[]])
    assert (case.emitted(), case.held()) == (Counter(range(1, 12)), 0)


def test_states_that_no_task_consumes_are_carried_forward() -> None:
    case = Case()
    case.run([[1], [2], [3]])
    case.run([[]], fixed=False)
    assert (len(case.emitted()), case.held()) == (1, 2)
    case.run([[]], fixed=False)
    case.run([[]], fixed=False)
    assert (case.emitted(), case.held()) == (Counter([1, 2, 3]), 0)


def test_an_epoch_without_tasks_carries_all_states_forward() -> None:
    case = Case()
    case.run([[1], [2]])
    case.run([])
    assert (case.emitted(), case.held()) == (Counter(), 2)


@pytest.mark.parametrize("point", ["after BEGIN", "task: after snapshot#2", "after PREPARED", "fake: published one"])
def test_a_crash_loses_and_repeats_no_state(point: str) -> None:
    case = Case()
    case.run([[1, 2], [3]])
    with crash_at(point):
        case.run([[4], [5]])
    case.epoch = 1
    case.run([[5, 4]])
    case.run([[]])
    assert case.emitted() == Counter([1, 2, 3, 4, 5])


def test_states_of_another_step_are_adopted_once() -> None:
    case = Case()
    case.run([[1, 2]], step_id="old")
    case.epoch = 0
    case.run([[3]], step_id="new", adopts=("old",))
    assert case.emitted() == Counter([1, 2])
    case.run([[]], step_id="new", adopts=("old",))
    case.run([[]], step_id="new", adopts=("old",))
    assert case.emitted() == Counter([1, 2, 3])


@pytest.mark.parametrize("point", ["before BEGIN", "after BEGIN", "after collect", "after PREPARED"])
def test_adoption_survives_a_crash_and_happens_once(point: str) -> None:
    case = Case()
    case.run([[1, 2]], step_id="old")
    case.epoch = 0
    with crash_at(point):
        case.run([[3]], step_id="new", adopts=("old",))
    case.epoch = 0
    case.run([[3]], step_id="new", adopts=("old",))
    case.run([[]], step_id="new", adopts=("old",))
    assert case.emitted() == Counter([1, 2, 3])


def test_adopting_from_a_step_that_never_ran_brings_nothing() -> None:
    case = Case()
    case.run([[1]], step_id="new", adopts=("old", "new"))
    case.run([[]], step_id="new")
    assert case.emitted() == Counter([1])


def test_large_states_of_another_step_are_adopted(tmp_path: Path) -> None:
    case = Case(str(tmp_path))
    large = "x" * 100_000
    case.run([[large]], step_id="old")
    case.epoch = 0
    case.run([[]], step_id="new", adopts=("old",))
    assert case.emitted() == Counter([large])
    assert list((tmp_path / "outfall" / "old" / "states").iterdir())


def test_large_states_that_are_carried_forward_are_kept(tmp_path: Path) -> None:
    case = Case(str(tmp_path))
    rows: list[object] = [number * 100_000 for number in "abc"]
    case.run([[row] for row in rows])
    for _ in rows:
        case.run([[]], fixed=False)
    assert case.emitted() == Counter(rows)
