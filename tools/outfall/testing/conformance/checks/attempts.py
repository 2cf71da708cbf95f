"""Several attempts of one task, and two drivers of one step."""

from __future__ import annotations

from contextlib import suppress
from itertools import product

from outfall.testing.conformance.faults import ConformanceError, check, when
from outfall.testing.conformance.stepping import Suspended, at_step, failing_at, steps_of
from outfall.testing.conformance.trial import Begun, Trial, Trials
from outfall.testing.crash_points import crash_at


def task_steps(trials: Trials) -> list[str]:
    """Return every step of the first task of an epoch."""
    begun = begun_epoch(trials.new())
    return steps_of(lambda: begun.run_task(0))


def begun_epoch(trial: Trial) -> Begun:
    """Begin the second epoch."""
    trial.run_epochs(1)
    return trial.begin(trial.driver(), trial.bring(1))


@check
def task_retry(trials: Trials) -> None:
    """Rows of a failed task attempt remain, because nothing rolls them back."""
    for spec in trials.chosen(task_steps(trials)):
        begun = begun_epoch(trials.new())
        with when(f"an attempt of a task failed at {spec!r}, and the next attempt succeeded"):
            with failing_at(spec):
                begun.run_task(0)
            begun.answers[0] = begun.run_task(0, retries=1)
            begun.run_tasks()
            begun.finish()
            begun.trial.finish()


@check
def two_attempts_finish(trials: Trials) -> None:
    """Two attempts of a task finish, as under speculation. Both count, or neither does."""
    for delivered in ("first", "second"):
        begun = begun_epoch(trials.new())
        with when(f"two attempts of a task finished, and the result of the {delivered} was delivered"):
            answers = [begun.run_task(0), begun.run_task(0)]
            begun.answers[0] = answers[0 if delivered == "first" else 1]
            begun.run_tasks()
            # If an attempt writes in place after the winner, the seal fails and the epoch runs again.
            with suppress(Exception):
                begun.finish()
            begun.trial.finish(1)


@check
def attempt_after_the_winner(trials: Trials) -> None:
    """An attempt starts after another has won, and is killed. It removes or changes the winner's rows."""
    for spec, moment in trials.chosen(product(task_steps(trials), MOMENTS[:3])):
        begun = begun_epoch(trials.new())
        with when(f"an attempt started {moment}, when another one had won, and died at {spec!r}"):
            begun.run_tasks()
            # If an attempt writes in place after the winner, the seal fails and the epoch runs again.
            with suppress(Exception):
                if moment == MOMENTS[0]:
                    _die(begun, spec)
                with at_step(moment, lambda begun=begun, spec=spec: _die(begun, spec)):  # type: ignore[misc]
                    begun.finish()
            begun.trial.verify()
            begun.trial.finish(max(1, begun.trial.epoch))


def _die(begun: Begun, spec: str) -> None:
    # The attempt is rejected or dies. Its result is lost in both cases.
    with suppress(Exception), crash_at(spec):
        begun.run_task(0)


MOMENTS = ("before the results are collected", "after PREPARED", "after COMPLETED", "after the next epoch")


@check
def stalled_attempt(trials: Trials) -> None:
    """A stalled attempt continues after another attempt of the same driver has won, and changes rows."""
    for spec, moment in trials.chosen(product(task_steps(trials), MOMENTS)):
        with when(f"an attempt was suspended at {spec!r} and resumed {moment}"):
            _stall(begun_epoch(trials.new()), spec, moment)


def _stall(begun: Begun, spec: str, moment: str) -> None:
    stalled = Suspended(lambda: begun.run_task(0), spec)
    # The suspended attempt may have a lock that blocks the others.
    with suppress(Exception):
        begun.run_tasks()
        if moment == MOMENTS[0]:
            stalled.wake()
        with at_step(moment, stalled.wake):
            begun.finish()
        if moment == MOMENTS[3]:
            begun.trial.run(begun.driver, begun.trial.bring(2))
    stalled.wake()
    # A later epoch would roll back its changes.
    begun.trial.verify()
    begun.trial.finish(max(1, begun.trial.epoch))


@check
def second_driver(trials: Trials) -> None:
    """A second driver takes over the step, and the first driver continues to write."""
    trial = trials.new()
    old, new = trial.driver(), trial.driver()
    trial.run(old, trial.bring(0))
    trial.run(new, trial.bring(1))
    for epoch in (1, 2):
        with suppress(Exception):
            old.run_epoch(epoch, trial.values(trial.bring(epoch)))
            raise ConformanceError(f"the engine allowed an old driver to run epoch {epoch}")
    trial.run(new, trial.bring(2))
    trial.finish()


@check
def late_zombie(trials: Trials) -> None:
    """An old driver starts its tasks after the takeover, and they write into newer epochs."""
    for later in (0, 1):
        trial = trials.new()
        trial.run_epochs(1)
        old = trial.begin(trial.driver(), trial.bring(1))
        newer = trial.run_epochs(1 + later)
        with when(f"tasks of an old driver started {later} epochs after a newer driver completed their epoch"):
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
    """A task of an old driver continues after the takeover, and writes or rolls back rows."""
    for spec, later in trials.chosen(product(task_steps(trials), (0, 1))):
        with when(
            f"a task was suspended at {spec!r} and resumed {later} epochs after a newer driver completed its epoch"
        ):
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
    """An old driver continues after the takeover, from any step of its epoch, and publishes."""
    for spec, later in trials.chosen(product(_driver_steps(trials), (0, 1))):
        with when(
            f"a driver was suspended at {spec!r} and resumed {later} epochs after a newer driver completed its epoch"
        ):
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
    """Return every step of an epoch except those of tasks, which `zombie_of_an_older_generation` covers."""
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
