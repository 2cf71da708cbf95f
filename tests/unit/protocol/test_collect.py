"""Exactly one answer per task, at most one per part, all of one generation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from outfall.errors import FencedError, ResponsesError, TerminalError
from outfall.protocol.messages import TaskResponse, Ticket
from tests.unit.support.journals import entries, kinds
from tests.unit.support.setups import InPlace, Setup, Staging, content, counted


def begun(setup: Setup) -> tuple[Any, Ticket, list[TaskResponse]]:
    driver = setup.driver()
    coordinator = driver.coordinator()
    ticket = coordinator.begin(0)
    return coordinator, ticket, driver.run_tasks(ticket, 0, setup.tasks(content(0)))


def refused(setup: Setup, coordinator: Any, ticket: Ticket, answers: Sequence[TaskResponse]) -> str:
    """Finish, and check that the answers are refused before anything is recorded. Returns the text."""
    with pytest.raises((ResponsesError, FencedError)) as caught:
        coordinator.finish(ticket, answers)
    assert kinds(setup.recovery) == ["begin"]
    return str(caught.value)


def test_two_answers_of_one_task_are_refused() -> None:
    setup = Staging()
    coordinator, ticket, answers = begun(setup)
    assert "task 1 returned 2 results" in refused(setup, coordinator, ticket, [*answers, answers[1]])
    coordinator.finish(ticket, answers)
    assert setup.found() == counted(content(0))


def test_two_answers_for_one_part_are_refused() -> None:
    setup = InPlace()
    coordinator, ticket, answers = begun(setup)
    twice = answers[0].model_copy(update={"worker_index": 9})
    assert "part 'a' returned 2 results" in refused(setup, coordinator, ticket, [*answers, twice])


@pytest.mark.parametrize("change", [{"generation": 7}, {"incarnation": "0" * 16}])
def test_an_answer_of_another_generation_or_incarnation_is_refused(change: dict[str, Any]) -> None:
    setup = Staging()
    coordinator, ticket, answers = begun(setup)
    foreign = answers[2].model_copy(update=change)
    assert "a task returned a result of generation" in refused(setup, coordinator, ticket, [*answers[:2], foreign])


@pytest.mark.parametrize("change", [{"epoch": 1}, {"skipped": True}])
def test_answers_of_two_epochs_are_refused(change: dict[str, Any]) -> None:
    setup = Staging()
    coordinator, ticket, answers = begun(setup)
    refused(setup, coordinator, ticket, [*answers[:2], answers[2].model_copy(update=change)])


def test_an_answer_of_another_version_is_refused() -> None:
    setup = Staging()
    coordinator, ticket, answers = begun(setup)
    with pytest.raises(TerminalError, match="install the same version"):
        coordinator.finish(ticket, [*answers[:2], answers[2].model_copy(update={"outfall": "9.9"})])


def test_the_order_of_answers_does_not_matter() -> None:
    recorded = []
    for order in (1, -1):
        setup = Staging()
        coordinator, ticket, answers = begun(setup)
        coordinator.finish(ticket, answers[::order])
        prepared = next(entry for entry in entries(setup.recovery) if entry["kind"] == "prepared")
        recorded.append([item["worker_index"] for item in prepared["committables"]])
    assert recorded == [[0, 1, 2], [0, 1, 2]]


def test_counts_of_all_tasks_are_summed_and_stored() -> None:
    setup = Staging()
    driver = setup.driver()
    coordinator = driver.coordinator()
    ticket = coordinator.begin(0)
    answers = [driver.run_task(ticket, 0, i, [(None, [1, 2]), (None, [3])], retries=i) for i in range(3)]
    result = coordinator.finish(ticket, answers)
    assert result.counts == {"rows": 9, "task_retries": 3}
    assert entries(setup.recovery)[-1]["counts"] == {"rows": 9, "task_retries": 3}


def test_the_rows_of_an_epoch_without_rows_are_counted_too_and_when_it_runs_again() -> None:
    setup = Staging()
    results = [setup.driver().run_epoch(0, []) for _ in range(2)]
    assert [(result.skipped, result.counts["rows"]) for result in results] == [(False, 0), (True, 0)]


def test_states_of_parts_without_an_answer_are_carried_forward() -> None:
    setup = InPlace()
    driver = setup.driver()
    driver.run_epoch(0, [[("0", 1), ("0", 2), ("1", 3)]])
    driver.run_epoch(1, [[("1", 4)]])
    prepared = [entry for entry in entries(setup.recovery) if entry["kind"] == "prepared"]
    assert {part: state["text"] for part, state in prepared[-1]["states"].items()} == {"a": "2", "b": "2", "c": "0"}
    assert setup.found() == Counter([1, 2, 3, 4])


def test_answers_survive_their_way_through_bytes() -> None:
    setup = Staging()
    coordinator, ticket, answers = begun(setup)
    travelled = [TaskResponse.decode(answer.encode()) for answer in answers]
    assert travelled == answers
    coordinator.finish(ticket, travelled)
    assert setup.found() == counted(content(0))
