"""Streaming with the Python API, and the delivery of buffered rows while a query does not run."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from outfall.errors import ConfigurationError
from outfall.location import LOCAL
from outfall.options import names_arguments
from outfall.protocol import draining
from outfall.protocol.commit_retry import CommitPolicy
from outfall.protocol.coordinator import EpochCoordinator
from outfall.protocol.messages import EpochResult
from outfall.protocol.step import EpochOptions
from outfall.recovery.log import RecoveryConfig, check_step_id
from outfall.recovery.spark_checkpoint import open_batch
from outfall.recovery.url import recovery_config, recovery_config_for
from outfall.spark.epoch_writer import EpochWriter
from outfall.spark.query_identity import RunningQuery, is_connect, is_open_in, is_stream_thread, query_in, running_query
from outfall.spark.settings import AdoptCheckpoint, NullKey, StepSettings
from outfall.spark.version_check import PickledWithVersion
from outfall.urls import scheme_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.readwriter import DataStreamWriter


class ForEachBatch(PickledWithVersion):
    """The function that `DataStreamWriter.foreachBatch` calls. Created by `for_each_batch`."""

    def __init__(self, writer: EpochWriter, checkpoint: str, log: str) -> None:
        """Write with `writer`, whose log is at `log`. On Connect, the query id is read from `checkpoint`."""
        self._writer = writer
        self._checkpoint = checkpoint
        self._log_is_beside = os.path.isabs(checkpoint) and os.path.normpath(checkpoint) == log
        """Whether the log is meant to be in the checkpoint, and both are named by a path of no filesystem."""
        self._query: RunningQuery | None = None
        self._proven = 0
        """How many batches of this process `checkpoint` was running."""

    def __call__(self, df: DataFrame, batch_id: int) -> None:
        """Write one micro-batch. Called by Spark on the driver, at least once per batch id."""
        if not isinstance(batch_id, int):
            raise ConfigurationError(f"the batch id is {batch_id!r}", do="pass Spark's batch id unchanged")
        query = self._query_on_connect(df, batch_id) if is_connect(df) else running_query(df)
        if self._log_is_beside and not is_connect(df):
            check_same_filesystem(self._checkpoint, query.checkpoint)
        if query.checkpoint is None:
            query = replace(query, checkpoint=self._checkpoint)
        self._writer.write(df, batch_id, query=query)

    def check(self, df: DataFrame) -> None:
        """Reject rows that cannot be written, before the query is started."""
        self._writer.check(df)

    def _query_on_connect(self, df: DataFrame, batch_id: int) -> RunningQuery:
        """Return the query. The server runs the function in one process per started query, without the query's id."""
        if self._query is None:
            query_id = query_in(df, self._checkpoint)
            if query_id is not None and self._log_is_beside and not os.path.exists(f"{self._checkpoint}/metadata"):
                raise misplaced_log(self._checkpoint)
            if query_id is None:
                raise _other_checkpoint(
                    f"{self._checkpoint!r} is not the checkpoint of a query, so this query's id is unknown"
                )
            self._query = RunningQuery(query_id, "process")
        # Twice, because a query that stopped within a batch leaves a checkpoint that seems to run this one.
        if self._proven < 2:
            if not is_open_in(df, self._checkpoint, batch_id):
                raise _other_checkpoint(
                    f"{self._checkpoint!r} is the checkpoint of another query: it does not run batch {batch_id}"
                )
            self._proven += 1
        return self._query


def _other_checkpoint(what: str) -> ConfigurationError:
    return ConfigurationError(
        what,
        why="on Spark Connect, only the checkpoint has the query's id. Without it, a batch of another query could be"
        " mistaken for a replay, whose rows are dropped",
        do="set the query's checkpointLocation, and pass the same location as checkpoint=",
    )


