"""The epoch protocol for Python values in one process, with the same coordinator and tasks as on Spark."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from typing import Any

from outfall.capability_checks import resolve
from outfall.protocol import draining
from outfall.protocol.clock import Clock
from outfall.protocol.coordinator import EpochCoordinator
from outfall.protocol.messages import EpochResult, TaskResponse, Ticket
from outfall.protocol.step import EpochOptions, RunRegistry
from outfall.protocol.task import EpochTask, TaskIdentity
from outfall.recovery.log import RecoveryConfig
from outfall.recovery.url import recovery_config


class FakeClock:
    """A clock that advances only in `sleep`, without waiting."""

    def __init__(self) -> None:
        """Start at second 0."""
        self.seconds = 0.0
        self.sleeps: list[float] = []

    def now(self) -> float:
        """Return the seconds slept so far."""
        return self.seconds

    def time(self) -> float:
        """Return the seconds slept so far."""
        return self.seconds

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        self.sleeps.append(seconds)
        self.seconds += seconds


_runs = itertools.count()


class LocalDriver:
    """One driver. Create a second one for a restart, or for a zombie next to the first.

    Rows are values. For a fixed sink, they are `(key, value)` pairs, as in Bytewax.
    """

    def __init__(
        self,
        sink: Any,
        recovery: str | RecoveryConfig,
        *,
        step_id: str = "sink",
        query_id: str | None = None,
        options: EpochOptions | None = None,
        clock: Clock | None = None,
    ) -> None:
        """Create a driver; it has not read the log."""
        self.sink = sink
        self.step_id = step_id
        self.recovery = recovery_config(recovery)
        self._query_id = query_id
        self._options = options
        self._clock = clock
        self._memory = RunRegistry()
        self._run = f"local-{next(_runs)}"
        self._attempts = itertools.count()

    def coordinator(self) -> EpochCoordinator:
        """Create a coordinator, as a real driver does for each epoch."""
        return EpochCoordinator(
            self.sink,
            self.step_id,
            self.recovery,
            options=self._options,
            run=self._run,
            registry=self._memory,
            clock=self._clock,
        )

    def run_epoch(self, epoch: int, tasks: Sequence[Iterable[Any]]) -> EpochResult:
        """Run one epoch.

        Args:
            epoch: its number.
            tasks: for a dynamic sink, the rows of each task by partition id. For a fixed sink, all rows are routed by
                key, and one task writes each part.
        """
        with closing(self.coordinator()) as coordinator:
            ticket = coordinator.begin(epoch, query_id=self._query_id)
            return coordinator.finish(ticket, self.run_tasks(ticket, epoch, tasks))

    def drain(self) -> EpochResult | None:
        """Deliver buffered rows; `None` if there are none."""
        return draining.drain(self.coordinator)

    def run_tasks(self, ticket: Ticket, epoch: int, tasks: Sequence[Iterable[Any]]) -> list[TaskResponse]:
        """Run one attempt of each task of an epoch."""
        routed = self.route(tasks) if resolve(self.sink).fixed else _unrouted(tasks)
        return [self.run_task(ticket, epoch, index, rows) for index, rows in enumerate(routed)]

    def run_task(
        self,
        ticket: Ticket,
        epoch: int,
        worker_index: int,
        rows: Iterable[tuple[str | None, list[Any]]],
        *,
        retries: int = 0,
        attempt: int | None = None,
    ) -> TaskResponse:
        """Run one attempt of one task with batches of values and their parts.

        For a task in a forked process, pass its `attempt` from `new_attempt`.
        """
        identity = TaskIdentity(
            epoch=epoch,
            worker_index=worker_index,
            attempt=self.new_attempt() if attempt is None else attempt,
            retries=retries,
            query_id=self._query_id,
        )
        return EpochTask(self.task_sink(), ticket, identity).run(rows)

    def new_attempt(self) -> int:
        """Return the number of the next attempt."""
        return next(self._attempts)

    def task_sink(self) -> Any:
        """Return the sink of a task. Here, it is the driver's own sink; on Spark, a pickled copy."""
        return self.sink

    def route(self, tasks: Sequence[Iterable[Any]]) -> list[list[tuple[str | None, list[Any]]]]:
        """Route values to parts by key, with one task for each part with rows."""
        names: list[str] = self.sink.list_parts()
        part_fn: Callable[[str], int] = self.sink.part_fn
        routed: dict[str, list[Any]] = {}
        for key, value in itertools.chain.from_iterable(tasks):
            routed.setdefault(names[part_fn(key) % len(names)], []).append(value)
        return [[(name, values)] for name, values in sorted(routed.items())] or [[]]


def _unrouted(tasks: Sequence[Iterable[Any]]) -> list[list[tuple[str | None, list[Any]]]]:
    return [[(None, list(rows))] for rows in tasks]
