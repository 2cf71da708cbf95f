"""Batch jobs with sink objects: what save modes mean, and the log of a job that is never resumed.

Such a log ends with the job, and so must everything that only it knows.
"""

from __future__ import annotations

import logging
import shutil
import tempfile
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any, Literal

from outfall.capabilities import SaveMode
from outfall.capability_checks import in_save_mode
from outfall.errors import ConfigurationError, TargetNotEmptyError
from outfall.options import in_own_case, names_arguments
from outfall.protocol.commit_retry import CommitPolicy
from outfall.protocol.coordinator import EpochCoordinator
from outfall.protocol.messages import EpochResult
from outfall.recovery.log import RecoveryConfig
from outfall.recovery.url import recovery_config
from outfall.spark.epoch_writer import EpochWriter
from outfall.spark.settings import NullKey, StepSettings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

PREFIX = "outfall-batch-"
"""How the names of the directories begin that hold the logs of jobs that are never resumed."""

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
    """Write a DataFrame through a sink, as one epoch: all or nothing where the sink can.

    With `epoch` and `recovery` the job may run again: what is written stays, what was left unfinished is finished.
    Without them a second run is a new write, and `mode` says what becomes of the rows of the first; of a run that
    failed nothing is left, or, where it was recorded already, the error says how to finish it. At the end the sink
    holds nothing back any more, also of what a stream with the same recovery left.

    Args:
        df: the rows, not streaming.
        sink: where they go.
        key: see `for_each_batch`, as all arguments not named here.
        value: see `for_each_batch`.
        step_id: see `for_each_batch`.
        epoch: the number of this job's rows, larger than that of any earlier job, for example a date `20261121`.
        recovery: where the step's log is.
        null_key: see `for_each_batch`.
        order_by: see `for_each_batch`.
        workers: see `for_each_batch`.
        commit: see `for_each_batch`.
        mode: what to do with data that the target holds, as Spark's save modes say: "append" adds to it, "overwrite"
            replaces it, "error" or "errorifexists" refuses it, "ignore" then writes nothing. Without it the sink's
            `on_existing` says so where it is set; else data is refused by sinks that can see it, and others add. A job
            with `epoch` and `recovery` adds its epoch to those before, and takes "append" only.

    Returns:
        What was written, or that it was skipped.

    Raises:
        ConfigurationError: something does not fit together, or the sink cannot be written in this mode.
        TargetNotEmptyError: the target holds data, and `mode` does not say what to do with it.
        OutfallError: see `EpochCoordinator`.
    """
    if df.isStreaming:
        raise ConfigurationError("the DataFrame is a stream", do="use outfall.spark.write_stream")
    if epoch is not None and (isinstance(epoch, bool) or not isinstance(epoch, int) or epoch < 0):
        raise ConfigurationError(
            f"epoch={epoch!r} is no number of an epoch", do="give a whole number, for example the date as 20261121"
        )
    if (epoch is None) != (recovery is None):
        raise ConfigurationError(
            "epoch and recovery are only of use together", do="give both for a job that can run again, or neither"
        )
    mode = in_own_case(mode, _SAVE_MODES)
    if mode not in (None, *_SAVE_MODES):
        raise ConfigurationError(f"mode is {mode!r}", do=f"give one of {', '.join(_SAVE_MODES)}, or leave it out")
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
        location = recovery_config(recovery)
        if mode is not None:
            check_resumed_mode(mode)
        return EpochWriter(sink, location, settings, any_later=True, end_of_input=True).write(df, epoch)
    settings.check(sink)
    sink = in_save_mode(sink, None if mode is None else _SAVE_MODES[mode])
    try:
        return _write_unresumed(df, sink, settings)
    except TargetNotEmptyError as error:
        if mode == "ignore":
            return EpochResult(epoch=0, generation=0, skipped=True, counts={}, seconds=0.0)
        error.add_note(_HOLDS_DATA)
        raise


_SAVE_MODES: dict[str, SaveMode] = {
    "append": "append",
    "overwrite": "overwrite",
    "error": "error",
    "errorifexists": "error",
    "ignore": "error",
}
"""Spark's names of its save modes, with what each asks of a sink."""

_HOLDS_DATA = (
    'Of a batch job, mode="append" adds to what is there and mode="overwrite" replaces it. A job that may be run twice'
    " takes epoch= and recovery=: it then writes its rows once, however often it runs."
)


def check_resumed_mode(mode: str) -> None:
    """Refuse a save mode for a job with recovery data that is not to append.

    Raises:
        ConfigurationError: saying what to do instead.
    """
    if mode != "append":
        raise ConfigurationError(
            f"mode={mode!r} does not go with epoch and recovery",
            why="such a job adds its epoch to those before",
            do='pass mode="append"; what the target held before the first epoch is a matter of the sink\'s on_existing',
        )


def _write_unresumed(df: DataFrame, sink: Any, settings: StepSettings) -> EpochResult:
    recovery = make_recovery()
    writer = EpochWriter(sink, recovery, settings, end_of_input=True, final=True)
    try:
        result = writer.write(df, 0)
    except BaseException as error:
        if (kept := end_failed(recovery, settings.step_id, writer.coordinator)) is not None:
            error.add_note(kept)
        raise
    remove_recovery(recovery)
    return result


def make_recovery() -> RecoveryConfig:
    """Make a place for the log, on this host's disk. The protocol runs on it as ever."""
    return recovery_config(tempfile.mkdtemp(prefix=PREFIX))


def remove_recovery(recovery: RecoveryConfig) -> None:
    """Remove the log of a job that ended."""
    shutil.rmtree(recovery.url(), ignore_errors=True)


def end_failed(recovery: RecoveryConfig, step_id: str, make_coordinator: Callable[[], EpochCoordinator]) -> str | None:
    """Take back what a job left that failed, and remove its log. Raises nothing: the job's own error goes on.

    Args:
        recovery: where the log is.
        step_id: the job's step.
        make_coordinator: makes a coordinator of the job's step, on that log.

    Returns:
        Where the log is kept and what for, one sentence; `None` when it is gone.
    """
    try:
        with closing(make_coordinator()) as coordinator:
            withdrawn = coordinator.withdraw()
    except Exception as error:
        _log.warning("a failed job could not be taken back", exc_info=True)
        return (
            f"What the failed job left in the target could not be taken back ({type(error).__name__}); its log is kept:"
            f" `outfall gc {recovery.url()} {step_id} --take-over --yes`, with the sink's options, clears it."
        )
    if withdrawn:
        remove_recovery(recovery)
        return None
    return (
        f"The job is recorded and not wholly published, so its log is kept: the same job with epoch=0 and"
        f" recovery={recovery.url()!r} publishes the rest."
    )
