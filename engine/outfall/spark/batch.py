"""Batch jobs with the Python API: save modes, and the log of a job that is never resumed.

Such a log is deleted with the job, and so must be all data that only this log can finish.
"""

from __future__ import annotations

import logging
import shutil
import tempfile
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any, Literal

from outfall.capabilities import SaveMode
from outfall.capability_checks import resolve
from outfall.errors import ConfigurationError, TargetNotEmptyError
from outfall.option_values import parse_epoch
from outfall.options import in_own_case, names_arguments
from outfall.protocol.commit_retry import CommitPolicy
from outfall.protocol.coordinator import EpochCoordinator
from outfall.protocol.messages import EpochResult
from outfall.recovery.log import RecoveryConfig
from outfall.recovery.url import recovery_config, recovery_config_for
from outfall.spark.epoch_writer import EpochWriter
from outfall.spark.settings import NullKey, StepSettings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

PREFIX = "outfall-batch-"
"""The prefix of the directories with the logs of jobs that are never resumed."""

_log = logging.getLogger(__name__)


@names_arguments
def write(
    df: DataFrame,
    sink: Any,
    *,
    key: str | None = None,
    value: str | None = None,
    step_id: str = "sink",
    epoch: int | None = None,
    recovery: str | RecoveryConfig | None = None,
    null_key: NullKey = "error",
    order_by: Sequence[str] = (),
    workers: int | None = None,
    commit: CommitPolicy | None = None,
    mode: Literal["append", "overwrite", "error", "errorifexists", "ignore"] | None = None,
) -> EpochResult:
    """Write a DataFrame to a sink, as one epoch: all rows or none, if the sink supports it.

    With `epoch` and `recovery`, the job may run again: written rows are not written again, and an unfinished epoch is
    finished. Without them, a second run is a new write, and `mode` decides about the rows of the first. A failed run
    leaves no rows. If it was already recorded, the error states how to finish it, and if it was completed, that all
    rows are written. After the job, the sink has no
    buffered rows, not even of an earlier stream with the same recovery data.

    Args:
        df: The rows, not streaming.
        sink: The sink.
        key: See `for_each_batch`, as for all arguments not described here.
        value: See `for_each_batch`.
        step_id: See `for_each_batch`.
        epoch: The number of this job's rows, larger than that of any earlier job, for example a date `20261121`.
        recovery: The location of the step's log.
        null_key: See `for_each_batch`.
        order_by: See `for_each_batch`.
        workers: See `for_each_batch`.
        commit: See `for_each_batch`.
        mode: The treatment of existing data in the target, as in Spark's save modes: "append" adds to it, "overwrite"
            replaces it, "error" or "errorifexists" rejects it, and "ignore" then writes nothing. Defaults to the sink's
            `on_existing`, if set. Otherwise, sinks that detect existing data reject it, and the others add to it. A job
            with `epoch` and `recovery` adds its epoch to the earlier ones, and accepts only "append".

    Returns:
        The outcome, written or skipped.

    Raises:
        ConfigurationError: An argument is invalid or does not fit the sink, or the sink does not support the mode.
        TargetNotEmptyError: The target contains data, and `mode` does not decide about it.
        OutfallError: See `EpochCoordinator`.
    """
    if df.isStreaming:
        raise ConfigurationError("the DataFrame is streaming", do="use outfall.spark.write_stream")
    if epoch is not None:
        try:
            parse_epoch(epoch)
        except ValueError as error:
            raise ConfigurationError(
                f"epoch={epoch!r} is not a valid epoch", why=f"it {error}", do="pass such an integer"
            ) from None
    if (epoch is None) != (recovery is None):
        raise ConfigurationError(
            "epoch and recovery must be given together", do="pass both for a job that can run again, or neither"
        )
    mode = in_own_case(mode, _SAVE_MODES)
    if mode not in (None, *_SAVE_MODES):
        raise ConfigurationError(f"mode is {mode!r}", do=f"pass one of {', '.join(_SAVE_MODES)}, or omit it")
    settings = StepSettings(
        step_id=step_id,
        key=key,
        value=value,
        null_key=null_key,
        order_by=order_by,
        workers=workers,
        commit=commit or CommitPolicy(),
    )
    if recovery is not None and epoch is not None:
        location = recovery_config_for(sink, recovery)
        if mode is not None:
            check_resumed_mode(mode)
        return EpochWriter(sink, location, settings, any_later=True, end_of_input=True).write(df, epoch)
    settings.check(sink)
    sink = resolve(sink).in_save_mode(None if mode is None else _SAVE_MODES[mode])
    try:
        return _write_unresumed(df, sink, settings)
    except TargetNotEmptyError as error:
        # A note says that rows of this job are left: a task found the data of another writer.
        if mode == "ignore" and not getattr(error, "__notes__", ()):
            return EpochResult(epoch=0, generation=0, skipped=True, counts={"rows": 0}, seconds=0.0)
        error.add_note(_RUN_AGAIN if _only_appends(sink) else f"{_MODES} {_RUN_AGAIN}")
        raise


