"""The functions of the Python API in Spark's Python workers, and the identity of a task."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql.types import BinaryType, StructField, StructType

from outfall.counters import WIDEST_ROW
from outfall.errors import TerminalError, ValueRefusedError
from outfall.protocol.messages import Ticket
from outfall.protocol.task import EpochTask, TaskIdentity
from outfall.spark.arriving_rows import ArrivingRows
from outfall.spark.columns import named
from outfall.spark.version_check import PickledWithVersion

BATCH_ID = "streaming.sql.batchId"
QUERY_ID = "sql.streaming.queryId"

PART_COLUMN = "__outfall_part"
KEY_COLUMN = "__outfall_key"

RESPONSE_SCHEMA = StructType([StructField("response", BinaryType())])


def rejected_part(index: int) -> int:
    """Return the negative value of the part column for a row that the task of this part rejects.

    The part of the empty key rejects NULL keys. So that part is not published, and its rows can still change when the
    user has NULL keys routed there. The other parts of the epoch may be published already.
    """
    return -1 - index


@dataclass(frozen=True)
class EpochFunction(PickledWithVersion):
    """Writes the rows of one task and yields its result; for `mapInArrow`."""

    sink: Any
    ticket: Ticket
    epoch: int
    value: str | None
    names: tuple[str, ...] = ()
    """The original names of the columns, in their order."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield one row with one column: the result."""
        spare_modules()
        task = EpochTask(self.sink, self.ticket, task_identity(self.epoch), value_column=self.value)
        rows = ArrivingRows(batches)
        response = task.run(self._routed(rows))
        if rows.widest and not response.skipped:
            response.counts[WIDEST_ROW] = rows.widest
        yield pa.RecordBatch.from_pydict({"response": pa.array([response.encode()], pa.binary())})

    def _routed(self, batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[str | None, pa.RecordBatch]]:
        for arrived in batches:
            batch = named(arrived, self.names)
            if PART_COLUMN in batch.schema.names:
                yield from self._split(batch)
            else:
                yield None, batch

    def _split(self, batch: pa.RecordBatch) -> Iterator[tuple[str | None, pa.RecordBatch]]:
        """Split a batch by part. The rows of a part keep their order."""
        column = batch.column(PART_COLUMN)
        rows = batch.drop_columns([PART_COLUMN])
        present = pc.unique(column).to_pylist()
        if min(present, default=0) < 0:
            raise ValueRefusedError(
                "a row's key is NULL",
                step=self.ticket.step_id,
                epoch=self.epoch,
                do='filter such rows out, or pass null_key="empty" to route them as an empty key',
            )
        if len(present) == 1:
            yield self.ticket.parts[present[0]], rows
            return
        order = pc.sort_indices(column)  # stable
        rows, column = rows.take(order), column.take(order)
        start = 0
        for run in pc.run_end_encode(column).run_ends.to_pylist():
            yield self.ticket.parts[column[start].as_py()], rows.slice(start, run - start)
            start = run


@dataclass(frozen=True)
class PartFunction:
    """Replaces the key by the index of the part, with a sink's own `part_fn`; for `mapInArrow`.

    A NULL gets `rejected_part` of the index of the empty key.
    """

    sink: Any
    parts: int

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield each batch with the part column last."""
        for batch in batches:
            keys = batch.column(KEY_COLUMN).dictionary_encode()
            indices = [self.sink.part_fn(key) % self.parts for key in keys.dictionary.to_pylist()]
            parts = pc.take(pa.array(indices, pa.int32()), keys.indices)
            if keys.null_count:
                parts = pc.fill_null(parts, rejected_part(self.sink.part_fn("") % self.parts))
            yield batch.drop_columns([KEY_COLUMN]).append_column(PART_COLUMN, parts)


def spare_modules() -> None:
    """Exempt the objects of loaded modules from garbage collection. Called at the start of a task.

    After each task, PySpark collects the garbage of the whole worker process, on the cores that then publish the epoch.
    Almost all objects that this visits are those of modules, which live as long as the process. Objects are exempted
    again only if modules were loaded since, so that no garbage accumulates from task to task.
    """
    _spare(len(sys.modules))


@cache
def _spare(_modules: int) -> None:
    """Exempt all objects of this process, once per number of its modules."""
    gc.freeze()


def task_identity(epoch: int | None) -> TaskIdentity:
    """Return the identity of this attempt of this task. Called in a task.

    The epoch is `None` if the driver does not have it, to use Spark's batch id. Raises `TerminalError` if there is no
    task, or no batch id.
    """
    context = TaskContext.get()
    if context is None:
        raise TerminalError("this code does not run in a Spark task", do="report this")
    batch_id = context.getLocalProperty(BATCH_ID)
    if epoch is None and batch_id is not None:
        epoch = int(batch_id)
    if epoch is None:
        raise TerminalError(
            "the task has no batch id of Spark", do="write with outfall.spark.write_stream, which passes it on"
        )
    return TaskIdentity(
        epoch=epoch,
        worker_index=context.partitionId(),
        attempt=context.taskAttemptId(),
        retries=context.attemptNumber(),
        query_id=context.getLocalProperty(QUERY_ID),
    )
