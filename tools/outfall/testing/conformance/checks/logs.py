"""Recovery data that does not match the target or the source."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import cycle, product

from outfall.capabilities import SupportsTarget
from outfall.errors import ForeignRecordsError, OutfallError, TargetError, UnexpectedEpochError
from outfall.testing.conformance.faults import ConformanceError, check, when
from outfall.testing.conformance.harness import gives
from outfall.testing.conformance.stepping import Suspended, at_step
from outfall.testing.conformance.trial import TASKS, Begun, Trial
from outfall.testing.conformance.trials import Trials, epoch_steps


@check
def epoch_rewound_or_ahead(trials: Trials) -> None:
    """A batch id that the log does not expect changes the target."""
    trial = trials.new()
    trial.run_epochs(3)
    for epoch in (0, 1, 4, 9):
        with when(f"Spark ran batch {epoch}, and the last was 2"):
            _refused(trial, lambda epoch=epoch: _try(trial, epoch), UnexpectedEpochError)  # type: ignore[misc]
    trial.finish()


@check
def rewound_log(trials: Trials) -> None:
    """After a restore of older recovery data, the sink writes rows again that are in the target."""
    trials.needs(trials.once, "at-least-once may write again")
    trials.needs_target()
    for missing in (1, 2):
        trial = trials.new(durable_log=True)
        trial.run_epochs(1)
        recovery, copy = trial.directory / "recovery", trial.directory / "copy"
        shutil.copytree(recovery, copy)
        trial.run_epochs(missing)
        shutil.rmtree(recovery)
        copy.rename(recovery)
        with when(f"recovery data and checkpoint were restored from a copy that lacks {missing} epochs"):
            _refused(trial, lambda trial=trial: _try(trial, 1))  # type: ignore[misc]


@check
def copied_log(trials: Trials) -> None:
    """A query and a copy of its log both run. Both publish an epoch, or one changes rows of the other.

    No log can fence the driver of its copy. A sink may reject either driver or both, but each epoch that a driver
    completes must be visible with the rows of that driver, and with no others. If the source replays the same rows,
    both drivers may complete the epoch. Afterwards, one of the two queries must be able to continue.
    """
    _needs_fence_in_target(trials)
    orders: dict[str, Callable[[Trial, Trial], None]] = {
        "first the query and then its copy ran": _in_turn,
        "the copy ran without rows, and then both ran": _after_no_rows,
        "both began at the same time": partial(_together, order=1),
        "both began at the same time, and committed in the other order": partial(_together, order=-1),
    }
    for name, order in orders.items():
        query = trials.new(durable_log=True)
        query.run_epochs(1)
        with when(f"the log was copied, and {name}"):
            copied = query.with_copied_log()
            order(query, copied)
            _both_continue(query, copied)
    for spec in trials.chosen(epoch_steps(trials, 1, durable_log=True)):
        with when(f"a driver was suspended at {spec!r}, and resumed after the driver of an older copy of its log ran"):
            query, copied, driver = _suspended_at(trials, spec)
            with suppress(Exception):
                copied.run_epochs(1)
            driver.wake()
            _both_continue(query, copied)


@check
def log_copied_during_an_epoch(trials: Trials) -> None:
    """The log was copied during an epoch. The copy's driver changes the epoch after its completion.

    Both logs have the BEGIN of the epoch. The driver of the copy must not mistake published rows for those of a failed
    attempt.
    """
    _needs_fence_in_target(trials)
    for spec, first in trials.chosen(zip(epoch_steps(trials, 1, durable_log=True), cycle(("query", "copy")))):
        with when(f"the log was copied at {spec!r} of an epoch, which the {first} completed first"):
            query, _, driver = _suspended_at(trials, spec)
            copied = query.with_copied_log()
            if first == "query":
                driver.wake()
            with suppress(Exception):
                copied.run_epochs(1)
            driver.wake()
            _both_continue(query, copied)


def _needs_fence_in_target(trials: Trials) -> None:
    trials.needs(trials.once, "at-least-once may write again")
    trials.needs_target()


def _in_turn(query: Trial, copied: Trial) -> None:
    query.run_epochs(2)
    with suppress(Exception):
        copied.run_epochs(2)


def _after_no_rows(query: Trial, copied: Trial) -> None:
    """Run an epoch without rows on the copy. A sink may record it in the target only with the next rows."""
    copied.run(copied.driver(), copied.bring_numbers(1, [(), ()]))
    with suppress(Exception):
        query.run_epochs(1)
    with suppress(Exception):
        copied.run(copied.driver(), copied.bring(2))
    # The query may complete the same epoch: no row of the copy's is missing.
    del copied.counted[1]


def _together(query: Trial, copied: Trial, *, order: int) -> None:
    """Check the target from both logs, then begin the same epoch on both, and commit in one of the two orders."""
    begun: list[Begun] = []

    def begin(side: Trial) -> None:
        with suppress(Exception):
            begun.append(side.begin(side.driver(), side.bring(1)))

    with at_step("before BEGIN", lambda: begin(copied)):
        begin(query)
    for index, one in product(range(TASKS), begun):
        if index < len(one.tasks):
            with suppress(Exception):
                one.answers[index] = one.run_task(index)
    for one in begun[::order]:
        with suppress(Exception):
            one.finish()


def _suspended_at(trials: Trials, spec: str) -> tuple[Trial, Trial, Suspended]:
    """Return a query, the query on a copy of its log after the first epoch, and a driver in the second epoch."""
    query = trials.new(durable_log=True)
    query.run_epochs(1)
    copied = query.with_copied_log()
    content = query.bring(1)
    return query, copied, Suspended(lambda: query.run(query.driver(), content), spec)


def _both_continue(query: Trial, copied: Trial) -> None:
    """Check the target, restart both queries, one of which must be able to continue, and check it again."""
    continued = False
    for side in (copied, query, copied):
        query.verify_delivered()
        copied.verify_delivered()
        with suppress(Exception):
            side.run_epochs(1)
            continued = True
            side.drain()
    query.verify_delivered()
    copied.verify_delivered()
    if not continued:
        raise ConformanceError(
            "neither the query nor its copy can continue",
            do="let the query continue whose driver opened the target last",
        )


@check
def lost_log(trials: Trials) -> None:
    """A query with a new checkpoint writes into, over or after the data of an earlier query."""
    trial = trials.new(durable_log=True)
    trial.run_epochs(2)
    shutil.rmtree(trial.directory / "recovery")
    with when("the checkpoint was deleted and the target kept"):
        if SupportsTarget in trials.resolved.capabilities:
            _refused(trial, lambda: _try(trial, 0))
        else:
            stranger = trial.sibling()
            with suppress(OutfallError):
                stranger.run_epochs(2)
                stranger.drain()
            trial.verify()
            stranger.verify()


@check
def foreign_log(trials: Trials) -> None:
    """The sink accepts recovery data that belongs to another target."""
    trials.needs_target()
    trial, other = trials.new(), trials.new()
    other.run_epochs(2)
    if trial.sink().target() == other.sink().target():
        raise ConformanceError(
            f"two targets have the same name, {trial.sink().target()!r}",
            do="return a distinct name per target in target(), so that a query with another target fails",
        )
    mixed = other.driver()
    mixed.sink = trial.sink()
    with when("the sink got another target with the same recovery data"):
        _refused(trial, lambda: mixed.run_epoch(2, trial.values(trial.bring(0))), ForeignRecordsError)
    other.finish()


@check
def second_query(trials: Trials) -> None:
    """A second query with its own recovery data damages the first query's rows, or loses its own."""
    for name, order in {"after the first": _after_one_another, "while the first wrote": _at_the_same_time}.items():
        trial = trials.new()
        with when(f"another query with its own recovery data wrote to the same target {name}"):
            _both_stand(trial, order)


