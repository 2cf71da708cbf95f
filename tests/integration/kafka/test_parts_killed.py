"""A task is killed (-9) at each step of its transaction, and the epoch is written again: each row is there once."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from outfall.testing.conformance.driver import in_child, status_of_child_killed_at
from tests.integration.support.kafka_broker import END_TXN, ModelBroker
from tests.integration.support.kafka_parts import PartsTopic, rows_of

pytestmark = pytest.mark.faults

KILLED = (
    "kafka: before init", "kafka: after init", "kafka: begun", "kafka: before commit", "kafka: after commit",
    "task: after flush", "kafka: opening", "kafka: fencing", "kafka: opened",
)  # fmt: skip


@pytest.mark.parametrize("step", ["task: after write", *(pytest.param(s, marks=pytest.mark.thorough) for s in KILLED)])
def test_an_epoch_that_was_killed_is_written_once(step: str, kafka: str, tmp_path: Path) -> None:
    topic = PartsTopic(kafka, tmp_path)
    assert status_of_child_killed_at(step, lambda: topic.query().epoch(0)) == -signal.SIGKILL
    query = topic.query("second")
    found = query.epoch(0).counts.get("rows_present", 0)
    assert bool(found) == (step in {"kafka: after commit", "task: after flush"})
    query.epoch(1)
    assert topic.holds(rows_of(0), rows_of(1))


@pytest.mark.thorough
@pytest.mark.parametrize("arrives", ["before", "after"])
def test_a_commit_that_arrives_when_its_task_is_dead(arrives: str, model: ModelBroker, tmp_path: Path) -> None:
    """Killed between its last record and the answer; the commit is on its way, and another driver takes over."""
    topic = PartsTopic(model.address, tmp_path)
    pid = tmp_path / "pid"

    def run() -> None:
        pid.write_text(f"{os.getpid()}")
        topic.query().epoch(0)

    def held(number: int, request: Any) -> bool:
        if number != END_TXN or not request.transactional_id.endswith("/0"):
            return False
        if not died:
            died.append(int(pid.read_text()))
            os.kill(died[0], signal.SIGKILL)
        return True

    died: list[int] = []
    model.held = held
    assert in_child(run) == -signal.SIGKILL
    query = topic.query("second")
    if arrives == "before":
        model.held = lambda number, request: False
    else:
        known = query.sink.open_target

        def opened(context: Any) -> None:
            # The driver's own are not held.
            known(context)
            model.held = lambda number, request: False

        query.sink.open_target = opened
    query.epoch(0)
    query.epoch(1)
    assert topic.holds(rows_of(0), rows_of(1))
