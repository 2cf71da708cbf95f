"""Streaming with sink objects, and delivering what a sink holds back while its query does not run."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from outfall.errors import ConfigurationError
from outfall.options import names_arguments
from outfall.protocol import draining
from outfall.protocol.commit_retry import CommitPolicy
from outfall.protocol.coordinator import EpochCoordinator
from outfall.protocol.messages import EpochResult
from outfall.protocol.step import EpochOptions
from outfall.recovery.log import RecoveryConfig, check_step_id
from outfall.recovery.url import recovery_config
from outfall.spark.epoch_writer import EpochWriter
from outfall.spark.query_identity import RunningQuery, is_connect, query_in, running_query
from outfall.spark.settings import NullKey, StepSettings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.readwriter import DataStreamWriter


class ForEachBatch:
    """The function that `DataStreamWriter.foreachBatch` calls. Made by `for_each_batch`."""

    def __init__(self, writer: EpochWriter, checkpoint: str) -> None:
        """Write through `writer`. On Connect the query's id is read from `checkpoint`."""
        self._writer = writer
        self._checkpoint = checkpoint
        self._query: RunningQuery | None = None

    def __call__(self, df: DataFrame, batch_id: int) -> None:
        """Write one micro-batch. Called by Spark on the driver, once or more for each batch id."""
        if not isinstance(batch_id, int):
            raise ConfigurationError(f"the batch id is {batch_id!r}", do="pass Spark's batch id on as it came")
        query = self._query_on_connect(df) if is_connect(df) else running_query(df)
        if query.checkpoint is None:
            query = replace(query, checkpoint=self._checkpoint)
        self._writer.write(df, batch_id, query=query)

    def check(self, df: DataFrame) -> None:
        """Refuse rows that cannot be written, before the query is started."""
        self._writer.check(df)

    def _query_on_connect(self, df: DataFrame) -> RunningQuery:
        """The server runs the function in one process per started query and tells it no id."""
        if self._query is None:
            query_id = query_in(df, self._checkpoint)
            if query_id is None:
                raise ConfigurationError(
                    f"{self._checkpoint!r} is not the checkpoint of a query, so this query's id is unknown",
                    why="on Spark Connect it stands only there, and without it a batch of another query could not be"
                    " told from one that comes again, whose rows are dropped",
                    do="set the query's checkpointLocation, and pass the same location as checkpoint=",
                )
            self._query = RunningQuery(query_id, "process")
        return self._query


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
    adopt_checkpoint: bool = False,
    commit: CommitPolicy | None = None,
) -> ForEachBatch:
    """Make a function for `df.writeStream.foreachBatch`, or to be called inside one of your own.

    On a classic session the query's output mode is compared with what the sink can keep, unless the function is called
    with other rows than came. On Spark Connect the mode is not seen: `update` and `complete` need a sink that upserts.

    Several writes in one function need a `step_id` each. On another thread the function must be called through
    `pyspark.inheritable_thread_target`, made inside the function that Spark calls: so the thread knows the query.

    Args:
        sink: where the rows go.
        recovery: where the step's log is: an absolute path, a URL or a `RecoveryConfig`. Keep it as long as the
            checkpoint and no longer.
        checkpoint: the query's checkpoint location, where it is not `recovery`. Needed on Spark Connect only, where the
            query's id is read from it.
        key: the column that routes rows to the parts of a fixed sink; cast to string. A name with its dots as it is,
            or as Spark takes it: `a.b` is also the field `b` of `a`. Left out: the sink's own, where it knows one
            (`DeclaresRoutingKey`).
        value: the column or field to write; all columns as a dict per row when `None`.
        step_id: names this sink within the query: letters, digits, `.`, `_`, `-`.
        null_key: what a NULL key does: "error", or "empty" to route it as an empty string.
        order_by: columns by which the rows of each task are sorted, part by part.
        workers: how many tasks write; left to Spark when `None`.
        adopt_checkpoint: begin at the batch id that comes although nothing is recorded yet, for a query that wrote
            elsewhere before.
        commit: how long committing is tried, and what is done with data that the target refuses: `CommitPolicy`.

    Raises:
        ConfigurationError: something does not fit together.
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
    location = recovery_config(recovery)
    if checkpoint is None:
        checkpoint = recovery if isinstance(recovery, str) else location.url()
    return ForEachBatch(EpochWriter(sink, location, settings), checkpoint_recovery(checkpoint))


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
    adopt_checkpoint: bool = False,
    commit: CommitPolicy | None = None,
) -> DataStreamWriter:
    """Write a streaming DataFrame through a sink.

    ```python
    write_stream(df, FileSink("/data/out", parts=4), key="carrier", checkpoint="/data/chk").start()
    ```

    Args:
        df: the streaming rows.
        sink: where they go.
        key: see `for_each_batch`, as all arguments not named here.
        value: see `for_each_batch`.
        step_id: see `for_each_batch`.
        checkpoint: Spark's checkpoint location, absolute; also holds the step's log unless `recovery` is given. Leave
            it out only when you set `checkpointLocation` yourself and pass `recovery`; on Spark Connect give it always.
        recovery: where the step's log is, if not with the checkpoint.
        null_key: see `for_each_batch`.
        order_by: see `for_each_batch`.
        workers: see `for_each_batch`.
        adopt_checkpoint: see `for_each_batch`.
        commit: see `for_each_batch`.

    Returns:
        A `DataStreamWriter`: go on with `trigger`, `queryName`, `outputMode` and `start` as ever. Sinks that only add
        rows refuse `update` and `complete`, on a classic session before the first row; on Spark Connect it is not seen.

    Raises:
        ConfigurationError: something does not fit together; nothing was started.
    """
    if not df.isStreaming:
        raise ConfigurationError("the DataFrame is not a stream", do="use outfall.spark.write for a batch")
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
    """Deliver what a sink holds back across epochs. Runs in this process and needs no Spark session.

    Stop the query first: one that runs is fenced and fails. Started again, it goes on at its next batch. A drain that
    fails or is killed can be repeated, and what it recorded is finished by whatever runs next; each row is delivered
    once, as in any epoch.

    Args:
        sink: the query's sink, with the same options.
        checkpoint: the query's checkpoint location, where its recovery data lies beside it.
        recovery: where the step's log is, if not with the checkpoint.
        step_id: the step's id.
        commit: how long committing is tried.

    Returns:
        What was delivered; `None` when nothing was held back.

    Raises:
        ConfigurationError: neither or both of `checkpoint` and `recovery` are given, or the sink holds nothing back.
        OutfallError: see `EpochCoordinator`.
    """
    if checkpoint is not None and recovery is not None:
        raise ConfigurationError("checkpoint and recovery are both given", do="give the one where the step's log is")
    location = recovery_config(recovery if recovery is not None else checkpoint_recovery(checkpoint))
    options = EpochOptions(commit=commit or CommitPolicy())
    check_step_id(step_id)
    return draining.drain(lambda: EpochCoordinator(sink, step_id, location, options=options))


def checkpoint_recovery(checkpoint: str | os.PathLike[str] | None) -> str:
    """Return the checkpoint location as a recovery location.

    Raises:
        ConfigurationError: it is missing or relative.
    """
    if checkpoint is None or not os.fspath(checkpoint).strip():
        raise ConfigurationError(
            "no checkpoint location is given, so there is nowhere to record what was written",
            do="give the query's checkpoint location, or recovery=",
        )
    location = os.fspath(checkpoint)
    if not os.path.isabs(location) and not urlsplit(location).scheme:
        raise ConfigurationError(
            f"the checkpoint location {location!r} is relative",
            why="Spark and its workers may run in different directories",
            do="give an absolute path or a URL",
        )
    return location
