"""A sink that discards its rows, to stand beside the sink of a test."""

from __future__ import annotations

from typing import Any

from outfall.sinks import DynamicSink, StatelessSinkPartition


class DiscardingSink(DynamicSink[Any]):
    """Takes rows or dead letters, which the engine counts."""

    def build(self, step_id: str, worker_index: int, worker_count: int) -> StatelessSinkPartition[Any]:
        return _DiscardingPartition()


class _DiscardingPartition(StatelessSinkPartition[Any]):
    def write_batch(self, values: list[Any]) -> None:
        pass