@names_arguments
def for_each_batch(
    sink: Any,
    *,
    recovery: str | RecoveryConfig,
    checkpoint: str | os.PathLike[str] | None = None,
    key: str | None = None,
    value: str | None = None,
    step_id: str = "sink",
    null_key: NullKey = "error",
    order_by: Sequence[str] = (),
    workers: int | None = None,
    adopt_checkpoint: AdoptCheckpoint = False,
    commit: CommitPolicy | None = None,
) -> ForEachBatch:
    """Return a function for `df.writeStream.foreachBatch`, or for a call inside your own function.

    On a classic session, the sink is checked for the query's output mode, unless the function is called with other rows
    than those of the batch. On Spark Connect, the mode is unknown: `update` and `complete` require a sink that upserts.

    Several writes in one function require a `step_id` each. On another thread, call the function through
    `pyspark.inheritable_thread_target`, created inside the function that Spark calls, so that the thread inherits the
    query id.

    Args:
        sink: The sink.
        recovery: The location of the step's log: an absolute path, a URL or a `RecoveryConfig`. Keep it as long as the
            checkpoint and no longer.
        checkpoint: The query's checkpoint location, if it is not `recovery`. Required only on Spark Connect, where the
            query id is read from it.
        key: The column that routes rows to the parts of a fixed sink, cast to string. Either a column name with
            literal dots, or a name as in Spark: `a.b` is also the field `b` of `a`. Defaults to the routing column of
            the sink, if it has one (`DeclaresRoutingKey`).
        value: The column or field to write. By default, all columns as a dict per row.
        step_id: The name of this sink within the query: letters, digits, `.`, `_`, `-`.
        null_key: The treatment of a NULL key: "error", or "empty" to route it as an empty string.
        order_by: Columns by which the rows of each task are sorted, part by part.
        workers: The number of tasks that write. By default, Spark decides.
        adopt_checkpoint: Begin at the first batch id although no epoch is recorded, for a query that wrote to another
            sink before. A batch that was begun and not committed when this function is called is rejected, because
            the other sink may have written it in part; "rerun" accepts it.
        commit: The duration of retries, and the treatment of data that the target rejects. See `CommitPolicy`.

    Raises:
        ConfigurationError: An argument is invalid, or does not fit the sink.
    """
    settings = StepSettings(
        step_id=step_id,
        key=key,
        value=value,
        null_key=null_key,
        order_by=order_by,
        workers=workers,
        adopt_checkpoint=adopt_checkpoint,
        commit=commit or CommitPolicy(),
    )
    location = recovery_config_for(sink, recovery)
    if checkpoint is None:
        checkpoint = recovery if isinstance(recovery, str) else location.url()
    checkpoint = checkpoint_recovery(checkpoint)
    # On the thread of a stream, the open batch is the one that is about to be written.
    before = open_batch(checkpoint) if adopt_checkpoint is True and not is_stream_thread() else None
    return ForEachBatch(EpochWriter(sink, location, settings, open_before=before), checkpoint, location.url())


@names_arguments
def write_stream(
    df: DataFrame,
    sink: Any,
    *,
    key: str | None = None,
    value: str | None = None,
    step_id: str = "sink",
    checkpoint: str | os.PathLike[str] | None = None,
    recovery: str | RecoveryConfig | None = None,
    null_key: NullKey = "error",
    order_by: Sequence[str] = (),
    workers: int | None = None,
    adopt_checkpoint: AdoptCheckpoint = False,
    commit: CommitPolicy | None = None,
) -> DataStreamWriter:
    """Return a writer that writes a streaming DataFrame to a sink.

    Checks the arguments and the columns of the rows. A sink with columns of its own, such as a table, connects to its
    target for this check. The target is compared with the log in the first epoch.

    ```python
    write_stream(df, FileSink("/data/out", parts=4), key="carrier", checkpoint="/data/chk").start()
    ```

    Args:
        df: The streaming rows.
        sink: The sink.
        key: See `for_each_batch`, as for all arguments not described here.
        value: See `for_each_batch`.
        step_id: See `for_each_batch`.
        checkpoint: Spark's checkpoint location, absolute. It also contains the step's log unless `recovery` is given.
            Omit it only if you set `checkpointLocation` yourself and pass `recovery`; on Spark Connect, always pass it.
        recovery: The location of the step's log, if not with the checkpoint.
        null_key: See `for_each_batch`.
        order_by: See `for_each_batch`.
        workers: See `for_each_batch`.
        adopt_checkpoint: See `for_each_batch`.
        commit: See `for_each_batch`.

    Returns:
        A `DataStreamWriter`: continue with `trigger`, `queryName`, `outputMode` and `start`. Sinks that only add rows
        reject `update` and `complete`, on a classic session before the first row. On Spark Connect, the mode is
        unknown.

    Raises:
        ConfigurationError: An argument or a column is invalid, or does not fit the sink. Nothing was started.
        OutfallError: The sink cannot read its target, or the target does not fit. Nothing was started.
    """
    if not df.isStreaming:
        raise ConfigurationError("the DataFrame is not streaming", do="use outfall.spark.write for a batch")
    function = for_each_batch(
        sink,
        recovery=recovery if recovery is not None else checkpoint_recovery(checkpoint),
        checkpoint=checkpoint,
        key=key,
        value=value,
        step_id=step_id,
        null_key=null_key,
        order_by=order_by,
        workers=workers,
        adopt_checkpoint=adopt_checkpoint,
        commit=commit,
    )
    function.check(df)
    writer = df.writeStream.foreachBatch(function)
    return writer if checkpoint is None else writer.option("checkpointLocation", os.fspath(checkpoint))


