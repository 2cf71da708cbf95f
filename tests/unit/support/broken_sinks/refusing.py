"""Faults of sinks that send rows together to a target that refuses a request for one row."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from outfall.capabilities import SupportsDeadLetters, SupportsDeadLetterSink
from outfall.dead_letter import DeadLetter
from outfall.sinks import DynamicSink, StatelessSinkPartition
from outfall.testing import SinkHarness
from tests.unit.support.broken_sinks.careless import Rows
from tests.unit.support.broken_sinks.registry import found_by

REFUSED = {"id": None}


class RequestPartition(StatelessSinkPartition[Any], SupportsDeadLetters):
    """Sends the rows of a batch together. The target takes all of them or none."""

    def __init__(self, rows: list[Any]) -> None:
        self._rows = rows
        self._take: Callable[[Sequence[DeadLetter]], None] | None = None

    def dead_letters_to(self, take: Callable[[Sequence[DeadLetter]], None]) -> None:
        self._take = take

    def write_batch(self, values: list[Any]) -> None:
        if REFUSED not in values:
            self._rows.extend(values)
        elif len(values) > 1:
            self.refused_together(values)
        else:
            self.reject(values)

    def refused_together(self, values: list[Any]) -> None:
        half = len(values) // 2
        self.write_batch(values[:half])
        self.write_batch(values[half:])

    def reject(self, values: list[Any]) -> None:
        assert self._take is not None
        self._take([DeadLetter(json.dumps(value), "refused", "sink", 0) for value in values])


class TakesAllForRefused(RequestPartition):
    """Takes the error of a request for that of each of its rows."""

    def refused_together(self, values: list[Any]) -> None:
        self.reject(values)


class DropsTheRest(RequestPartition):
    """Rejects the row that is named, and forgets the others."""

    def refused_together(self, values: list[Any]) -> None:
        self.reject([value for value in values if value == REFUSED])


class RequestSink(DynamicSink[Any], SupportsDeadLetterSink):
    def __init__(self, rows: Rows, partition: type[RequestPartition]) -> None:
        self.rows = rows
        self.partition = partition

    def build(self, step_id: str, worker_index: int, worker_count: int) -> RequestPartition:
        return self.partition(self.rows)


class Requests(SinkHarness):
    """Sends the rows of a refused request again alone."""

    partition: type[RequestPartition] = RequestPartition

    def new_target(self, directory: Path) -> Any:
        return Rows()

    def make_sink(self, target: Any) -> Any:
        return RequestSink(target, self.partition)

    def read(self, target: Any) -> Iterable[Any]:
        return list(target)

    def refused_row(self, number: int) -> Any:
        return REFUSED


@found_by("refused_row", "5 rows are dead letters, and one was refused")
class DivertsValidRows(Requests):
    partition = TakesAllForRefused


@found_by("refused_row", "of its 10 rows 4 are missing")
class LosesValidRows(Requests):
    partition = DropsTheRest
