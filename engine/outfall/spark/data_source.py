"""`format("outfall")`: a Python data source named `outfall`. Spark 4.1 and later.

Spark creates data source and writer in a planning process, once per micro-batch, and pickles the writer there for its
tasks. `commit` and `abort` of a stream run in another process, on a new writer of an unpickled data source. Those of a
batch job run on the pickled writer. BEGIN is therefore written by a data source that was created in its process, and
commit takes the generation from the task results. Measured on PySpark 4.1.4 and 4.3.0.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Never

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from outfall.capabilities import SaveMode
from outfall.capability_checks import resolve
from outfall.errors import ConfigurationError, ResponsesError, TerminalError
from outfall.options import plain_name
from outfall.protocol.commit_retry import CommitPolicy
from outfall.protocol.coordinator import EpochCoordinator
from outfall.protocol.failure import query_ended, record
from outfall.protocol.messages import TaskResponse, Ticket
from outfall.protocol.step import EpochOptions
from outfall.protocol.task import EpochTask
from outfall.recovery.log import RecoveryConfig
from outfall.recovery.spark_checkpoint import SparkCheckpoint, newest_batches
from outfall.recovery.url import recovery_config_for
from outfall.source_options import BATCH_ADVICE, SourceOptions, make_sink, split_options
from outfall.spark.batch import check_resumed_mode, end_failed, make_recovery, remove_recovery
from outfall.spark.columns import check_schema
from outfall.spark.stream import checkpoint_recovery, misplaced_log
from outfall.spark.task_function import spare_modules, task_identity
from outfall.visible_secrets import warn_of_visible_secrets

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


_log = logging.getLogger(__name__)

_INSERT = "INSERT INTO t WITH (sink = 'file', path = '…') SELECT …"


@dataclass(frozen=True)
class ResponseMessage(WriterCommitMessage):
    """The message of a task to the driver with its result."""

    response: bytes


class OutfallDataSource(DataSource):
    """`format("outfall")`, for writing only."""

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "outfall"

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        self._plans = True

    def __getstate__(self) -> Mapping[str, Any]:
        """Mark the copy as not planning: the process that unpickles a data source commits or aborts."""
        return self.__dict__ | {"_plans": False}

    def schema(self) -> StructType:
        """Reject a read, and a table created by SQL without columns, for which Spark requests them."""
        raise _write_only()

    def reader(self, schema: StructType) -> Never:
        """Reject a SELECT from a table created by SQL."""
        raise _write_only()

    def streamReader(self, schema: StructType) -> Never:  # noqa: N802 - Spark's name
        """Reject a stream from a table created by SQL."""
        raise _write_only()

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: N802 - Spark's name
        """Create the writer of one micro-batch, and begin its epoch if this process plans it."""
        own, rest = self._split()
        if overwrite:
            raise ConfigurationError(
                'outputMode("complete") is not supported by format("outfall")',
                why="each epoch would have to replace the rows of all earlier ones",
                do="from outfall.spark import write_stream, with a sink that upserts by key",
            )
        if own.epoch is not None:
            raise ConfigurationError("epoch is for batch jobs; a stream has Spark's batch ids", do="omit epoch")
        location = own.recovery or checkpoint_recovery(own.checkpoint_location)
        sink = self.make_sink(own.sink, rest)
        writer = StreamWriter(sink, own, recovery_config_for(sink, location))
        # In the process that commits, the rows are already written, so there is nothing to check.
        if self._plans:
            check_schema(resolve(writer.sink), schema)
            if own.checkpoint_location is not None:
                _check_checkpoint(own, own.checkpoint_location)
            writer.begin()
        return writer

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        """Create the writer of a batch job and begin the job. Called only in the planning process."""
        own, rest = self._split()
        if own.checkpoint_location is not None or own.query_name is not None or own.adopt_checkpoint:
            raise ConfigurationError(
                "checkpointLocation, queryName and adopt_checkpoint are for streams",
                why="a batch job has no checkpoint and is not a query",
                do="omit them; for a job that can run again, set epoch and recovery",
            )
        if (own.epoch is None) != (own.recovery is None):
            raise ConfigurationError(
                "epoch and recovery must be given together", do="set both for a job that can run again, or neither"
            )
        mode: SaveMode = "overwrite" if overwrite else "append"
        on_existing = [value for name, value in rest.items() if plain_name(name.rpartition(".")[2]) == "onexisting"]
        sink = self.make_sink(own.sink, rest)
        recovery = None if own.recovery is None else recovery_config_for(sink, own.recovery)
        check_schema(resolve(sink), schema)
        if recovery is not None:
            check_resumed_mode(mode)
        elif not overwrite and "overwrite" in on_existing:
            raise ConfigurationError(
                'mode("append") and on_existing=overwrite contradict each other', do='use .mode("overwrite")'
            )
        elif overwrite or not on_existing:
            # Spark has no mode("error") for Python data sources: users set on_existing=error instead.
            sink = resolve(sink).in_save_mode(mode)
        writer = BatchWriter(sink, own, recovery)
        writer.begin()
        return writer

    def make_sink(self, name: str, options: Mapping[str, str]) -> Any:
        """Return the sink of this name. A test kit overrides it for sinks without names."""
        return make_sink(name, options)

    def _split(self) -> tuple[SourceOptions, dict[str, str]]:
        options = dict(self.options)
        if not options:
            raise ConfigurationError(
                'format("outfall") received no options',
                why="Spark does not pass the options of CREATE TABLE to a Python data source",
                do=f'set the options in each INSERT: {_INSERT}; in Python: df.write.format("outfall")'
                '.option("sink", …).mode("append").save()',
            )
        own, rest = split_options(options)
        if self._plans:
            warn_of_visible_secrets(options, own.checkpoint_location)
        return own, rest


class _SourceWriter:
    """The common part of both writers: the sink, the step's log, and the ticket after the begin."""

    def __init__(self, sink: Any, own: SourceOptions, recovery: RecoveryConfig | None) -> None:
        self.sink = sink
        self._options = own
        self._recovery = recovery
        self._ticket: Ticket | None = None

    def _coordinator(
        self, recovery: RecoveryConfig, *, any_later: bool = False, final: bool = False
    ) -> EpochCoordinator:
        checkpoint = SparkCheckpoint.at(self._options.checkpoint_location)
        options = EpochOptions(
            commit=CommitPolicy.from_options(self._options),
            adopt_checkpoint=bool(self._options.adopt_checkpoint),
            any_later=any_later,
            final=final,
            # This process may end with the plan; its parent lives as long as the driver's JVM.
            driver_process=os.getppid(),
            make_source_durable=None if checkpoint is None else checkpoint.make_durable,
        )
        return EpochCoordinator(self.sink, self._options.step_id, recovery, options=options)

    def _run_task(self, batches: Iterator[pa.RecordBatch], epoch: int | None) -> ResponseMessage:
        if self._ticket is None:
            raise ResponsesError("the writer has no ticket in its task", step=self._options.step_id)
        spare_modules()
        task = EpochTask(self.sink, self._ticket, task_identity(epoch))
        return ResponseMessage(task.run((None, batch) for batch in batches).encode())

    def _finish(self, coordinator: EpochCoordinator, messages: list[ResponseMessage | None]) -> None:
        if None in messages:
            raise _continuous(self._options.step_id)
        responses = [TaskResponse.decode(message.response) for message in messages if message is not None]
        coordinator.finish(coordinator.resume(responses), responses)