@names_arguments
def drain(
    sink: Any,
    *,
    checkpoint: str | os.PathLike[str] | None = None,
    recovery: str | RecoveryConfig | None = None,
    step_id: str = "sink",
    commit: CommitPolicy | None = None,
) -> EpochResult | None:
    """Deliver the rows that a sink buffers across epochs. Runs in this process, without a Spark session.

    Stop the query first: a running query is fenced and fails. After a restart, it continues with its next batch. Repeat
    a drain that failed or was killed; the next run finishes an epoch that it recorded. Each row is delivered with the
    guarantee of any epoch.

    Args:
        sink: The query's sink, with the same options.
        checkpoint: The query's checkpoint location, if it contains the step's log.
        recovery: The location of the step's log, if not with the checkpoint.
        step_id: The step id.
        commit: The duration of retries. See `CommitPolicy`.

    Returns:
        The outcome, with the number of delivered rows in `counts["rows_drained"]`; `None` if no rows were buffered.

    Raises:
        ConfigurationError: Neither or both of `checkpoint` and `recovery` are given, or the sink buffers no rows.
        OutfallError: See `EpochCoordinator`.
    """
    if checkpoint is not None and recovery is not None:
        raise ConfigurationError(
            "checkpoint and recovery are both given", do="pass the one that contains the step's log"
        )
    location = recovery_config(recovery if recovery is not None else checkpoint_recovery(checkpoint))
    options = EpochOptions(commit=commit or CommitPolicy())
    check_step_id(step_id)
    return draining.drain(lambda: EpochCoordinator(sink, step_id, location, options=options))


def checkpoint_recovery(checkpoint: str | os.PathLike[str] | None) -> str:
    """Return the checkpoint location as a recovery location. Raises `ConfigurationError` if missing or relative."""
    if checkpoint is None or not os.fspath(checkpoint).strip():
        raise ConfigurationError(
            "no checkpoint location is given, so there is no location for the recovery log",
            do="pass the query's checkpoint location, or recovery=",
        )
    location = os.fspath(checkpoint)
    if not os.path.isabs(location) and not scheme_of(location):
        raise ConfigurationError(
            f"the checkpoint location {location!r} is relative",
            why="Spark and its workers may run in different directories",
            do="pass an absolute path or a URL",
        )
    return location


def check_same_filesystem(checkpoint: str, resolved: str | None) -> None:
    """Reject a path that Spark has resolved to a checkpoint on another filesystem. Called before the first BEGIN."""
    if resolved is None:
        return
    scheme, separator, rest = resolved.partition("://")
    if separator and scheme != LOCAL and f"/{rest.partition('/')[2]}" == os.path.normpath(checkpoint):
        raise misplaced_log(checkpoint, resolved)


def misplaced_log(checkpoint: str, resolved: str | None = None) -> ConfigurationError:
    """Return the error for a log that would be on this host's disk, while the checkpoint is not."""
    return ConfigurationError(
        f"the log cannot be next to the checkpoint {checkpoint!r}",
        why=f"the checkpoint is {f'at {resolved}' if resolved else 'not on a disk of this host'}: Spark looks up a path"
        " without a scheme in its default filesystem (fs.defaultFS), and Outfall on this host",
        do=f"give the checkpoint as a URL: {resolved or 'hdfs://namenode:8020/path, s3a://bucket/path'}",
    )
