"""Real processes: a driver that is killed, and tasks that share nothing with their driver."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from outfall.protocol.messages import TaskResponse
from outfall.testing.conformance.checks.crashes import epoch_steps
from outfall.testing.conformance.faults import when
from outfall.testing.conformance.forks import needs_processes, result_of_child, status_of_child_killed_at
from outfall.testing.conformance.registry import check
from outfall.testing.conformance.spying import OPENING, Probe, probing
from outfall.testing.conformance.trial import Content, Trial
from outfall.testing.conformance.trials import Trials


@check
def tasks_in_processes_of_their_own(trials: Trials) -> None:
    """Tasks tell their driver something through a class, a module or a global: on Spark nobody hears it."""
    needs_processes(trials)
    trial = trials.new(durable_log=True)
    trial.run_epochs(1)
    begun = trial.begin(trial.driver(), trial.bring(1))
    with when("each task ran in a process of its own"):
        for index in range(len(begun.tasks)):
            attempt = begun.driver.new_attempt()
            run = partial(begun.run_task, index, attempt=attempt)
            begun.answers[index] = result_of_child(run)
        begun.finish()
        trial.finish()


class _NeverClosing(Probe):
    """Keeps partitions open, so that not even their end flushes what they hold."""

    def __init__(self) -> None:
        self._opened: list[Any] = []

    def around(self, method: str, args: tuple[Any, ...], call: Callable[[], Any]) -> Any:
        if method == "close":
            return None
        result = super().around(method, args, call)
        if method in OPENING:
            self._opened.append(result)
        return result


@check
def killed_before_close(trials: Trials) -> None:
    """What a task hands over is complete only when `close()` has run: rows wait there to be flushed or sent."""
    needs_processes(trials)
    trial = trials.new(durable_log=True)
    trial.run_epochs(1)
    begun = trial.begin(trial.driver(), trial.bring(1))

    probe = _NeverClosing()

    def run(index: int, attempt: int) -> TaskResponse:
        with probing(probe):
            return begun.run_task(index, attempt=attempt)

    with when("each task's process was killed between its snapshot and close()"):
        for index in range(len(begun.tasks)):
            begun.answers[index] = result_of_child(partial(run, index, begun.driver.new_attempt()))
        begun.finish()
        trial.finish()


@check
def killed_at_every_step(trials: Trials) -> None:
    """A driver that is really killed at some step, so that no cleaning up runs, loses or repeats rows."""
    needs_processes(trials)
    # Not within an append to the log, which is the engine's own business and tested with it.
    for spec in [step for step in epoch_steps(trials, 1, durable_log=True) if not step.startswith("log:")]:
        trial = trials.new(durable_log=True)
        trial.run_epochs(1)
        content = trial.bring(1)
        with when(f"the driver's process was killed at {spec!r} of epoch 1"):
            if status_of_child_killed_at(spec, partial(_run, trial, content)) == 0:
                trial.counted[1] = [content.numbers]
            trial.finish(1)


def _run(trial: Trial, content: Content) -> None:
    trial.run(trial.driver(), content)
