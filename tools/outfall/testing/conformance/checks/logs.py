"""Recovery data that does not match the target or the source."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable
from contextlib import suppress

from outfall.capabilities import SupportsTarget
from outfall.capability_checks import supports
from outfall.errors import ForeignRecordsError, OutfallError, UnexpectedEpochError
from outfall.testing.conformance.faults import ConformanceError, check, when
from outfall.testing.conformance.trial import Trial, Trials


@check
def epoch_rewound_or_ahead(trials: Trials) -> None:
    """A batch id that the log does not expect changes the target."""
    trial = trials.new()
    trial.run_epochs(3)
    for epoch in (0, 1, 4, 9):
        with when(f"Spark brought batch {epoch}, and 2 was the last"):
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
def lost_log(trials: Trials) -> None:
    """A query with a new checkpoint writes into, over or after the data of an earlier query."""
    trial = trials.new(durable_log=True)
    trial.run_epochs(2)
    shutil.rmtree(trial.directory / "recovery")
    with when("the checkpoint was deleted and the target kept"):
        if supports(trials.sink, SupportsTarget):
            _refused(trial, lambda: _try(trial, 0))
        else:
            stranger = trial.beside()
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
    stranger = trial.beside()
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
    """The target lost recorded data, and the sink continues to write without an error."""
    trials.needs_target()
    trials.needs_from_author("lose_target")
    trial = trials.new()
    trial.run_epochs(2)
    trials.harness.lose_target(trial.target)
    with when("the target was emptied between two epochs"):
        _refused(trial, lambda: _try(trial, 2))


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
