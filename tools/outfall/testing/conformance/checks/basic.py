"""Without any fault."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from outfall.capabilities import Guarantee
from outfall.protocol.task import EpochTask, TaskIdentity
from outfall.recovery import history
from outfall.testing.conformance.driver import copied, pickled
from outfall.testing.conformance.faults import ConformanceError, check
from outfall.testing.conformance.rows import frozen
from outfall.testing.conformance.spying import Probe, probing
from outfall.testing.conformance.trials import Trials


@check
def declared_guarantee(trials: Trials) -> None:
    """The test claims a stronger guarantee than the sink declares."""
    declared = trials.resolved.guarantee()
    if trials.claim > declared:
        raise ConformanceError(
            f"the test claims {trials.claim.name}, but the sink declares {declared.name}",
            do="implement DeclaresGuarantee and SupportsWriterContext on the sink: without both it counts as"
            " AT_LEAST_ONCE",
        )


@check
def one_epoch(trials: Trials) -> None:
    """Rows are lost, added or changed without any failure."""
    trial = trials.new()
    trial.run_epochs(1)
    trial.drain()
    trial.verify()


@check
def several_epochs(trials: Trials) -> None:
    """A later epoch, or the next driver, overwrites an earlier epoch."""
    trial = trials.new()
    trial.run_epochs(3)
    trial.run_epochs(3)
    trial.drain()
    trial.verify()


@check
def many_rows_tasks_and_epochs(trials: Trials) -> None:
    """An epoch of many rows or tasks, or a number of two digits, loses or repeats rows."""
    trial = trials.new()
    driver = trial.driver()
    trial.run(driver, trial.bring(0, rows=2500, tasks=1))
    trial.run(driver, trial.bring(1, rows=24, tasks=12))
    trial.run_epochs(8, driver)
    trial.finish()


@check
def equal_rows(trials: Trials) -> None:
    """Rows with equal content count as one row."""
    trials.needs(trials.claim != Guarantee.EFFECTIVELY_ONCE, "a key of the receiver may merge equal rows")
    trial = trials.new()
    first, second = trial.new_numbers(2)
    trial.run(trial.driver(), trial.bring_numbers(0, [[first, first, second], [first, second]]))
    trial.finish()


@check
def empty_epochs_and_tasks(trials: Trials) -> None:
    """An empty epoch, task or part causes an error, or repeats earlier rows."""
    trial = trials.new()
    contents: list[list[list[int]]] = [[], [[], []], [[], trial.new_numbers(3)], [[]]]
    for tasks in contents:
        trial.run(trial.driver(), trial.bring_numbers(trial.epoch, tasks))
    trial.finish()


@check
def values_unchanged(trials: Trials) -> None:
    """The sink modifies a value that it received, which corrupts retries and other sinks."""
    trial = trials.new()
    with probing(_Values()) as probe:
        trial.run_epochs(1)
    for values, before in probe.seen:
        if frozen(values) != frozen(before):
            changed = next((now for now, then in zip(values, before, strict=False) if now != then), values)
            raise ConformanceError(
                f"a value was modified during the write; it is now {changed!r}", do="change a copy of it"
            )


class _Values(Probe):
    """Records written values with copies."""

    def __init__(self) -> None:
        self.seen: list[tuple[list[Any], list[Any]]] = []

    def around(self, method: str, args: tuple[Any, ...], call: Callable[[], Any]) -> Any:
        if method == "write_batch":
            self.seen.append((args[0], copy.deepcopy(args[0])))
        return super().around(method, args, call)


@check
def no_state_on_the_sink(trials: Trials) -> None:
    """The sink object keeps state. Tasks work on copies, so that state is lost."""
    trial = trials.new()
    begun = trial.begin(trial.driver(), trial.bring(0))
    mine = copied(begun.driver.sink)
    before = _attributes(mine.delegate)
    EpochTask(mine, begun.ticket, TaskIdentity(0, 0, attempt=0)).run(begun.tasks[0])
    changed = sorted(name for name, value in _attributes(mine.delegate).items() if before.get(name) != value)
    if changed:
        raise ConformanceError(
            f"the sink's attributes {', '.join(changed)} changed during a task",
            do="keep the state of an attempt on its partition; bind() must return a copy and change nothing",
        )


def _attributes(sink: Any) -> dict[str, bytes]:
    """Return the sink's attributes as comparable bytes."""
    return {name: pickled(value) for name, value in vars(sink).items()}


@check
def counts_are_facts(trials: Trials) -> None:
    """The counters of an epoch differ from its rows."""
    trial = trials.new()
    content = trial.bring(0)
    written = trial.run(trial.driver(), content).counts.get("rows", 0)
    _equal("rows written", written, content.numbers.total())
    _equal("rows in the history", history(trial.recovery)[-1].counts.get("rows", 0), content.numbers.total())
    again = trial.bring(0)
    result = trial.run(trial.driver(), again)
    _equal("rows skipped in a replay", result.counts.get("skipped", 0), again.numbers.total())
    _equal("rows written in a replay", result.counts.get("rows", 0), 0)


def _equal(what: str, counted: int, fact: int) -> None:
    if counted != fact:
        raise ConformanceError(
            f"the counter of {what} is {counted}, but the correct number is {fact}",
            do="use your own names for metrics; the engine counts rows",
        )
