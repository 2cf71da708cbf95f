"""Two drivers of one step."""

from __future__ import annotations

from contextlib import suppress

from outfall.testing.conformance.checks.attempts import task_steps
from outfall.testing.conformance.faults import ConformanceError, when
from outfall.testing.conformance.registry import check
from outfall.testing.conformance.stepping import Suspended, steps_of
from outfall.testing.conformance.trials import Trials


@check
def second_driver(trials: Trials) -> None:
    """A second driver takes the step over, and the first one goes on writing."""
    trial = trials.new()
    old, new = trial.driver(), trial.driver()
    trial.run(old, trial.bring(0))
    trial.run(new, trial.bring(1))
    for epoch in (1, 2):
        with suppress(Exception):
            old.run_epoch(epoch, trial.values(trial.bring(epoch)))
            raise ConformanceError(f"the engine let an older driver run epoch {epoch}")
    trial.run(new, trial.bring(2))
    trial.finish()


@check
def late_zombie(trials: Trials) -> None:
    """A driver that was overtaken starts its tasks, and they write into newer epochs."""
    for later in (0, 1):
        trial = trials.new()
        trial.run_epochs(1)
        old = trial.begin(trial.driver(), trial.bring(1))
        newer = trial.run_epochs(1 + later)
        with when(f"tasks of an older driver started {later} epochs after theirs was completed by a newer one"):
            for index in range(len(old.tasks)):
                with suppress(Exception):
                    old.answers[index] = old.run_task(index)
            with suppress(Exception):
                old.finish()
            trial.verify()
            trial.run(newer, trial.bring(trial.epoch))
            trial.finish()


@check
def zombie_of_an_older_generation(trials: Trials) -> None:
    """A task of an older driver wakes when a newer one has gone on, and writes or takes back rows."""
    for spec in task_steps(trials):
        for later in (0, 1):
            with when(f"a task stopped at {spec!r} and woke {later} epochs after a newer driver had completed its own"):
                _zombie(trials, spec, later)


def _zombie(trials: Trials, spec: str, later: int) -> None:
    trial = trials.new()
    trial.run_epochs(1)
    old = trial.begin(trial.driver(), trial.bring(1))
    task = Suspended(lambda: old.run_task(0), spec)
    newer = trial.driver()
    with suppress(Exception):
        trial.run_epochs(1 + later, newer)
    task.wake()
    with suppress(Exception):
        old.run_tasks()
    with suppress(Exception):
        old.finish()
    trial.verify()
    with suppress(Exception):
        trial.run_epochs(1, newer)
    trial.finish(max(1, trial.epoch))


@check
def old_driver_wakes(trials: Trials) -> None:
    """A driver that slept between any two steps of its epoch wakes when a newer one has gone on, and publishes."""
    for later in (0, 1):
        for spec in _driver_steps(trials):
            with when(f"a driver slept at {spec!r} and woke {later} epochs after a newer one had completed its own"):
                trial = trials.new()
                trial.run_epochs(1)
                content = trial.bring(1)
                old = Suspended(lambda trial=trial, content=content: trial.run(trial.driver(), content), spec)  # type: ignore[misc]
                with suppress(Exception):
                    for epoch in range(1, 2 + later):
                        trial.run(trial.driver(), trial.bring(epoch))
                old.wake()
                trial.verify()
                trial.finish(max(1, trial.epoch))


def _driver_steps(trials: Trials) -> list[str]:
    """Every step of an epoch but those of its tasks, which `zombie_of_an_older_generation` goes through."""
    trial = trials.new()
    trial.run_epochs(1)
    content = trial.bring(1)
    driver = trial.driver()
    of_tasks: list[str] = []
    steps = steps_of(lambda: trial.run(driver, content))
    first, last = steps.index("after BEGIN#1"), steps.index("after collect#1")
    of_tasks = [step for step in steps[first:last] if step.startswith("task:")]
    begins, ends = (steps.index(of_tasks[0]), steps.index(of_tasks[-1])) if of_tasks else (last, last)
    return steps[:begins] + steps[ends:]
