"""Batch jobs with sink objects."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from outfall.epoch.committing import CommitPolicy
from outfall.epoch.messages import EpochResult
from outfall.errors import ConfigurationError
from outfall.recovery.config import RecoveryConfig
from outfall.recovery.url import recovery_config
from outfall.spark.epoch_writer import EpochWriter
from outfall.spark.settings import NullKey, WriteSettings
from outfall.spark.unresumed import end_failed, make_recovery, remove_recovery

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


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
) -> EpochResult:
    """Write a DataFrame through a sink, as one epoch: all or nothing where the sink can.

    With `epoch` and `recovery` the job may run again: what is written stays, what was left unfinished is finished.
    Without them a second run is a new write, which sinks refuse or add as their options say; of a run that failed
    nothing is left, or, where it was recorded already, the error says how to finish it. At the end the sink holds
    nothing back any more, also of what a stream with the same recovery left.

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

    Returns:
        What was written, or that it was skipped.

    Raises:
        ConfigurationError: something does not fit together.
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
    settings = WriteSettings(
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
        return EpochWriter(sink, location, settings, any_later=True, end_of_input=True).write(df, epoch)
    return _write_unresumed(df, sink, settings)


def _write_unresumed(df: DataFrame, sink: Any, settings: WriteSettings) -> EpochResult:
    settings.check(sink)
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
