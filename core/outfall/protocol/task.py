"""One task at one epoch: opens the parts that its rows name, and answers once."""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from outfall.capabilities import Metrics, SupportsWriterState, WriterInitContext
from outfall.protocol.messages import PartAnswer, TaskAnswer, Ticket
from outfall.protocol.part_runner import PartRunner
from outfall.protocol.states import state_names
from outfall.protocol.validation import check_query, check_version
from outfall.recovery.entries import StoredValue
from outfall.recovery.log import RecoveryLog
from outfall.version import outfall_version


@dataclass(frozen=True)
class TaskIdentity:
    """Which try of which task this is."""

    epoch: int
    """As the engine counts: Spark's batch id, or a batch job's number."""
    worker_index: int
    attempt: int
    """Unique and increasing among the attempts of one generation."""
    retries: int = 0
    """How many attempts of this task failed before."""
    query_id: str | None = None


class EpochTask:
    """Writes the rows of one task. Used once."""

    def __init__(self, sink: Any, ticket: Ticket, identity: TaskIdentity, *, value_column: str | None = None) -> None:
        """Check that this task may take part.

        Raises:
            TerminalError: it runs another version than the driver.
            ForeignRecordsError: the recovery data belongs to another query.
            UnexpectedEpochError: its epoch is not the one that the driver began.
        """
        check_version(ticket.outfall, outfall_version(), ticket.step_id)
        check_query(ticket.step_id, ticket.query_id, identity.query_id)
        self._sink = sink
        self._ticket = ticket
        self._identity = identity
        self._value_column = value_column
        self._epoch = ticket.epoch_of(identity.epoch)
        self._skips = ticket.skips(self._epoch)
        self._metrics = Metrics({"task_retries": identity.retries} if identity.retries else None)
        reached = ticket.recovery.reaches_tasks
        self._log: RecoveryLog | None = ticket.recovery.open(ticket.step_id) if reached else None
        self._open: dict[str | None, PartRunner] = {}
        self._started = time.monotonic()

    def run(self, rows: Iterable[tuple[str | None, pa.RecordBatch]]) -> TaskAnswer:
        """Write all rows, each batch to the part beside it (`None` for a dynamic sink), and answer."""
        return self._run(rows, PartRunner.write_batch)

    def run_values(self, values: Iterable[tuple[str | None, list[Any]]]) -> TaskAnswer:
        """As `run`, for values that were never rows."""
        return self._run(values, PartRunner.write_values)

    def run_without_rows(self, part: str | None) -> TaskAnswer:
        """Open one part, or a dynamic sink's writer, and let it go on from its state; then answer."""
        return self._run([(part, [])], PartRunner.write_values)

    def _run(self, items: Iterable[tuple[str | None, Any]], write: Any) -> TaskAnswer:
        with ExitStack() as stack:
            if self._log is not None:
                stack.callback(self._log.close)
            if self._skips:
                return self._answer([], skipped=sum(_size(item) for _, item in items))
            if not self._ticket.parts:
                self._part(None, stack)
            for part, item in items:
                write(self._part(part, stack), item)
            for runner in self._open.values():
                runner.flush(self._ticket.end_of_input)
            return self._answer([runner.finish(self._ticket.end_of_input) for runner in self._open.values()])

    def _part(self, part: str | None, stack: ExitStack) -> PartRunner:
        runner = self._open.get(part)
        if runner is None:
            runner = stack.enter_context(
                PartRunner(
                    self._sink,
                    self._context(part),
                    log=self._log,
                    states=self._states_of(part),
                    recovered=[state for _, state in self._own_states()],
                    value_column=self._value_column,
                )
            )
            self._open[part] = runner
        return runner

    def _context(self, part: str | None) -> WriterInitContext:
        return WriterInitContext(
            step_id=self._ticket.step_id,
            incarnation=self._ticket.incarnation,
            generation=self._ticket.generation,
            epoch=self._epoch,
            part=part,
            attempt=self._identity.attempt,
            worker_index=self._identity.worker_index,
            worker_count=self._ticket.worker_count,
            value=self._value_column,
            key=self._ticket.key,
            metrics=self._metrics,
            token=self._ticket.token,
        )

    def _states_of(self, part: str | None) -> dict[str, StoredValue]:
        states = self._ticket.states
        names = () if part is None else state_names(self._sink, part)
        return {name: states[name] for name in names if name in states}

    def _own_states(self) -> list[tuple[int, StoredValue]]:
        """The recorded writer states that fall to this task: every n-th where n tasks run."""
        if not isinstance(self._sink, SupportsWriterState):
            return []
        count = self._ticket.worker_count
        states = enumerate(self._ticket.writer_states)
        return [(i, state) for i, state in states if (i % count if count else i) == self._identity.worker_index]

    def _answer(self, parts: list[PartAnswer], skipped: int | None = None) -> TaskAnswer:
        if skipped is not None:
            self._metrics.add("skipped", skipped)
        return TaskAnswer(
            worker_index=self._identity.worker_index,
            generation=self._ticket.generation,
            epoch=self._epoch,
            incarnation=self._ticket.incarnation,
            outfall=self._ticket.outfall,
            query_id=self._identity.query_id,
            parts=parts,
            consumed_states=[] if self._skips else [index for index, _ in self._own_states()],
            skipped=self._skips,
            counts=self._metrics.counts,
            seconds=time.monotonic() - self._started,
        )


def _size(item: Any) -> int:
    return item.num_rows if isinstance(item, pa.RecordBatch) else len(item)
