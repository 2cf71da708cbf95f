"""One part in one attempt, as one of the parts that its task writes together."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from pydantic import BaseModel, ConfigDict, Field

from outfall.capabilities import WriterInitContext
from outfall.postgres.connection import Database
from outfall.postgres.ledger import Ledger
from outfall.postgres.names import TableName
from outfall.postgres.partition_writer import PartTask, PartTasks
from outfall.sinks import StatefulSinkPartition
from outfall.values import rows_to_batch


class PartState(BaseModel):
    """How far a part counts."""

    model_config = ConfigDict(frozen=True)

    next_offset: int = Field(ge=0)
    """The number of its next row."""


class OffsetPart(StatefulSinkPartition[Any, PartState]):
    """Writes a part's rows by its task's COPY.

    All parts of a task are published when the first of them is asked for its state: by then all of them have their
    rows, since a task flushes all before it finishes the first.
    """

    def __init__(
        self,
        tasks: PartTasks,
        database: Database,
        table: TableName,
        ledger: Ledger,
        state: PartState,
        context: WriterInitContext,
    ) -> None:
        self._tasks = tasks
        self._key = (context.incarnation, context.generation, context.epoch, context.attempt, context.worker_index)
        self._part = context.part or ""
        self._task = tasks.join(self._key, self._part, lambda: PartTask(database, table, ledger, context))
        self._closed = False
        self._count = self._task.part(self._part, state.next_offset)

    def write_batch(self, values: list[Any]) -> None:
        self.write_record_batch(rows_to_batch(values))

    def write_record_batch(self, batch: pa.RecordBatch) -> None:
        """Send the rows of a batch."""
        self._task.write(self._count, batch)

    def snapshot(self) -> PartState:
        """Publish, and return the offset after the last row."""
        self._task.publish()
        return PartState(next_offset=self._count.next_offset)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._tasks.leave(self._key, self._part)
