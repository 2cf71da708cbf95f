"""Driver crashes at every step: simulated, with real processes, and in random schedules."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from outfall.capabilities import SupportsCommitter
from outfall.protocol.messages import TaskResponse
from outfall.testing.conformance.driver import result_of_child, status_of_child_killed_at
from outfall.testing.conformance.faults import check, when
from outfall.testing.conformance.rows import Content
from outfall.testing.conformance.spying import OPENING, Probe, probing
from outfall.testing.conformance.stepping import watched
from outfall.testing.conformance.trial import Trial
from outfall.testing.conformance.trials import Trials, epoch_steps, sources
from outfall.testing.crash_points import crash_at

MOST_LINES = 150
"""Maximum number of crash lines per epoch, evenly distributed."""


@check
def crash_at_every_step(trials: Trials) -> None:
    """A driver crash at a step, or between two calls of the sink, loses or repeats rows."""
    steps = [(epoch, spec) for epoch in (0, 1) for spec in epoch_steps(trials, epoch)]
    for epoch, spec in trials.chosen(steps):
        _crash(trials, epoch, spec)


@check
def crash_at_every_line(trials: Trials) -> None:
    """A crash between two lines of the sink's own code loses or repeats rows."""
    files = sources(trials)
    trials.needs_to_try(bool(files), "the sink's source code is not in a file")
    for epoch in (0, 1):
        specs = [spec for spec in epoch_steps(trials, epoch, files=files) if spec.startswith("line ")]
        for spec in trials.chosen(_spread(specs, MOST_LINES)):
            _crash(trials, epoch, spec, files)


@check
def crash_twice(trials: Trials) -> None:
    """A driver that crashes where the previous driver crashed loses or repeats rows."""
    for spec in trials.chosen(epoch_steps(trials, 0)[::2]):
        trial = trials.new()
        with when(f"two drivers, one after the other, died at {spec!r}"):
            for _ in range(2):
                with crash_at(spec):
                    trial.complete(0)
            trial.finish(0)


def _crash(trials: Trials, epoch: int, spec: str, files: set[str] | None = None) -> None:
    trial = trials.new()
    driver = trial.run_epochs(epoch)
    content = trial.bring(epoch)
    with when(f"a driver died at {spec!r} of epoch {epoch}"):
        watched(files or set(), lambda: trial.run_until(spec, content, driver))
        trial.finish(epoch)


def _spread(specs: list[str], most: int) -> list[str]:
    """Limit the steps, evenly distributed."""
    step = max(1, -(-len(specs) // most))
    return specs[::step]


@check
def tasks_in_processes_of_their_own(trials: Trials) -> None:
    """Tasks pass data to the driver in a class, module or global. On Spark, that data is lost."""
    trials.needs_processes()
    trial = trials.new(durable_log=True)
    trial.run_epochs(1)
    begun = trial.begin(trial.driver(), trial.bring(1))
    with when("each task ran in a separate process"):
        for index in range(len(begun.tasks)):
            attempt = begun.driver.new_attempt()
            run = partial(begun.run_task, index, attempt=attempt)
            begun.answers[index] = result_of_child(run)
        begun.finish()
        trial.finish()


class _NeverClosing(Probe):
    """Keeps partitions open, so that their finalizers do not flush."""

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
    """Committables are incomplete until `close()`: rows are not yet flushed or sent."""
    trials.needs_processes()
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
    """A driver that is killed at a step, so that no clean-up runs, loses or repeats rows."""
    trials.needs_processes()
    for spec in trials.chosen(epoch_steps(trials, 1, durable_log=True)):
        trial = trials.new(durable_log=True)
        trial.run_epochs(1)
        content = trial.bring(1)
        with when(f"the driver's process was killed at {spec!r} of epoch 1"):
            if status_of_child_killed_at(spec, partial(_run, trial, content)) == 0:
                trial.counted[1] = [content.numbers]
            trial.finish(1)


def _run(trial: Trial, content: Content) -> None:
    trial.run(trial.driver(), content)


@check
def random_schedules(trials: Trials) -> None:
    """A random sequence of writes, failures, crashes, replays and pauses violates the guarantee."""
    from outfall.testing.conformance.search import search

    search(
        trials.harness,
        trials.directory,
        commits=SupportsCommitter in trials.resolved.capabilities,
        examples=trials.harness.schedules,
        random_seed=trials.harness.schedule_seed,
    )
