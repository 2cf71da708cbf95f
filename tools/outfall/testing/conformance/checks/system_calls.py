"""Errors of the operating system, at each call that a sink makes through `os`."""

from __future__ import annotations

import errno

from outfall.testing.conformance.faults import ConformanceError, when
from outfall.testing.conformance.registry import check
from outfall.testing.conformance.trial import Content, Trial
from outfall.testing.conformance.trials import Trials
from outfall.testing.failing_calls import failing_call

SYNCS = {"fsync", "fdatasync"}


@check
def failing_system_calls(trials: Trials) -> None:
    """A disk that is full or broken at some call loses or repeats rows, or a failed fsync is taken for a good one."""
    trial = trials.new()
    trial.run_epochs(1)
    driver, content = trial.driver(), trial.bring(1)
    with failing_call(None) as count:
        trial.run(driver, content)
    trials.needs(bool(count.calls), "the sink makes no call through the module os")
    for number, name in enumerate(count.calls, 1):
        for error in (errno.EIO, errno.ENOSPC):
            trial = trials.new()
            trial.run_epochs(1)
            with when(f"call {number} of an epoch, os.{name}, failed with {errno.errorcode[error]}"):
                _run_with_fault(trial, trial.bring(1), number, error)
                trial.verify()
                trial.finish(1)


def _run_with_fault(trial: Trial, content: Content, number: int, error: int) -> None:
    driver = trial.driver()
    with failing_call(number, error) as count:
        try:
            trial.run(driver, content)
        except Exception:
            return
    if count.failed in SYNCS:
        raise ConformanceError(
            "an fsync failed, and the epoch was completed all the same",
            do="let the error of an fsync fail the attempt: what it was to make durable may be lost, and calling it"
            " again says nothing about that (fsync(2))",
        )
