"""Clean-ups: they remove all data of failed attempts, and no other data."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import product
from typing import Any

from outfall.capabilities import CleanUpContext, SupportsCommitter
from outfall.capability_checks import resolve
from outfall.errors import (
    CommitError,
    ConfigurationError,
    EpochAbandonedError,
    FencedError,
    LostCommittableError,
    OutfallError,
    StaleWriterError,
    TargetAheadError,
    TargetNotEmptyError,
)
from outfall.testing.conformance.faults import ConformanceError, NotApplicableError, check, when
from outfall.testing.conformance.harness import gives
from outfall.testing.conformance.spying import Probe, probing
from outfall.testing.conformance.stepping import Suspended, at_step, failing_at
from outfall.testing.conformance.trial import Trial
from outfall.testing.conformance.trials import Trials

CLEAN_UP = "in SupportsTarget.clean_up, remove data with the context's incarnation and a lower generation"


@check
def staged_data_is_kept(trials: Trials) -> None:
    """A clean-up of another query or of an older driver removes data that is staged and not yet published."""
    stages = SupportsCommitter in trials.resolved.capabilities
    trials.needs(stages or trials.cleans_up, "the sink neither commits nor cleans up")
    cleaners = {
        "another query cleaned up": _another_query,
        "another query began on an empty target and cleaned up": _beside_another_query,
        "an older driver was suspended before its clean-up and resumed": _older_driver,
    }
    for (name, cleaner), step in trials.chosen(product(cleaners.items(), ("after collect", "after PREPARED"))):
        with when(f"{name}, and an epoch of the newest driver of this query was at {step!r}"):
            cleaner(trials.new(), step)


def _another_query(trial: Trial, step: str) -> None:
    trial.run_epochs(1)
    _beside_another_query(trial, step)


def _beside_another_query(trial: Trial, step: str) -> None:
    other = _sharing(trial)
    # The target may reject either query.
    with suppress(FencedError, StaleWriterError, TargetAheadError, TargetNotEmptyError):
        _stage(trial, step, lambda: _clean_up(other))
        trial.run_epochs(1)
        trial.drain()
    trial.verify()
    other.verify()


def _older_driver(trial: Trial, step: str) -> None:
    trial.run_epochs(1)
    content = trial.bring(1)
    with probing(_AsInGc(trial)):
        old = Suspended(lambda: trial.run(trial.driver(), content), "sink: before clean_up")
    trial.run(trial.driver(), trial.bring(1))
    _stage(trial, step, old.wake)
    trial.finish(2)


def _stage(trial: Trial, step: str, clean_up: Callable[[], object]) -> None:
    """Run an epoch with clean-ups of others at a step. A recorded epoch is then published by a new driver."""
    content = trial.bring(trial.epoch)
    try:
        if step == "after PREPARED":
            trial.run_until(step, content)
            clean_up()
            with at_step("after ABANDONED", _abandoned):
                trial.run(trial.driver(), trial.bring(content.epoch))
        else:
            with at_step(step, clean_up):
                trial.run(trial.driver(), content)
    except (CommitError, EpochAbandonedError, LostCommittableError) as error:
        raise ConformanceError(f"staged data of the epoch is missing: {error}", do=CLEAN_UP) from error


def _abandoned() -> None:
    raise ConformanceError("staged data of the epoch was missing, and the epoch was written again", do=CLEAN_UP)


def _sharing(trial: Trial) -> Trial:
    """Create another query on the same target, in the save mode that permits existing rows if the sink has one."""
    other = trial.sibling()
    with suppress(ConfigurationError):
        resolve(trial.harness.make_sink(trial.target)).in_save_mode("append")
        other.save_mode = "append"
    return other


def _clean_up(other: Trial) -> None:
    """Run epochs of a query with a failed driver between them, and a batch job. The target may reject both.

    The last generation of the query is then higher than that of the other query.
    """
    with suppress(OutfallError), probing(_AsInGc(other)):
        other.run_epochs(1)
        other.run_until("before PREPARED", other.bring(1))
        other.run_epochs(1)
    job = other.sibling()
    job.save_mode = other.save_mode
    with suppress(OutfallError):
        job.run(job.driver(options=replace(job.harness.options(), end_of_input=True, final=True)), job.bring(0))


class _AsInGc(Probe):
    """Cleans up as `outfall gc` does after each clean-up: without a list of the failed attempts."""

    def __init__(self, trial: Trial) -> None:
        self._trial = trial

    def around(self, method: str, args: tuple[Any, ...], call: Callable[[], Any]) -> Any:
        result = super().around(method, args, call)
        if method == "clean_up":
            self._trial.harness.make_sink(self._trial.target).clean_up(replace(args[0], lost=None))
        return result


@check
def leftovers_are_cleaned_up(trials: Trials) -> None:
    """Data of failed attempts remains in the target, or the clean-up removes other data."""
    trials.needs(trials.cleans_up, "the sink has no SupportsTarget, or no clean_up() of its own")
    trials.needs_from_author("leftovers")
    trial = trials.new()
    trial.run_epochs(1)
    with _leaving_nothing(trial, "failed drivers"):
        for step in ("task: after write", "task: after snapshot#2", "before PREPARED"):
            trial.run_until(step, trial.bring(1))
        trial.finish(1)
    trial = trials.new()
    driver = trial.run_epochs(1)
    with _leaving_nothing(trial, "failed and speculative attempts of a completed epoch"):
        _retry_tasks(trial, driver)
        trial.run_epochs(1, driver)
    trial.finish()


def _retry_tasks(trial: Trial, driver: Any) -> None:
    """Complete an epoch in which two attempts of a task fail, and two attempts of another one finish."""
    begun = trial.begin(driver, trial.bring(trial.epoch))
    for step in ("task: after write", "task: after snapshot"):
        with failing_at(step):
            begun.run_task(0)
    begun.run_task(len(begun.tasks) - 1)
    begun.run_tasks()
    begun.finish()


@contextmanager
def _leaving_nothing(trial: Trial, attempts: str) -> Iterator[None]:
    """Compare the number of leftovers before and after the block."""
    clean = trial.harness.leftovers(trial.target)
    yield
    left = trial.harness.leftovers(trial.target) - clean
    if left > 0:
        raise ConformanceError(f"{left} leftovers of {attempts} are in the target after the next epoch", do=CLEAN_UP)


@check
def leftovers_are_listed(trials: Trials) -> None:
    """`find_leftovers` does not list the objects that `clean_up` removes, or changes the target."""
    trials.needs(trials.cleans_up, "the sink has no SupportsTarget, or no clean_up() of its own")
    trial = trials.new()
    with probing(_Listing(trial)) as listing:
        driver = trial.run_epochs(1)
        for step in ("task: after write", "task: after snapshot#2", "before PREPARED"):
            trial.run_until(step, trial.bring(1))
        driver = trial.run_epochs(1)
        _retry_tasks(trial, driver)
        trial.run_epochs(1, driver)
    if listing.cannot:
        raise NotApplicableError("find_leftovers() returns None: the sink cannot list leftovers")
    for fault in listing.faults:
        raise fault
    trial.finish()


class _Listing(Probe):
    """Compares the listed leftovers with the removed ones in each clean-up."""

    def __init__(self, trial: Trial) -> None:
        self.faults: list[ConformanceError] = []
        """Collected, because the engine only logs errors of a clean-up."""
        self.cannot = False
        self._trial = trial

    def around(self, method: str, args: tuple[Any, ...], call: Callable[[], Any]) -> Any:
        if method != "clean_up":
            return super().around(method, args, call)
        context: CleanUpContext = args[0]
        before = self._leftovers()
        listed, of_gc = self._listed(context), self._listed(replace(context, lost=None))
        if self._leftovers() != before:
            self._add("find_leftovers() changed the target")
        removed = super().around(method, args, call)
        left = self._listed(replace(context, lost=None))
        self.cannot = self.cannot or None in (listed, of_gc, left)
        if not self.cannot:
            self._compare(set(listed or ()), set(of_gc or ()), removed, set(left or ()))
        return removed

    def _listed(self, context: CleanUpContext) -> Any:
        return self._trial.harness.make_sink(self._trial.target).find_leftovers(context)

    def _leftovers(self) -> int:
        harness = self._trial.harness
        return harness.leftovers(self._trial.target) if gives(harness, "leftovers") else 0

    def _compare(self, listed: set[str], of_gc: set[str], removed: int, left: set[str]) -> None:
        if len(listed) != removed:
            self._add(f"find_leftovers() listed {len(listed)} objects, but clean_up() removed {removed}")
        if unlisted := listed - of_gc:
            self._add(f"find_leftovers() lists {min(unlisted)} only if CleanUpContext.lost is set")
        if left:
            self._add(f"find_leftovers() still lists {min(left)} after clean_up()")

    def _add(self, fault: str) -> None:
        self.faults.append(
            ConformanceError(fault, do="list one name per object that clean_up removes, and change nothing")
        )
