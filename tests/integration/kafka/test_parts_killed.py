"""A task is killed (-9) at each step of its transaction, and the epoch is written again: each row is there once."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from outfall.trace_points import listen
from tests.integration.support.kafka_broker import END_TXN, ModelBroker
from tests.integration.support.kafka_parts import PartsTopic, rows_of
from tests.integration.support.lives import FORK_SERVER

pytestmark = pytest.mark.faults

KILLED = (
    "kafka: before init", "kafka: after init", "kafka: begun", "kafka: before commit", "kafka: after commit",
    "task: after flush", "kafka: opening", "kafka: fencing", "kafka: opened",
)  # fmt: skip


def write_in_a_process(topic: PartsTopic, pid: Path, step: str | None = None) -> int | None:
    """Write the first epoch in a process that dies at a step, and return its exit status.

    It is no child of this one, where threads of other tests' clients may hold locks of the C library, which a child
    would never get: `getaddrinfo` has one.
    """
    writer = FORK_SERVER.Process(target=_write, args=(topic, pid, step))
    writer.start()
    writer.join(240)
    return writer.exitcode


def _write(topic: PartsTopic, pid: Path, step: str | None) -> None:
    pid.write_text(f"{os.getpid()}")
    listen(lambda reached: os.kill(os.getpid(), signal.SIGKILL) if reached == step else None)
    topic.query().epoch(0)


@pytest.mark.thorough
@pytest.mark.parametrize("step", ["task: after write", *(pytest.param(s, marks=pytest.mark.thorough) for s in KILLED)])
def test_an_epoch_that_was_killed_is_written_once(step: str, kafka: str, tmp_path: Path) -> None:
    topic = PartsTopic(kafka, tmp_path)
    assert write_in_a_process(topic, tmp_path / "pid", step) == -signal.SIGKILL
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

    def held(number: int, request: Any) -> bool:
        if number != END_TXN or not request.transactional_id.endswith("/0"):
            return False
        if not died:
            died.append(int(pid.read_text()))
            os.kill(died[0], signal.SIGKILL)
        return True

    died: list[int] = []
    model.held = held
    assert write_in_a_process(topic, pid) == -signal.SIGKILL
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
