"""Several attempts of one task, and two drivers of one step."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import islice, product
from typing import Any

from outfall.capabilities import Guarantee
from outfall.testing.conformance.driver import RemoteTasks
from outfall.testing.conformance.faults import ConformanceError, check, when
from outfall.testing.conformance.harness import gives
from outfall.testing.conformance.rows import Content
from outfall.testing.conformance.stepping import (
    PATIENCE,
    Suspended,
    announcing_lines,
    at_step,
    changing,
    failing_at,
    steps_of,
)
from outfall.testing.conformance.trial import TASKS, Begun, Trial
from outfall.testing.conformance.trials import Trials, epoch_steps, sources
from outfall.testing.crash_points import crash_at
from outfall.trace_points import reached


def task_steps(trials: Trials) -> list[str]:
    """Return the steps of the first task of an epoch at which the target may have changed, and its last one."""
    begun = begun_epoch(trials.new())
    return changing(steps_of(lambda: begun.run_task(0)))


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
    for spec, moment in trials.chosen(product(task_steps(trials), MOMENTS)):
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


@check
def concurrent_tasks(trials: Trials) -> None:
    """Tasks of an epoch run at the same time, and one of them loses, repeats or takes rows of another."""
    trials.needs(len(begun_epoch(trials.new()).tasks) > 1, "all rows go to one task")
    for spec in trials.chosen(task_steps(trials)):
        begun = begun_epoch(trials.new())
        with when(f"a task was suspended at {spec!r} until the others had ended"):
            first = Suspended(lambda begun=begun: begun.run_task(0), spec)  # type: ignore[misc]
            # A task that waits for a lock of the suspended one may fail. It is tried again.
            with suppress(Exception):
                for index in range(1, len(begun.tasks)):
                    begun.answers[index] = begun.run_task(index)
            first.wake()
            if first.error is None:
                begun.answers[0] = first.result
            begun.run_tasks()
            begun.finish()
            begun.trial.finish()


MOMENTS = ("before the results are collected", "after PREPARED", "after COMPLETED")
OTHERS, LAST = "before the other tasks", "before the last task"
EPOCH, NEXT_EPOCH = "after the epoch", "after the next epoch"
MOST = 80
"""Maximum number of pairs of steps, evenly distributed."""


@check
def stalled_attempt(trials: Trials) -> None:
    """A stalled attempt continues while or after another attempt of the same driver wins, and changes rows."""
    for spec, moment in trials.chosen(product(task_steps(trials), _moments(trials, newer=False)), MOST):
        with when(f"an attempt was suspended at {spec!r} and resumed at {moment!r} of the next attempt"):
            _stale(trials, spec, moment, newer=False)


@check
def zombie_of_an_older_generation(trials: Trials) -> None:
    """A task of an old driver continues while or after a newer driver completes its epoch, and changes rows."""
    for spec, moment in trials.chosen(product(task_steps(trials), _moments(trials, newer=True)), MOST):
        with when(f"a task was suspended at {spec!r} and resumed at {moment!r} of a newer driver"):
            _stale(trials, spec, moment, newer=True)


def _moments(trials: Trials, *, newer: bool) -> list[str]:
    """Return the steps of the next attempt and its driver, and those of the commit of the next epoch."""
    begun = begun_epoch(trials.new())
    driver = begun.trial.driver() if newer else None
    steps = steps_of(lambda: _replace(begun, driver, lambda: False))
    others, last, epoch, commit = (
        steps.index(step) for step in (f"{OTHERS}#1", f"{LAST}#1", f"{EPOCH}#1", "after collect#2")
    )
    phases = {f"{name}#1" for name in (*MOMENTS, "before BEGIN", "after BEGIN", OTHERS, LAST, EPOCH, NEXT_EPOCH)}
    kept = steps[: others + 1] + steps[last : epoch + 1] + steps[commit:]
    return [step for step in kept if step in phases or step in changing([step])]


def _replace(begun: Begun, newer: RemoteTasks | None, enough: Callable[[], bool]) -> None:
    """Complete an epoch with other attempts, of the same or a newer driver, and the next one unless it is enough."""
    trial = begun.trial
    new = trial.begin(newer, trial.bring(1)) if newer else begun
    reached(OTHERS)
    for index in range(len(new.tasks) - 1):
        new.answers[index] = new.run_task(index)
    reached(LAST)
    new.run_tasks()
    reached(MOMENTS[0])
    new.finish()
    reached(EPOCH)
    if not enough():
        trial.run(new.driver, trial.bring(2))
        reached(NEXT_EPOCH)


def _stale(trials: Trials, spec: str, moment: str, *, newer: bool) -> None:
    """Suspend the last task of an epoch, and resume it while or after another attempt of it takes its place."""
    begun = begun_epoch(trials.new())
    trial = begun.trial
    # The last, because a replay leaves the first task without rows.
    stale = Suspended(lambda: begun.run_task(len(begun.tasks) - 1), spec)
    driver = trial.driver() if newer else None
    # The suspended attempt may have a lock that blocks the others.
    with suppress(Exception), at_step(moment, stale.nudge):
        _replace(begun, driver, lambda: stale.resumed)
    stale.wake()
    if newer:
        with suppress(Exception):
            begun.run_tasks()
            begun.finish()
    # A later epoch would roll back its changes.
    trial.verify()
    with suppress(Exception):
        trial.run_epochs(1, driver or begun.driver)
    trial.finish(max(1, trial.epoch))


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
    """An old driver starts its tasks after the takeover, and they write into newer epochs or replace newer rows."""
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
    if gives(trials.harness, "replacing_row") and trials.new().claim > Guarantee.AT_LEAST_ONCE:
        first_write = [step for step in task_steps(trials) if step.startswith("sink: before write")][:1]
        for spec in (None, *first_write):
            _late_rows(trials, spec)


def _late_rows(trials: Trials, spec: str | None) -> None:
    """Run the tasks of an old driver, from a step on or as a whole, when a later epoch has replaced their rows."""
    trial = trials.new()
    versions = [[(number, version) for number in range(TASKS)] for version in range(3)]
    old = trial.begin(trial.driver(), Content(0, ()), [trial.replacing([row]) for row in versions[0]])
    run = [partial(old.run_task, index) for index in range(len(old.tasks))]
    suspended = [Suspended(task, spec) for task in run if spec]
    newer = trial.driver()
    for epoch, rows in enumerate(versions):
        trial.note(newer.run_epoch(epoch, [trial.replacing([row]) for row in rows]), Content(epoch, ()))
    where = f"had stopped at {spec!r} and continued" if spec else "started"
    with when(f"tasks of an old driver {where} when a newer driver had replaced their rows in a later epoch"):
        for index, task in enumerate(run):
            with suppress(Exception):
                old.answers[index] = task() if spec is None else _woken(suspended[index])
        with suppress(Exception):
            old.finish()
        trial.drain(newer)
        trial.verify_newest(
            versions[-1],
            do="let the target compare a version with each row, such as the generation in WriterInitContext",
        )


def _woken(suspended: Suspended) -> Any:
    """Resume an action, and return its result or raise its error."""
    suspended.wake()
    if suspended.error is not None:
        raise suspended.error
    return suspended.result


@check
def old_driver_wakes(trials: Trials) -> None:
    """An old driver continues during or after the takeover, from any step or line of its commit, and publishes."""
    for spec in trials.chosen(_driver_steps(trials)):
        seen = _overtake(trials, spec)
        if seen:
            _overtake(trials, spec, later=1)
        if "_target" in spec or "clean_up" in spec:
            for moment in trials.chosen(changing(seen), MOST // 4):
                _overtake(trials, spec, moment=moment)
    files = sources(trials)
    lines = iter(_lines_of_commit(trials, files))
    skipped = 0
    for spec in lines:
        # A lock that the old driver holds here, it holds at the next lines, too.
        skipped = 0 if _race(trials, spec, files) else 2 * skipped + 1
        deque(islice(lines, skipped), maxlen=0)


def _overtake(trials: Trials, spec: str, *, later: int = 0, moment: str = "never") -> list[str]:
    """Suspend a driver, let newer ones run, and resume it at a step of theirs or after them.

    Returns the steps of the newer drivers; nothing if they failed.
    """
    trial = trials.new()
    trial.run_epochs(1)
    content = trial.bring(1)
    place = f"{later} epochs after a newer driver completed it" if moment == "never" else f"when one was at {moment!r}"
    with when(f"a driver was suspended at {spec!r} of its epoch, and resumed {place}"):
        old = Suspended(lambda: trial.run(trial.driver(), content), spec)
        seen: list[str] = []

        def overtake() -> None:
            for epoch in range(1, 2 + later):
                trial.run(trial.driver(), trial.bring(epoch))

        with suppress(Exception), at_step(moment, old.nudge):
            seen = steps_of(overtake)
        old.wake()
        trial.verify()
        trial.finish(max(1, trial.epoch))
    return seen


def _race(trials: Trials, spec: str, files: set[str]) -> bool:
    """Suspend a driver at a line of its commit, and run a newer one. Return whether that one did not wait for it."""
    trial = trials.new()
    trial.run_epochs(1)
    content = trial.bring(1)
    with when(f"a driver was suspended at {spec!r} and resumed when a newer driver had completed its epoch"):
        old = Suspended(lambda: announcing_lines(files, lambda: trial.run(trial.driver(), content)), spec)
        newer = Suspended(lambda: trial.run(trial.driver(), trial.bring(1)), "never", patience=PATIENCE)
        free = newer.ended
        old.nudge()
        newer.wake()
        old.wake()
        trial.verify()
        trial.finish(max(1, trial.epoch))
    return free


def _lines_of_commit(trials: Trials, files: set[str]) -> list[str]:
    steps = epoch_steps(trials, 1, files=files)
    before, after = "sink: before committer.commit#1", "after commit#1"
    of_commit = steps[steps.index(before) : steps.index(after)] if before in steps else []
    return trials.chosen([step for step in of_commit if step.startswith("line ")], MOST // 2)


def _driver_steps(trials: Trials) -> list[str]:
    """Return the steps of an epoch with its first task, and not the others, which are those of zombies, too."""
    tasks = [step.partition("#")[0] for step in task_steps(trials)]
    return [step for step in epoch_steps(trials, 1) if step.endswith("#1") or step.partition("#")[0] not in tasks]
