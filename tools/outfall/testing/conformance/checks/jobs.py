"""Batch jobs without recovery data, and the methods that commands call without a query."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from outfall.capabilities import Guarantee, SaveMode, SupportsTarget
from outfall.capability_checks import resolve
from outfall.errors import CapabilityError, ConfigurationError, OutfallError, TargetError, TargetNotEmptyError
from outfall.testing.conformance.driver import RemoteTasks, pickled
from outfall.testing.conformance.faults import ConformanceError, NotApplicableError, check, when
from outfall.testing.conformance.harness import gives, is_directory
from outfall.testing.conformance.spying import delegate_of
from outfall.testing.conformance.stepping import failing_at
from outfall.testing.conformance.trial import Trial
from outfall.testing.conformance.trials import Trials

WITHDRAW = "remove marks of the context's incarnation in SupportsTarget.withdraw, and its data in seal and clean_up"
SAVE_MODES: tuple[SaveMode, ...] = ("append", "error", "overwrite")


@check
def failed_job(trials: Trials) -> None:
    """A failed batch job without recovery data leaves data, or marks that reject the next job."""
    trials.needs(SupportsTarget in trials.resolved.capabilities, "the sink has no SupportsTarget")
    counts_leftovers = trials.cleans_up and gives(trials.harness, "leftovers")
    clean = _leftovers(_complete_job(trials.new())) if counts_leftovers else 0
    for step in ("after open target", "task: after write", "after collect"):
        failed = trials.new()
        with when(f"a batch job without recovery data failed at {step!r} and was rolled back"):
            job = _job(failed)
            with failing_at(step):
                job.run_epoch(0, failed.values(failed.bring(0)))
            for _ in range(2):
                with closing(job.coordinator()) as coordinator:
                    coordinator.withdraw()
            rolls_back = failed.claim == Guarantee.EXACTLY_ONCE and not failed.repeatable
            if rolls_back and (visible := failed.found()):
                raise ConformanceError(f"{visible.total()} rows of the failed job are visible", do=WITHDRAW)
            try:
                _complete_job(failed.sibling())
            except TargetError as error:
                raise ConformanceError(f"the target rejected the next job: {error}", do=WITHDRAW) from error
            if counts_leftovers and (left := _leftovers(failed) - clean) > 0:
                raise ConformanceError(f"{left} leftovers of the failed job remain after the next job", do=WITHDRAW)


def _leftovers(trial: Trial) -> int:
    return trial.harness.leftovers(trial.target)


def _job(trial: Trial) -> RemoteTasks:
    """Start the driver of a batch job without recovery data. Raises `NotApplicableError` if the sink requires it."""
    driver = trial.driver(options=replace(trial.harness.options(), end_of_input=True, final=True))
    try:
        driver.coordinator().close()
    except CapabilityError as error:
        raise NotApplicableError(f"the sink rejects batch jobs without recovery data: {error}") from error
    return driver


def _complete_job(trial: Trial) -> Trial:
    """Run a batch job without recovery data, and check its rows."""
    trial.run(_job(trial), trial.bring(0))
    trial.verify()
    return trial


@check
def save_modes(trials: Trials) -> None:
    """A batch job loses rows, or keeps, replaces or rejects existing rows against its save mode."""
    own = getattr(type(delegate_of(trials.sink)), "in_save_mode", None)
    supported = SupportsTarget in trials.resolved.capabilities and own is not SupportsTarget.in_save_mode
    trials.needs(supported, "the sink has no SupportsTarget, or no in_save_mode() of its own")
    for mode in SAVE_MODES:
        trial = trials.new()
        if _accepts(trial, mode):
            with when(f"two batch jobs without recovery data were written with mode={mode!r}"):
                _write_twice(trial, mode)


def _accepts(trial: Trial, mode: SaveMode) -> bool:
    sink = trial.harness.make_sink(trial.target)
    before = pickled(sink)
    try:
        resolve(sink).in_save_mode(mode)
    except ConfigurationError:
        return False
    finally:
        if pickled(sink) != before:
            raise ConformanceError(f"in_save_mode({mode!r}) changed the sink", do="return a changed copy")
    return True


def _write_twice(first: Trial, mode: SaveMode) -> None:
    second = first.sibling()
    first.save_mode = second.save_mode = mode
    _complete_job(first)
    before = first.found()
    try:
        _complete_job(second)
    except TargetNotEmptyError as error:
        if mode != "error":
            raise ConformanceError(f"the second job was rejected: {error}") from error
        if first.found() != before:
            raise ConformanceError("the second job was rejected, but it changed the target first") from error
        return
    if mode == "error":
        raise ConformanceError("the second job was not rejected", do="raise a TargetNotEmptyError in check_target")
    kept = first.found() & before
    if kept != (before if mode == "append" else Counter()):
        raise ConformanceError(f"{kept.total()} of {before.total()} existing rows are in the target")


@check
def connection_check(trials: Trials) -> None:
    """`check_connection` changes the target or overlooks an outage, or `row_schema` lacks a column of the rows."""
    trials.needs(SupportsTarget in trials.resolved.capabilities, "the sink has no SupportsTarget")
    trial = trials.new()
    sink = trial.harness.make_sink(trial.target)
    _check_connection(trial, sink)
    trial.run_epochs(1)
    checked = _check_connection(trial, sink)
    trial.finish()
    row, schema = trial.harness.row(0), sink.row_schema()
    if schema is not None and isinstance(row, dict) and (missing := row.keys() - set(schema.names)):
        raise ConformanceError(f"row_schema() has no column {min(missing)}", do="return all columns of the target")
    if checked and trials.has_from_author("breaking"):
        _check_outage(trial)


def _check_connection(trial: Trial, sink: Any) -> Sequence[str]:
    before = trial.found(), _files(trial)
    checked: Sequence[str] = sink.check_connection()
    if (trial.found(), _files(trial)) != before:
        raise ConformanceError("check_connection() changed the target", do="leave nothing behind, and send no row")
    return checked


def _files(trial: Trial) -> set[Path]:
    return set(trial.target.rglob("*")) if is_directory(trial.target) else set()


def _check_outage(trial: Trial) -> None:
    with trial.harness.breaking(trial.target):
        try:
            # Without the connections of another sink.
            trial.harness.make_sink(trial.target).check_connection()
        except OutfallError:
            return
    raise ConformanceError(
        "check_connection() succeeded although all operations on the target failed",
        do="try what a query does, such as a connection or a file, and raise an outfall.errors.OutfallError",
    )
