"""Random schedules of drivers, tasks, crashes and zombies: a reader finds each epoch once, in one of its contents."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from outfall.errors import FencedError, OutfallError, StaleWriterError
from outfall.protocol.coordinator import EpochCoordinator
from outfall.protocol.messages import TaskResponse, Ticket
from outfall.testing import LocalDriver, crash_at
from tests.one_each import thorough
from tests.unit.support.setups import InPlace, Row, Setup, Staging

# Each value is a part's index or a task's, so that a list of them is a content's routing.
ROUTES = st.lists(st.lists(st.integers(0, 2), max_size=3), max_size=4)

POINTS = st.sampled_from(
    [
        "before BEGIN",
        "log: newest checked#2",
        "after BEGIN",
        "after open target",
        "fake: part cut",
        "fake: value written#2",
        "task: after write",
        "fake: staged#2",
        "task: after snapshot",
        "task: after snapshot#2",
        "after collect",
        "fake: part sealed",
        "fake: part sealed#2",
        "after seal",
        "before PREPARED",
        "after PREPARED",
        "after COMMITTING",
        "before commit",
        "before commit#2",
        "after COMMITTED",
        "after COMMITTED#2",
        "fake: published one",
        "fake: published one#2",
        "after commit",
        "before COMPLETED",
        "after COMPLETED",
        "after clean-up",
    ]
)


@dataclass
class Begun:
    """An epoch that a driver has begun: its tasks may still run, whatever happens meanwhile."""

    driver: LocalDriver
    coordinator: EpochCoordinator
    ticket: Ticket
    epoch: int
    tasks: list[list[Any]]
    answers: dict[int, TaskResponse] = field(default_factory=dict)


class Schedules(RuleBasedStateMachine):
    """One step under one source that brings the next epoch once the former is completed, and again until then."""

    setup_type: type[Setup] = Staging

    def __init__(self) -> None:
        super().__init__()
        self.case = self.setup_type()
        self.driver = self.case.driver()
        self.epoch = 0
        self.contents: dict[int, list[list[Row]]] = {}
        self.completed: dict[int, Counter[Row]] = {}
        self.begun: list[Begun] = []

    # What the source brings: each time a content of its own, of which one has to be found.

    def bring(self, epoch: int, routes: list[list[int]]) -> list[list[Any]]:
        known = self.contents.setdefault(epoch, [])
        name = f"content {len(known)}"
        tasks = [
            [(epoch, name, index * 100 + i * 3 + route) for i, route in enumerate(r)] for index, r in enumerate(routes)
        ]
        known.append([row for task in tasks for row in task])
        return self.keyed(tasks)

    def keyed(self, tasks: list[list[Row]]) -> list[list[Any]]:
        return self.case.tasks(tasks)

    def of_epoch(self, epoch: int) -> Counter[Row]:
        return Counter({row: n for row, n in self.case.found().items() if row[0] == epoch})

    def complete(self) -> None:
        found = self.of_epoch(self.epoch)
        assert found in [Counter(content) for content in self.contents[self.epoch]]
        self.completed[self.epoch] = found
        self.epoch += 1

    def restart(self) -> None:
        self.driver = self.case.driver()

    # The driver's ways.

    @rule(routes=ROUTES)
    def an_epoch_runs(self, routes: list[list[int]]) -> None:
        tasks = self.bring(self.epoch, routes)
        try:
            self.driver.run_epoch(self.epoch, tasks)
        except FencedError:
            # A driver that was begun by hand, below, was the newer one.
            self.restart()
            return
        self.complete()

    @rule(routes=ROUTES, point=POINTS)
    def the_driver_dies(self, routes: list[list[int]], point: str) -> None:
        tasks = self.bring(self.epoch, routes)
        done = False
        with crash_at(point):
            try:
                self.driver.run_epoch(self.epoch, tasks)
            except FencedError:
                return self.restart()
            done = True
        if done:
            self.complete()
        return self.restart()

    @rule()
    def the_driver_is_started_again(self) -> None:
        self.restart()

    @rule(routes=ROUTES)
    @precondition(lambda self: self.completed)
    def a_completed_epoch_is_brought_again(self, routes: list[list[int]]) -> None:
        if self.of_epoch(self.epoch):
            return None
        again = self.epoch - 1
        self.restart()
        try:
            result = self.driver.run_epoch(again, self.bring(again, routes))
        except OutfallError:
            # The next epoch was recorded already.
            return self.restart()
        assert result.skipped
        return self.restart()

    @rule(routes=ROUTES)
    @precondition(lambda self: isinstance(self.case, Staging))
    def the_reply_of_the_commit_is_lost(self, routes: list[list[int]]) -> None:
        tasks = self.bring(self.epoch, routes)
        with self.case.warehouse.replies_lost():  # type: ignore[attr-defined]
            try:
                self.driver.run_epoch(self.epoch, tasks)
            except OutfallError:
                return self.restart()
        return self.complete()

    # Step by step, so that others come between.

    @rule(routes=ROUTES)
    @precondition(lambda self: len(self.begun) < 3)
    def a_driver_begins(self, routes: list[list[int]]) -> None:
        driver = self.case.driver()
        coordinator = driver.coordinator()
        tasks = self.bring(self.epoch, routes)
        ticket = coordinator.begin(self.epoch)
        self.begun.append(Begun(driver, coordinator, ticket, self.epoch, tasks))

    @rule(data=st.data())
    @precondition(lambda self: self.begun)
    def a_task_attempt_runs(self, data: st.DataObject) -> None:
        begun = data.draw(st.sampled_from(self.begun), "begun")
        tasks = self.routed(begun)
        index = data.draw(st.integers(0, len(tasks) - 1), "task") if tasks else 0
        if not tasks:
            return
        deliver = data.draw(st.booleans(), "delivered")
        try:
            answer = begun.driver.run_task(begun.ticket, begun.epoch, index, tasks[index])
        except StaleWriterError:
            return
        if deliver or index not in begun.answers:
            begun.answers[index] = answer

    @rule(data=st.data(), point=POINTS)
    @precondition(lambda self: self.begun)
    def a_task_attempt_dies(self, data: st.DataObject, point: str) -> None:
        begun = data.draw(st.sampled_from(self.begun), "begun")
        tasks = self.routed(begun)
        if tasks:
            with crash_at(point):
                try:
                    begun.driver.run_task(begun.ticket, begun.epoch, len(tasks) - 1, tasks[-1])
                except StaleWriterError:
                    return

    @rule(data=st.data(), point=st.none() | POINTS)
    @precondition(lambda self: self.begun)
    def a_begun_epoch_goes_on(self, data: st.DataObject, point: str | None) -> None:
        begun = data.draw(st.sampled_from(self.begun), "begun")
        self.begun.remove(begun)
        done = False
        with crash_at(point):
            try:
                for index, task in enumerate(self.routed(begun)):
                    if index not in begun.answers:
                        begun.answers[index] = begun.driver.run_task(begun.ticket, begun.epoch, index, task)
                begun.coordinator.finish(begun.ticket, list(begun.answers.values()))
            except OutfallError:
                return
            done = True
        if done and begun.epoch == self.epoch:
            self.complete()

    def routed(self, begun: Begun) -> list[list[tuple[str | None, list[Any]]]]:
        if isinstance(self.case, InPlace):
            return begun.driver.route(begun.tasks)
        return [[(None, list(task))] for task in begun.tasks]

    # What a reader finds.

    @invariant()
    def completed_epochs_never_change(self) -> None:
        for epoch, rows in self.completed.items():
            assert self.of_epoch(epoch) == rows

    @invariant()
    def nothing_of_an_unknown_epoch_is_there(self) -> None:
        assert {row[0] for row in self.case.found()} <= set(range(self.epoch + 1))

    @invariant()
    def no_row_of_the_current_epoch_is_published_beside_another_content(self) -> None:
        if isinstance(self.case, InPlace):
            return
        found = self.of_epoch(self.epoch)
        assert not found or any(found <= Counter(content) for content in self.contents[self.epoch])

    def teardown(self) -> None:
        """Whatever happened, the stream goes on, and the zombies are too late."""
        self.restart()
        for _ in range(2):
            tasks = self.bring(self.epoch, [[0, 1], [2]])
            self.driver.run_epoch(self.epoch, tasks)
            self.complete()
        for begun in self.begun:
            for index, task in enumerate(self.routed(begun)):
                try:
                    begun.answers[index] = begun.driver.run_task(begun.ticket, begun.epoch, index, task)
                except OutfallError:
                    continue
            if begun.epoch < self.epoch:
                with pytest.raises(OutfallError):
                    begun.coordinator.finish(begun.ticket, list(begun.answers.values()))
        self.completed_epochs_never_change()


class InPlaceSchedules(Schedules):
    setup_type = InPlace

    def keyed(self, tasks: list[list[Row]]) -> list[list[Any]]:
        return [[(str(row[2] % 3), row) for row in task] for task in tasks]


MACHINES = [Schedules, InPlaceSchedules]


def run(machine: type[Schedules], examples: int, steps: int) -> None:
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.mark.parametrize("examples", [6, thorough(25)])
@pytest.mark.parametrize("machine", MACHINES)
def test_any_short_schedule_writes_each_epoch_once(machine: type[Schedules], examples: int) -> None:
    run(machine, examples, steps=20)


@pytest.mark.long
@pytest.mark.parametrize("machine", MACHINES)
def test_any_long_schedule_writes_each_epoch_once(machine: type[Schedules]) -> None:
    run(machine, examples=300, steps=40)
