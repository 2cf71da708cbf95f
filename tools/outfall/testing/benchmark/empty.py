"""The sink that does nothing: how fast rows come to any sink."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from outfall.sinks import DynamicSink, StatelessSinkPartition


class EmptyPartition(StatelessSinkPartition[Any]):
    """Drops what it is given."""

    def write_batch(self, values: list[Any]) -> None:
        pass

    def write_record_batch(self, batch: pa.RecordBatch) -> None:
        """Drop a batch. No row is made."""

    def close(self) -> None:
        pass


class EmptySink(DynamicSink[Any]):
    """Takes Arrow batches and drops them: what is left is Spark, its Python workers and the epoch protocol.

    Item type: anything. Guarantee: none, there is no target.
    """

    def build(self, step_id: str, worker_index: int, worker_count: int) -> EmptyPartition:
        return EmptyPartition()
