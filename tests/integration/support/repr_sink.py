"""A sink that shows what values a task was given."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from outfall.sinks import DynamicSink, StatelessSinkPartition


class ReprSink(DynamicSink[Any]):
    """Appends each value's repr to a file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def build(self, step_id: str, worker_index: int, worker_count: int) -> ReprWriter:
        return ReprWriter(self._path)


class ReprWriter(StatelessSinkPartition[Any]):
    def __init__(self, path: Path) -> None:
        self._path = path

    def write_batch(self, values: list[Any]) -> None:
        with self._path.open("a") as file:
            file.write("".join(map(repr, values)))
