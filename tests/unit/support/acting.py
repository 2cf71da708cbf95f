"""A sink whose tasks do what a test says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from outfall.sinks import DynamicSink, StatelessSinkPartition


class ActingSink(DynamicSink[Any]):
    """Calls `act` for each batch, and writes nothing."""

    def __init__(self, act: Callable[[], object]) -> None:
        self._act = act

    def build(self, step_id: str, worker_index: int, worker_count: int) -> StatelessSinkPartition[Any]:
        return _Partition(self._act)


class _Partition(StatelessSinkPartition[Any]):
    def __init__(self, act: Callable[[], object]) -> None:
        self._act = act

    def write_batch(self, values: list[Any]) -> None:
        self._act()