def _both_stand(trial: Trial, order: Callable[[Trial, Trial], object]) -> None:
    """Let another query write to the target. All completed epochs of both must be visible."""
    stranger = trial.sibling()
    order(trial, stranger)
    if stranger.counted:
        # The query may be rejected with buffered rows. They are in its log, and the query got an error.
        with suppress(OutfallError):
            stranger.drain()
    trial.verify()
    stranger.verify()


def _after_one_another(trial: Trial, stranger: Trial) -> None:
    trial.run_epochs(2)
    with suppress(OutfallError):
        stranger.run_epochs(2)
    trial.finish()


def _at_the_same_time(trial: Trial, stranger: Trial) -> None:
    """Both queries run their first epochs, which have the same numbers. Both may be rejected."""
    begun = trial.begin(trial.driver(), trial.bring(0))
    with suppress(OutfallError):
        stranger.run_epochs(1)
    with suppress(OutfallError):
        begun.run_tasks()
        begun.finish()
        trial.run_epochs(1)


@check
def lost_target(trials: Trials) -> None:
    """The target lost recorded data, or was created again under its address, and the sink continues without an error.

    An address is no identity.
    """
    trials.needs_target()
    trials.needs_from_author("lose_target")
    losses = {"the target was emptied": trials.harness.lose_target}
    if gives(trials.harness, "replace_target"):
        losses["the target was deleted, and created again under its address"] = trials.harness.replace_target
    actions = {"the next epoch began": 2, "the last completed epoch was run again": 1}
    for (loss, lose), (action, epoch) in product(losses.items(), actions.items()):
        trial = trials.new()
        trial.run_epochs(2)
        lose(trial.target)
        with when(f"{loss}, and {action}"):
            _refused(trial, partial(_try, trial, epoch))


