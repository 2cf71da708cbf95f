"""Faults of sinks that write columns by their position."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from outfall.errors import ValueRefusedError
from outfall.sinks import DynamicSink, StatelessSinkPartition
from outfall.testing import SinkHarness
from tests.unit.support.broken_sinks.registry import found_by


class LinesPartition(StatelessSinkPartition[Any]):
    """Appends rows to a file of comma-separated values without a header."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write_batch(self, values: list[Any]) -> None:
        with self.path.open("a", newline="") as file:
            csv.writer(file).writerows([json.dumps(item) for item in self.ordered(row)] for row in values)

    def ordered(self, row: dict[str, Any]) -> Iterable[Any]:
        return row.values()


class NamedPartition(LinesPartition):
    """Writes columns by their name."""

    def ordered(self, row: dict[str, Any]) -> Iterable[Any]:
        return [row["id"], row["text"]]


class StrictPartition(LinesPartition):
    """Rejects another order of columns."""

    def ordered(self, row: dict[str, Any]) -> Iterable[Any]:
        if list(row) != ["id", "text"]:
            raise ValueRefusedError("the columns have changed their order", do="select them as before")
        return row.values()


class LinesSink(DynamicSink[Any]):
    def __init__(self, path: Path, partition: type[LinesPartition]) -> None:
        self.path = path
        self.partition = partition

    def build(self, step_id: str, worker_index: int, worker_count: int) -> LinesPartition:
        return self.partition(self.path)


class Lines(SinkHarness):
    """Writes each column where it was."""

    partition: type[LinesPartition] = NamedPartition

    def new_target(self, directory: Path) -> Any:
        return directory / "rows.csv"

    def make_sink(self, target: Any) -> Any:
        return LinesSink(target, self.partition)

    def read(self, target: Any) -> Iterable[Any]:
        if target.exists():
            with target.open(newline="") as file:
                for line in csv.reader(file):
                    yield dict(zip(("id", "text"), map(json.loads, line), strict=True))


class StrictLines(Lines):
    partition = StrictPartition


@found_by("changed_layout", "were never sent.*the columns of the rows changed between two runs")
class WritesColumnsAsTheyCome(Lines):
    partition = LinesPartition
