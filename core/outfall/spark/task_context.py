"""What a task knows of itself."""

from __future__ import annotations

from pyspark import TaskContext

from outfall.errors import TerminalError
from outfall.protocol.task import TaskIdentity

BATCH_ID = "streaming.sql.batchId"
QUERY_ID = "sql.streaming.queryId"


def task_identity(epoch: int | None) -> TaskIdentity:
    """Identify this try of this task. Called in a task.

    Args:
        epoch: the epoch where the driver knows it; `None` to take Spark's batch id.

    Raises:
        TerminalError: there is no task, or no batch id.
    """
    context = TaskContext.get()
    if context is None:
        raise TerminalError("this runs in no Spark task", do="report this")
    batch_id = context.getLocalProperty(BATCH_ID)
    if epoch is None and batch_id is not None:
        epoch = int(batch_id)
    if epoch is None:
        raise TerminalError(
            "Spark tells the task no batch id", do="write through outfall.spark.write_stream, which passes it on"
        )
    return TaskIdentity(
        epoch=epoch,
        worker_index=context.partitionId(),
        attempt=context.taskAttemptId(),
        retries=context.attemptNumber(),
        query_id=context.getLocalProperty(QUERY_ID),
    )
