"""Runs one epoch of the Python API: begin, the Spark job, finish."""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from pyspark.errors import PySparkException

from outfall.capabilities import SupportsBufferedRows, SupportsPreWriteTopology, SupportsSparkWriter
from outfall.capability_checks import SupportsChildren, check_output_mode, resolve
from outfall.errors import CapabilityError, EpochAbandonedError, error_in
from outfall.protocol.coordinator import EpochCoordinator
from outfall.protocol.draining import REWRITES, drain
from outfall.protocol.failure import DRIVER, recorded
from outfall.protocol.messages import EpochResult, TaskResponse, Ticket
from outfall.protocol.step import EpochOptions
from outfall.protocol.task import EpochTask, TaskIdentity
from outfall.recovery.log import RecoveryConfig
from outfall.recovery.spark_checkpoint import SparkCheckpoint
from outfall.spark.arrow_batches import Job, limited, limits_of
from outfall.spark.columns import RowColumns, columns_named
from outfall.spark.job_properties import job_properties
from outfall.spark.own_writer import SparkRows, default_parallelism
from outfall.spark.query_identity import NO_QUERY, RunningQuery, is_connect
from outfall.spark.routing import map_in_arrow, route
from outfall.spark.settings import StepSettings
from outfall.spark.task_function import PART_COLUMN, RESPONSE_SCHEMA, EpochFunction

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

JOB_DESCRIPTION = "spark.job.description"

_log = logging.getLogger(__name__)