class StreamWriter(_SourceWriter, DataSourceStreamArrowWriter):
    """Writes one micro-batch."""

    def begin(self) -> None:
        """Begin the epoch. Called in the planning process."""
        _advise()
        with closing(self._coordinator(self._log())) as coordinator:
            self._ticket = coordinator.begin(None)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> ResponseMessage:
        """Write the rows of one task. Called in a task."""
        return self._run_task(iterator, None)

    def commit(self, messages: list[ResponseMessage | None], batchId: int) -> None:  # type: ignore[override]  # noqa: N803
        """Record and publish the micro-batch. Called on the driver after all tasks have returned."""
        with closing(self._coordinator(self._log())) as coordinator:
            self._finish(coordinator, messages)

    def abort(self, messages: list[ResponseMessage | None], batchId: int) -> None:  # type: ignore[override]  # noqa: N803
        """Record the end of the query and do nothing else: Spark also aborts after a commit that raised.

        Published rows must stay. The next BEGIN resolves or cleans up this epoch.
        """
        record(self._log(), self._options.step_id, query_ended(batchId))

    def _log(self) -> RecoveryConfig:
        if self._recovery is None:
            raise ConfigurationError("the stream has no recovery location", step=self._options.step_id)
        return self._recovery


class BatchWriter(_SourceWriter, DataSourceArrowWriter):
    """Writes one batch job."""

    def begin(self) -> None:
        """Begin the job. Called in the planning process."""
        if self._recovery is None:
            # For a job that is never resumed; planning and commit run on the same host.
            self._recovery = make_recovery()
        _advise()
        try:
            with closing(self._begun(self._recovery)) as coordinator:
                self._ticket = coordinator.begin(self._epoch())
        except BaseException as error:
            # Spark calls neither commit nor abort for a job that did not begin.
            self._note_end(error)
            raise

    def write(self, iterator: Iterator[pa.RecordBatch]) -> ResponseMessage:
        """Write the rows of one task. Called in a task."""
        return self._run_task(iterator, self._epoch())

    def commit(self, messages: list[ResponseMessage | None]) -> None:  # type: ignore[override]
        """Record and publish the job. Called on the driver after all tasks have returned."""
        if self._recovery is None:
            raise ResponsesError("the job was not begun", step=self._options.step_id)
        try:
            with closing(self._begun(self._recovery)) as coordinator:
                self._finish(coordinator, messages)
        except BaseException as error:
            self._note_end(error)
            raise
        if self._is_unresumed:
            remove_recovery(self._recovery)

    def abort(self, messages: list[ResponseMessage | None]) -> None:  # type: ignore[override]
        """Publish nothing. The next run with the same epoch and recovery finishes a recorded job.

        Called on the driver after tasks have failed, and after a commit that raised or whose process died. Raises
        `TerminalError` if rows of the job are written or recorded: Spark shows it with the error of the job, and after
        a dead process nothing else says it.
        """
        if (left := self._end_failed()) is not None:
            raise TerminalError(left, step=self._options.step_id)

    @property
    def _is_unresumed(self) -> bool:
        return self._options.recovery is None

    def _note_end(self, error: BaseException) -> None:
        if (left := self._end_failed()) is not None:
            error.add_note(left)

    def _end_failed(self) -> str | None:
        """Roll back the job and delete its log. Return what the user must know before the job is run again."""
        recovery = self._recovery
        if not self._is_unresumed or recovery is None:
            return None
        self._recovery = None
        tasks_ran = self._ticket is not None
        return end_failed(recovery, self._options.step_id, lambda: self._begun(recovery), tasks_ran=tasks_ran)

    def _begun(self, recovery: RecoveryConfig) -> EpochCoordinator:
        return self._coordinator(recovery, any_later=True, final=self._is_unresumed)

    def _epoch(self) -> int:
        return self._options.epoch or 0


@cache
def _advise() -> None:
    """Log once in this process what only the user can set for this API, whose job Spark itself starts."""
    _log.info("%s", BATCH_ADVICE)


def _write_only() -> ConfigurationError:
    return ConfigurationError(
        'format("outfall") only writes',
        do="read the target with its own format; to write with SQL, name the columns: CREATE TABLE t (id BIGINT)"
        f" USING outfall, and set the options in each INSERT: {_INSERT}",
    )


def _check_checkpoint(own: SourceOptions, checkpoint: str) -> None:
    """Reject a continuous query, and a log that would be on another filesystem than the checkpoint."""
    newest = newest_batches(checkpoint)
    if newest is None:
        if own.recovery is None and os.path.isabs(checkpoint):
            raise misplaced_log(checkpoint)
    elif newest[0] <= newest[1]:
        raise _continuous(own.step_id)


def _continuous(step_id: str) -> ConfigurationError:
    return ConfigurationError(
        'format("outfall") cannot be written with trigger(continuous=…)',
        step=step_id,
        why="with this trigger, Spark calls no Python writer for its tasks, and drops the rows",
        do="use trigger(processingTime=…) or trigger(availableNow=True)",
    )