@check
def restored_target(trials: Trials) -> None:
    """The target was restored from an older copy, and the sink continues to write without an error."""
    trials.needs_target()
    trials.needs_from_author("save_target")
    steps = ("before BEGIN", "after open target", "before COMPLETED")
    tried = False
    for step, missing, restarted in product(steps, (1, 2), (True, False)):
        trial = trials.new()
        trial.run_epochs(1)
        saved: list[Callable[[], None]] = []
        with at_step(step, lambda trial=trial, saved=saved: saved.append(trials.harness.save_target(trial.target))):  # type: ignore[misc]
            driver = trial.run_epochs(missing)
        before = trial.found()
        saved[0]()
        if trial.found() == before:
            continue
        tried = True
        place = f"the target was restored from a copy that was taken {step!r}, {missing} epochs before"
        with when(place if restarted else f"{place}, while the query ran"):
            content, driver = trial.bring(trial.epoch), trial.driver() if restarted else driver
            _refused(trial, partial(driver.run_epoch, content.epoch, trial.values(content)), TargetError)
    trials.needs_to_try(tried, "no row was missing after the function that save_target() returned")


def _try(trial: Trial, epoch: int) -> None:
    """Run an epoch that must be rejected, without recording it."""
    trial.driver().run_epoch(epoch, trial.values(trial.bring(epoch)))


def _refused(trial: Trial, action: Callable[[], object], error: type[Exception] = OutfallError) -> None:
    """Check that an action is rejected with an error and does not change the target."""
    before: Counter[int] = trial.found()
    try:
        action()
    except error:
        pass
    except Exception as other:
        raise ConformanceError(
            f"the run was rejected with a {type(other).__name__} ({other})",
            do=f"raise an outfall.errors.{error.__name__}",
        ) from other
    else:
        raise ConformanceError(
            "the run was not rejected",
            do="compare the target with the context in SupportsTarget.check_target, and raise an"
            f" outfall.errors.{'TargetError' if error is OutfallError else error.__name__}",
        )
    if trial.found() != before:
        raise ConformanceError("the run was rejected, but it changed the target first", do="refuse in check_target")
