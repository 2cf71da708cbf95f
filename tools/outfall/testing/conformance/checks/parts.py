"""Changes of the number of tasks and of the parts."""

from __future__ import annotations

from outfall.errors import PartsChangedError
from outfall.testing.conformance.faults import ConformanceError, NotApplicableError, check, when
from outfall.testing.conformance.trials import Trials


@check
def rescaling(trials: Trials) -> None:
    """Rows or states are lost or repeated when the number of tasks changes (2, 4, 1) between crashes."""
    trial = trials.new()
    for tasks in (2, 4, 1):
        trial.run(trial.driver(), trial.bring(trial.epoch, rows=8, tasks=tasks))
    trial.finish()
    for step in ("after BEGIN", "task: after snapshot#2", "after PREPARED"):
        trial = trials.new()
        with when(f"a driver with 4 tasks died at {step!r}; before it there were 2, after it 1"):
            trial.run(trial.driver(), trial.bring(0, rows=8, tasks=2))
            trial.run_until(step, trial.bring(1, rows=8, tasks=4))
            trial.run(trial.driver(), trial.bring(1, rows=8, tasks=1))
            trial.finish()


def _without_last(parts: list[str]) -> list[str]:
    return parts[:-1]


def _reversed(parts: list[str]) -> list[str]:
    return parts[::-1]


@check
def parts_added(trials: Trials) -> None:
    """A part that is added at a restart starts with old state, or disturbs other parts."""
    _needs_parts(trials)
    trial = trials.new()
    try:
        with trial.listing(_without_last):
            trial.run_epochs(2)
    except PartsChangedError:
        raise NotApplicableError("the sink does not use only list_parts(), so no part can be added") from None
    with when("a part was added at a restart"):
        trial.run_epochs(2)
        trial.finish()


@check
def parts_removed(trials: Trials) -> None:
    """A part with state is no longer listed, and its state is dropped without an error."""
    _needs_parts(trials)
    trial = trials.new()
    trial.run(trial.driver(), trial.bring(0, rows=24))
    with when("a part was removed at a restart"), trial.listing(_without_last):
        try:
            trial.run(trial.driver(), trial.bring(1))
        except PartsChangedError:
            pass
        else:
            raise ConformanceError("a part with state disappeared from list_parts() without an error")
        trial.verify()
    trial.finish()


@check
def parts_reordered(trials: Trials) -> None:
    """Parts that are listed in another order after a restart are confused with each other."""
    _needs_parts(trials)
    trial = trials.new()
    trial.run_epochs(2)
    with when("the parts were listed in reverse order after a restart"):
        with trial.listing(_reversed):
            trial.run_epochs(1)
            trial.run_until("before PREPARED", trial.bring(trial.epoch))
        trial.finish()


def _needs_parts(trials: Trials) -> None:
    trials.needs(trials.fixed, "a dynamic sink has no parts")
    trials.needs(len(trials.sink.list_parts()) > 1, "make_sink() returns a sink with one part")
