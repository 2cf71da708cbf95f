"""Epochs of Arrow batches, without Spark."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any

import pyarrow as pa

from outfall.protocol.messages import TaskResponse
from outfall.testing import LocalDriver


class BatchDriver(LocalDriver):
    """A driver whose tasks take Arrow batches, and get the sink as Spark sends it: pickled."""

    def run_tasks(self, ticket: Any, epoch: int, tasks: Sequence[Any]) -> list[TaskResponse]:
        return [self.run_task(ticket, epoch, index, [(None, batch)]) for index, batch in enumerate(tasks)]

    def task_sink(self) -> Any:
        return pickle.loads(pickle.dumps(self.sink))

    def write(self, epoch: int, *batches: pa.RecordBatch, between: Callable[[], object] = lambda: None) -> Any:
        """Run an epoch, each batch in a task of its own; do something between the tasks and the commit."""
        if batches:
            self.sink.check_schema(batches[0].schema)
        with closing(self.coordinator()) as coordinator:
            ticket = coordinator.begin(epoch)
            responses = self.run_tasks(ticket, epoch, batches)
            between()
            return coordinator.finish(ticket, responses)


def batch(**columns: Any) -> pa.RecordBatch:
    """A batch of columns, each an Arrow array or a list."""
    arrays = {name: pa.array(values) for name, values in columns.items()}
    return pa.RecordBatch.from_arrays(list(arrays.values()), names=list(arrays))