def _only_appends(sink: Any) -> bool:
    try:
        resolve(sink).in_save_mode("overwrite")
    except ConfigurationError:
        return True
    return False


_SAVE_MODES: dict[str, SaveMode] = {
    "append": "append",
    "overwrite": "overwrite",
    "error": "error",
    "errorifexists": "error",
    "ignore": "error",
}
"""Spark's names of its save modes → the mode that the sink gets."""

_MODES = 'In a batch job, mode="append" adds to the existing data and mode="overwrite" replaces it.'

_RUN_AGAIN = "If the job may run again, pass epoch= and recovery=: then it writes its rows once, however often it runs."


def check_resumed_mode(mode: str) -> None:
    """Reject a save mode other than "append" for a job with recovery data."""
    if mode != "append":
        raise ConfigurationError(
            f"mode={mode!r} is not valid with epoch and recovery",
            why="such a job adds its epoch to the earlier ones",
            do='pass mode="append"; the sink\'s on_existing decides about data from before the first epoch',
        )


def _write_unresumed(df: DataFrame, sink: Any, settings: StepSettings) -> EpochResult:
    recovery = make_recovery()
    writer = EpochWriter(sink, recovery, settings, end_of_input=True, final=True)
    try:
        result = writer.write(df, 0)
    except BaseException as error:
        left = end_failed(recovery, settings.step_id, writer.coordinator, tasks_ran=writer.tasks_ran)
        if left is not None:
            error.add_note(left)
        raise
    remove_recovery(recovery)
    return result


def make_recovery() -> RecoveryConfig:
    """Create a directory for the log on this host's disk. The protocol uses it like any other log."""
    return recovery_config(tempfile.mkdtemp(prefix=PREFIX))


def remove_recovery(recovery: RecoveryConfig) -> None:
    """Delete the log of a job that has ended."""
    shutil.rmtree(recovery.url(), ignore_errors=True)


def end_failed(
    recovery: RecoveryConfig, step_id: str, make_coordinator: Callable[[], EpochCoordinator], *, tasks_ran: bool
) -> str | None:
    """Roll back a failed job and delete its log. Raises nothing, so that the error of the job is not hidden.

    Returns, as one sentence, what the user must know before the job is run again: its rows are written, or its log is
    kept. `None` if nothing is left of it. `make_coordinator` returns a coordinator of the job's step, on that log.
    `tasks_ran` is false if the job failed before its tasks.
    """
    try:
        with closing(make_coordinator()) as coordinator:
            withdrawn = coordinator.withdraw()
            completed = coordinator.completed is not None
    except Exception as error:
        _log.warning("a failed job could not be rolled back", exc_info=True)
        rows = "The data of the failed job" if tasks_ran else "No row was written, but the start of the job"
        return (
            f"{rows} could not be rolled back ({type(error).__name__}), so its log is kept:"
            f" `outfall gc {recovery.url()} {step_id} --take-over --yes`, with the sink's options, cleans it up."
        )
    if withdrawn:
        remove_recovery(recovery)
        return "All rows of the job are written: do not run it again. It failed after that." if completed else None
    return (
        f"The job is recorded but not completely published, so its log is kept: the same job with epoch=0 and"
        f" recovery={recovery.url()!r} publishes the rest."
    )