class EpochWriter:
    """Writes DataFrames to one sink, one epoch each. Picklable."""

    def __init__(
        self,
        sink: Any,
        recovery: RecoveryConfig,
        settings: StepSettings,
        *,
        any_later: bool = False,
        end_of_input: bool = False,
        final: bool = False,
        open_before: int | None = None,
    ) -> None:
        """Check the arguments without rows. For `any_later`, `final` and `open_before`, see `EpochOptions`.

        With `end_of_input`, the sink must deliver all buffered rows after an epoch. Raises `CapabilityError` if the
        sink's capabilities do not fit together or it cannot be pickled, and `ConfigurationError` if the settings do not
        fit it.
        """
        settings = settings.for_sink(sink)
        settings.check(sink)
        _check_pickles(sink)
        self._sink = sink
        self._resolved = resolve(sink)
        self._recovery = recovery
        self._settings = settings
        self._any_later = any_later
        self._end_of_input = end_of_input
        self._final = final
        self._open_before = open_before
        self._started = time.time()
        self._checked: StructType | None = None
        """The columns that were last checked in this process."""
        self.tasks_ran = False
        """Whether an epoch of this process got as far as its tasks."""
        self._limits: str | None = None
        """The limits of the last epoch's batches in this process."""

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without the checked columns, because the sink may not carry the result of the check."""
        return self.__dict__ | {"_checked": None}

    def write(self, df: DataFrame, epoch: int, *, query: RunningQuery = NO_QUERY) -> EpochResult:
        """Write one epoch, or skip it if it is completed. Called on the driver.

        The rows are not streaming. Raises `ConfigurationError` if the sink does not support the query's output mode.
        """
        if query.output_mode is not None:
            check_output_mode(self._resolved, query.output_mode)
        with self._recorded(query):
            self.check(df)
        rewrites = 0
        while True:
            try:
                with closing(self.coordinator(query)) as coordinator:
                    ticket = coordinator.begin(epoch, query_id=query.query_id)
                    self.tasks_ran = True
                    described = _described(df, self._description(ticket.epoch_of(epoch)))
                    with described, self._recorded(query, ticket.epoch_of(epoch)):
                        responses = self._run_tasks(df, ticket, epoch, query.query_id)
                    result = coordinator.finish(ticket, responses)
                break
            except EpochAbandonedError as error:
                rewrites += 1
                if rewrites > REWRITES:
                    raise
                _log.warning("%s Writing it again.", error)
        if self._end_of_input and SupportsBufferedRows in self._resolved.capabilities:
            # Parts without rows in this epoch may have buffered rows of an earlier job or query.
            drain(lambda: self.coordinator(query))
        return result

    def check(self, df: DataFrame) -> None:
        """Reject rows that cannot be written, before any data moves. Called on the driver.

        Raises `ConfigurationError` if a column is missing, or has a type that cannot be written. Checks the same
        columns only once per process, because the sink may query its target.
        """
        if df.schema != self._checked:
            self._settings.check_rows(self._resolved, df)
            self._checked = df.schema

    def coordinator(self, query: RunningQuery = NO_QUERY) -> EpochCoordinator:
        """Return a coordinator of the step. Called on the driver."""
        checkpoint = SparkCheckpoint.at(query.checkpoint)
        options = EpochOptions(
            commit=self._settings.commit,
            adopt_checkpoint=bool(self._settings.adopt_checkpoint),
            open_before=self._open_before,
            any_later=self._any_later,
            end_of_input=self._end_of_input,
            worker_count=self._settings.workers or 0,
            key=self._settings.key,
            columns=self._columns(),
            started=self._started,
            final=self._final,
            make_source_durable=None if checkpoint is None else checkpoint.make_durable,
        )
        return EpochCoordinator(self._sink, self._settings.step_id, self._recovery, options=options, run=query.run)

    def _columns(self) -> str:
        """Return a digest of the columns that were last checked, and of the one that is written as the value."""
        if self._checked is None:
            return ""
        text = f"{self._settings.value or ''} {self._checked.simpleString()}"
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def _recorded(self, query: RunningQuery, epoch: int | None = None) -> AbstractContextManager[None]:
        """Store an error as the last one of the step, unless its log is deleted."""
        if self._final:
            return nullcontext()
        return recorded(self._recovery, self._settings.step_id, DRIVER, epoch, query_id=query.query_id)

    def _description(self, epoch: int) -> str:
        """Return the description of the epoch's jobs in Spark's UI, with the kinds of the children of a composite."""
        sinks = [self._resolved, *self._resolved.children().values()]
        kinds = ", ".join(sink.kind() for sink in sinks if SupportsChildren not in sink.capabilities)
        return f"outfall: step {self._settings.step_id}, epoch {epoch} → {kinds}"

    def _run_tasks(self, df: DataFrame, ticket: Ticket, epoch: int, query_id: str | None) -> list[TaskResponse]:
        skips = ticket.skips(ticket.epoch_of(epoch))
        frame, names, value = (RowColumns(df.columns).renamed(df), (), None) if skips else self._prepared(df, ticket)
        if SupportsSparkWriter in self._resolved.capabilities and not skips:
            task = EpochTask(self._sink, ticket, TaskIdentity(epoch, 0, 0, query_id=query_id), value_column=value)
            return [task.run_by_spark(SparkRows(frame.toDF(*names)))]
        function = EpochFunction(self._sink, ticket, epoch, value, names)
        job = map_in_arrow(frame, function, RESPONSE_SCHEMA)
        limited_job = self._limited(job, columns_named(frame.schema, names), ticket, query_id)
        with self._located(ticket.epoch_of(epoch)), limited_job:
            rows = job.collect()
        if not rows:
            # Spark proved that there are no rows and ran no task. A stateful query must run nevertheless. Otherwise
            # its state store misses this batch, and the query cannot continue.
            df.write.format("noop").mode("overwrite").save()
        return [TaskResponse.decode(bytes(row["response"])) for row in rows]

    def _limited(
        self, job: DataFrame, columns: StructType, ticket: Ticket, query_id: str | None
    ) -> AbstractContextManager[None]:
        """Return a context that limits the batches of the job. Logs what was decided, if it has changed."""
        known = Job(
            columns,
            begun_before=ticket.begun_before,
            widest_row=ticket.widest_row,
            resumable=not self._final,
        )
        limits = limits_of(job, known, query_id)
        if str(limits) != self._limits:
            self._limits = str(limits)
            _log.info("step %s: Arrow batches have %s", ticket.step_id, limits)
        return limited(job, limits)

    @contextmanager
    def _located(self, epoch: int) -> Iterator[None]:
        """Raise an `OutfallError` of a task as such, with its step and epoch. Spark logs the traceback of the task."""
        try:
            yield
        except PySparkException as error:
            ours = error_in(str(error))
            if ours is None:
                raise
            if not ours.what.startswith("["):
                ours.locate(step=self._settings.step_id, epoch=epoch)
            raise ours from None

    def _prepared(self, df: DataFrame, ticket: Ticket) -> tuple[DataFrame, tuple[str, ...], str | None]:
        """Prepare the rows for the tasks: apply the pre-write topology, route, and select the written columns.

        Returns the rows under positional names, the original names, and the name of the value column.
        """
        settings, fixed = self._settings, self._resolved.fixed
        shapes = SupportsPreWriteTopology in self._resolved.capabilities
        shaped = self._sink.add_pre_write_topology(df) if shapes else df
        columns = RowColumns(shaped.columns)
        frame = columns.renamed(shaped)
        order_by = [columns.find("order_by", name).expression() for name in settings.order_by]
        if fixed:
            settings.check_key(self._sink, len(ticket.parts))
            frame = route(
                frame,
                self._sink,
                len(ticket.parts),
                key=None if settings.key is None else columns.find("key", settings.key).sql(),
                null_key=settings.null_key,
                tasks=settings.workers or default_parallelism(df),
                order_by=order_by,
            )
        elif settings.workers is not None:
            frame = frame.repartition(settings.workers)
        if not fixed and order_by:
            frame = frame.sortWithinPartitions(*order_by)
        if settings.value is None:
            return frame, columns.names, None
        value = columns.find("value", settings.value)
        selected = frame.select(value.expression().alias("value"), *([PART_COLUMN] if fixed else []))
        return selected, (value.name,), value.name


@contextmanager
def _described(df: DataFrame, text: str) -> Iterator[None]:
    """Set the description of the Spark jobs that the block starts on this thread, and restore the previous one.

    Spark Connect ignores descriptions. It shows the tags of a session in its own tab, and with the jobs in the REST
    API. A tag must not contain a comma.
    """
    session = df.sparkSession
    if is_connect(df):
        tag = text.replace(",", ";")
        session.addTag(tag)
        try:
            yield
        finally:
            session.removeTag(tag)
        return
    with job_properties(session.sparkContext, {JOB_DESCRIPTION: text}):
        yield


def _check_pickles(sink: Any) -> None:
    """Pickle a sink as Spark does, before the epoch begins."""
    from pyspark import cloudpickle

    dumps: Any = cloudpickle.dumps
    try:
        dumps(sink)
    except Exception as error:
        raise CapabilityError(
            f"the {type(sink).__name__} cannot be sent to Spark's tasks",
            why=f"pickling it fails: {error}",
            do="store only options in the sink, and open connections, locks and files in its partitions",
        ) from error
