"""An epoch comes again."""

from __future__ import annotations

from outfall.testing.conformance.faults import ConformanceError, check, when
from outfall.testing.conformance.rows import Content
from outfall.testing.conformance.trial import Trial
from outfall.testing.conformance.trials import Trials


@check
def replay_of_a_completed_epoch(trials: Trials) -> None:
    """A replayed epoch that is already completed is written again."""
    for tasks in (1, 2, 5):
        trial = trials.new()
        trial.run_epochs(2)
        with when(f"epoch 1 comes again in {tasks} tasks, because Spark lost its commit entry"):
            if not trial.run(trial.driver(), trial.bring(1, tasks=tasks)).skipped:
                raise ConformanceError("the engine did not skip a completed epoch")
            trial.finish()


@check
def replay_of_a_lost_epoch(trials: Trials) -> None:
    """Rows of a failed attempt remain next to the rows of its replay."""
    for step in ("after collect", "before PREPARED"):
        for tasks in (1, 2, 5):
            trial = trials.new()
            trial.run_epochs(1)
            trial.run_until(step, trial.bring(1))
            with when(f"a driver died at {step!r}; the epoch was replayed in {tasks} tasks, in another order"):
                trial.run(trial.driver(), trial.bring(1, tasks=tasks))
                trial.verify()
                trial.finish()


@check
def parts_missing_in_the_replay(trials: Trials) -> None:
    """Rows of a failed attempt remain or become visible in a part that the replay does not touch."""
    trial = trials.new()
    trials.needs(
        not trial.repeatable, "the guarantee requires a replay with the same rows, which touches the same parts"
    )
    trial.run_epochs(1)
    trial.run_until("before PREPARED", trial.bring(1, rows=12, tasks=6))
    with when("a driver died after all tasks; the epoch was replayed with rows for one part, in one task"):
        trial.run(trial.driver(), _for_one_part(trial, 1))
        trial.verify()
        trial.finish()


def _for_one_part(trial: Trial, epoch: int) -> Content:
    """Return new rows of an epoch, all for the same part."""
    driver = trial.driver()

    def part(number: int) -> str | None:
        return driver.routed(trial.values(Content(epoch, ((number,),))))[0][0][0]

    first = trial.new_numbers(1)[0]
    wanted = part(first) if trial.fixed else None
    numbers = trial.new_numbers(2, lambda number: not trial.fixed or part(number) == wanted)
    return trial.bring_numbers(epoch, [numbers])


@check
def empty_state_is_a_state(trials: Trials) -> None:
    """An empty recorded state, such as 0 or {}, counts as no state. The part is not restored."""
    trials.needs(trials.fixed, "a dynamic sink has no parts that resume from a state")
    trial = trials.new()
    begun = trial.begin(trial.driver(), trial.bring_numbers(0, [()]))
    begun.tasks = [[(part, [])] for part in begun.driver.sink.list_parts()]
    begun.run_tasks()
    begun.finish()
    trial.run_until("before PREPARED", trial.bring(1))
    with when("each part's first state was recorded before its first row, then an attempt failed"):
        trial.finish(1)
