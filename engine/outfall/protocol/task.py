"""Runs one task of one epoch: opens the parts of its rows, and returns one result.

The order per part: build, write, flush, prepare_commit, snapshot, close. All parts are flushed before the first
`prepare_commit`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from outfall.capabilities import (
    Metrics,
    SupportsBufferedRows,
    SupportsCommitter,
    SupportsWriterState,
    WriterInitContext,
)
from outfall.capability_checks import ResolvedSink, SupportsNamedStates, resolve, returned_list
from outfall.errors import CapabilityError, SerializationError
from outfall.protocol.failure import recorded
from outfall.protocol.heartbeat import heartbeat
from outfall.protocol.messages import PartResponse, TaskResponse, Ticket
from outfall.protocol.partition import ResolvedPartition, Rows, open_partition
from outfall.protocol.states import (
    ROWS_BY_SPARK,
    buffered_in,
    load_states,
    total_buffered,
)
from outfall.protocol.validation import check_query, check_version
from outfall.recovery.entries import BufferedRecord, StoredValue, WinningAttempt, load_value, store_state, store_value
from outfall.recovery.log import RecoveryLog
from outfall.trace_points import reached
from outfall.version import outfall_version

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TaskIdentity:
    """Identity of one attempt of one task."""

    epoch: int
    """The engine's number: Spark's batch id, or the number of a batch job."""
    worker_index: int
    attempt: int
    """Unique and increasing among the attempts of one generation."""
    retries: int = 0
    """The number of failed attempts of this task."""
    query_id: str | None = None


class EpochTask:
    """Writes the rows of one task. Used once."""

    def __init__(self, sink: Any, ticket: Ticket, identity: TaskIdentity, *, value_column: str | None = None) -> None:
        """Check that this task may write the epoch.

        Raises `TerminalError` if the task runs another version than the driver, `ForeignRecordsError` if the recovery
        data belongs to another query, and `UnexpectedEpochError` if the epoch is not the one that the driver began.
        """
        check_version(ticket.outfall, outfall_version(), ticket.step_id)
        check_query(ticket.step_id, ticket.query_id, identity.query_id)
        self._resolved = resolve(sink)
        self._ticket = ticket
        self._identity = identity
        self._value_column = value_column
        self._epoch = ticket.epoch_of(identity.epoch)
        self._skips = ticket.skips(self._epoch)
        self._metrics = Metrics({"task_retries": identity.retries} if identity.retries else None)
        recovery = ticket.recovery
        self._log: RecoveryLog | None = recovery.open(ticket.step_id) if recovery.reaches_tasks else None
        self._open: dict[str | None, PartRunner] = {}
        self._started = time.monotonic()

    def run(self, rows: Iterable[tuple[str | None, Rows]]) -> TaskResponse:
        """Write all rows, each batch to its part (`None` for a dynamic sink), and return the result.

        A part with an empty list is opened, and continues from its state.
        """
        with ExitStack() as stack:
            if self._log is not None:
                stack.callback(self._log.close)
                stack.enter_context(self._heartbeat())
                who = f"task {self._identity.worker_index}"
                stack.enter_context(recorded(self._ticket.recovery, self._ticket.step_id, who, self._epoch))
            if self._skips:
                return self._response([], skipped=sum(len(batch) for _, batch in rows))
            if not self._ticket.parts:
                self._part(None, stack)
            for part, batch in rows:
                self._part(part, stack).write(batch)
            for runner in self._open.values():
                runner.flush(self._ticket.end_of_input)
            return self._response([runner.finish(self._ticket.end_of_input) for runner in self._open.values()])

    def run_by_spark(self, frame: Any) -> TaskResponse:
        """Let the sink's writer write a whole DataFrame, and return the result. Called on the driver, as the only task.

        For sinks with `SupportsSparkWriter`, and for an epoch whose rows are not skipped.
        """
        with ExitStack() as stack:
            if self._log is not None:
                stack.callback(self._log.close)
                stack.enter_context(self._heartbeat())
            runner = self._part(None, stack)
            runner.write_by_spark(frame)
            return self._response([runner.finish(self._ticket.end_of_input)])

    def _heartbeat(self) -> AbstractContextManager[None]:
        ticket, who = self._ticket, f"task {self._identity.worker_index}"
        return heartbeat(ticket.recovery, ticket.step_id, who, "tasks", lambda: (ticket.generation, self._epoch))

    def _part(self, part: str | None, stack: ExitStack) -> PartRunner:
        runner = self._open.get(part)
        if runner is None:
            runner = stack.enter_context(
                PartRunner(
                    self._resolved,
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
        names = () if part is None else self._resolved.state_names(part)
        return {name: states[name] for name in names if name in states}

    def _own_states(self) -> list[tuple[int, StoredValue]]:
        """Return the recorded writer states of this task: every n-th of n tasks."""
        if SupportsWriterState not in self._resolved.capabilities:
            return []
        count = self._ticket.worker_count
        states = enumerate(self._ticket.writer_states)
        return [(i, state) for i, state in states if (i % count if count else i) == self._identity.worker_index]

    def _response(self, parts: list[PartResponse], skipped: int | None = None) -> TaskResponse:
        if skipped is not None:
            self._metrics.add("skipped", skipped)
        return TaskResponse(
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
            examples=self._metrics.examples,
            seconds=time.monotonic() - self._started,
        )


class PartRunner:
    """Drives one open partition. A context manager: it closes the partition on exit, also after errors."""

    def __init__(
        self,
        resolved: ResolvedSink,
        context: WriterInitContext,
        *,
        log: RecoveryLog | None,
        states: Mapping[str, StoredValue] | None = None,
        recovered: Sequence[StoredValue] = (),
        value_column: str | None = None,
    ) -> None:
        """Build the partition, from its recorded states if there are any.

        These are `states` by name for a fixed sink's part, and `recovered` for a dynamic sink's writer. Large states
        are in `log`. `value_column` has the sink's values; `None` for rows. Raises `CapabilityError` if the partition
        lacks a method that the sink's capabilities require.
        """
        self._resolved = resolved
        self._capabilities = resolved.capabilities
        self._context = context
        self._log = log
        self._value_column = value_column
        self._metrics: Metrics = context.metrics
        self._rows = 0
        self._buffered_before = total_buffered([*(states or {}).values(), *recovered]).rows
        self._opened = self._open(states or {}, recovered)
        self._partition = self._opened.partition

    def __enter__(self) -> Self:
        """Return this object."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Close the partition. An error in `close` does not hide an earlier error."""
        try:
            self._partition.close()
        except Exception:
            if error is None:
                raise
            _log.warning("closing %s failed, too", self._place(), exc_info=True)

    def write(self, rows: Rows) -> None:
        """Write rows, or values without a batch."""
        count = len(rows)
        if not count:
            return
        self._opened.write(rows, self._value_column)
        self._rows += count
        self._metrics.add("rows", count)
        reached("task: after write")

    def write_by_spark(self, frame: Any) -> None:
        """Write a whole DataFrame."""
        count = self._partition.write_frame(frame)
        self._rows += count
        self._metrics.add("rows", count)
        self._metrics.add(ROWS_BY_SPARK, count)
        reached("task: after write")

    def flush(self, end_of_input: bool) -> None:
        """Flush at the end of the epoch. A task flushes all its parts before it finishes the first one.

        At the `end_of_input`, a sink that buffers rows across epochs must deliver them.
        """
        reached("task: before flush")
        self._opened.flush(end_of_input=end_of_input or SupportsBufferedRows not in self._capabilities)
        reached("task: after flush")

    def finish(self, end_of_input: bool) -> PartResponse:
        """Return the committables and the state. Nothing is written afterwards.

        Raises `CapabilityError` if rows remain buffered although the input ends, and none was delivered.
        """
        committables = self._prepare_commit()
        reached("task: after prepare_commit")
        response = PartResponse(
            part=self._context.part,
            writer=WinningAttempt(
                generation=self._context.generation, epoch=self._context.epoch, attempt=self._context.attempt
            ),
            states=self._snapshot(),
            writer_states=self._snapshot_writer_states(),
            committables=committables,
        )
        if end_of_input:
            self._check_nothing_buffered(response)
        reached("task: after snapshot")
        return response

    def _open(self, states: Mapping[str, StoredValue], recovered: Sequence[StoredValue]) -> ResolvedPartition:
        sink = self._resolved.sink
        return open_partition(
            self._resolved,
            self._context,
            states=load_states(self._resolved, states, self._log),
            recovered=[load_value(sink.writer_state_serializer(), item, log=self._log) for item in recovered],
        )

    def _prepare_commit(self) -> list[StoredValue]:
        if SupportsCommitter not in self._capabilities:
            return []
        serializer = self._resolved.hand_over_serializer()
        committables = self._returned("prepare_commit", self._partition.prepare_commit())
        try:
            return [store_value(serializer, item) for item in committables]
        except SerializationError as error:
            raise SerializationError.because_of(
                error,
                f"a committable of {self._place()} cannot be serialized",
                step=self._context.step_id,
                epoch=self._context.epoch,
            ) from error.__cause__

    def _returned(self, method: str, value: Any) -> Sequence[Any]:
        return returned_list(self._partition, method, value, step=self._context.step_id, part=self._context.part)

    def _snapshot(self) -> dict[str, StoredValue]:
        if not self._resolved.fixed:
            return {}
        part = self._context.part or ""
        states = self._resolved.states_after(part, self._partition.snapshot())
        return {name: self._stored_state(name, value) for name, value in states.items()}

    def _stored_state(self, name: str, value: Any) -> StoredValue:
        if value is None:
            raise CapabilityError(
                f"{type(self._partition).__name__}.snapshot() returned None",
                step=self._context.step_id,
                part=name,
                do="return the position after the last value; 0 and empty values are states",
            )
        held = buffered_in(self._resolved, {name: value} if SupportsNamedStates in self._capabilities else value)
        return self._stored(self._resolved.state_serializer(name), value, name, held)

    def _snapshot_writer_states(self) -> list[StoredValue]:
        if SupportsWriterState not in self._capabilities:
            return []
        serializer = self._resolved.sink.writer_state_serializer()
        states = self._returned("snapshot_state", self._partition.snapshot_state(self._context.epoch))
        name = f"writer-{self._context.worker_index}"
        return [self._stored(serializer, state, name, buffered_in(self._resolved, state)) for state in states]

    def _check_nothing_buffered(self, response: PartResponse) -> None:
        held = total_buffered([*response.writer_states, *response.states.values()])
        # Rows that cannot be in one epoch with the others are left to the next drain, as long as each delivers some.
        if held.rows and held.rows >= self._buffered_before + self._rows:
            raise CapabilityError(
                f"{type(self._partition).__name__} still buffers {held.rows} rows after flush(end_of_input=True)",
                step=self._context.step_id,
                part=self._context.part,
                do="deliver all rows in flush if end_of_input is true",
            )

    def _stored(self, serializer: Any, value: Any, name: str, held: BufferedRecord | None) -> StoredValue:
        try:
            stored = store_state(serializer, value, log=self._log, name=name, generation=self._context.generation)
            return stored.model_copy(update={"held": held}) if held else stored
        except SerializationError as error:
            raise SerializationError.because_of(
                error, f"the state of {self._place()} cannot be serialized", step=self._context.step_id
            ) from error.__cause__

    def _place(self) -> str:
        return f"part {self._context.part!r}" if self._context.part else f"writer {self._context.worker_index}"
