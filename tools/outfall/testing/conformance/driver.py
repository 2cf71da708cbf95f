"""A local driver whose tasks are as far from it as Spark's: each has a copy of the sink."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

from outfall.capabilities import SupportsWriterState
from outfall.capability_checks import is_fixed, supports
from outfall.protocol.messages import EpochResult
from outfall.protocol.step import EpochOptions
from outfall.testing.conformance.faults import ConformanceError
from outfall.testing.local_engine import LocalDriver

TaskRows = list[tuple[str | None, list[Any]]]
"""The batches of one task, each with the part it belongs to."""


class RemoteTasks(LocalDriver):
    """Runs each attempt of each task on a pickled copy of the sink."""

    def run_epoch(self, epoch: int, tasks: Sequence[Iterable[Any]]) -> EpochResult:
        routed = self.routed(tasks)
        self.expect_tasks(len(routed))
        with closing(self.coordinator()) as coordinator:
            ticket = coordinator.begin(epoch, query_id=self._query_id)
            answers = [self.run_task(ticket, epoch, index, rows) for index, rows in enumerate(routed)]
            return coordinator.finish(ticket, answers)

    def expect_tasks(self, count: int) -> None:
        """Say how many tasks the next epoch has: a sink with writer state has its states dealt out by it."""
        if supports(self.sink, SupportsWriterState):
            self._options = replace(self._options or EpochOptions(), worker_count=count)

    def task_sink(self) -> Any:
        return copied(self.sink)

    def routed(self, tasks: Sequence[Iterable[Any]]) -> list[TaskRows]:
        """Bring rows to the tasks that write them. Of a fixed sink, as many tasks as come share the parts."""
        if not is_fixed(self.sink):
            return [[(None, rows)] for rows in map(list, tasks)]
        by_part = self.route(tasks)
        count = max(1, min(len(tasks), len(by_part)))
        return [[batch for part in by_part[index::count] for batch in _halves(part)] for index in range(count)]


def copied(sink: Any) -> Any:
    """Return the sink as a task receives it: pickled by cloudpickle, as Spark does, where pickle does not do.

    Raises:
        ConformanceError: it cannot be sent to a task.
    """
    try:
        return pickle.loads(pickled(sink))  # noqa: S301 - our own bytes
    except Exception as error:
        raise ConformanceError(
            f"the sink cannot be sent to a task: {type(error).__name__}: {error}",
            do="keep options only on the sink, and open connections in build or build_part; a target in memory derives"
            " from outfall.testing.ByReference. Lambdas and local classes need the cloudpickle of 'outfall[testing]'",
        ) from error


def pickled(sink: Any) -> bytes:
    """Pickle as Spark does, if the extra `testing` is there; else as Python does."""
    try:
        return pickle.dumps(sink)
    except Exception:
        try:
            import cloudpickle
        except ImportError:
            cloudpickle = None
        if cloudpickle is None:
            raise
        return bytes(cloudpickle.dumps(sink))


def _halves(part: list[tuple[str | None, list[Any]]]) -> TaskRows:
    """The batches of a part in two, since how rows are cut into batches means nothing."""
    return [(name, rows[at:end]) for name, rows in part for at, end in ((0, len(rows) // 2), (len(rows) // 2, None))]
