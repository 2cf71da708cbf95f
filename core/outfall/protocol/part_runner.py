"""One part in one attempt: build, write, flush, prepare_commit, snapshot, close."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import pyarrow as pa

from outfall.capabilities import (
    Metrics,
    SupportsArrow,
    SupportsCommitter,
    SupportsHeldRows,
    SupportsNamedStates,
    SupportsWriterState,
    WriterInitContext,
)
from outfall.capability_checks import check_partition, flush, is_fixed
from outfall.errors import CapabilityError, SerializationError
from outfall.protocol.held import held_in, total_held
from outfall.protocol.messages import PartAnswer
from outfall.protocol.opening import open_partition
from outfall.protocol.returned import returned_list
from outfall.protocol.states import hand_over_serializer, load_states, state_serializer, states_after
from outfall.recovery.entries import HeldRecord, StoredValue, WriterRecord
from outfall.recovery.log import RecoveryLog
from outfall.recovery.values import load_value, store_state, store_value
from outfall.trace_points import reached
from outfall.values import to_batch, to_values

_log = logging.getLogger(__name__)


class PartRunner:
    """Drives one open partition. Use it as a context manager: leaving closes the partition, after errors too."""

    def __init__(
        self,
        sink: Any,
        context: WriterInitContext,
        *,
        log: RecoveryLog | None,
        states: Mapping[str, StoredValue] | None = None,
        recovered: Sequence[StoredValue] = (),
        value_column: str | None = None,
    ) -> None:
        """Build the partition, from its recorded state or states where there are any.

        Args:
            sink: the sink.
            context: who writes.
            log: where large states lie.
            states: the recorded states of a fixed sink's part, by name.
            recovered: the recorded states that a dynamic sink's writer goes on from.
            value_column: the column whose values the sink wants; `None` for rows.

        Raises:
            CapabilityError: the partition lacks what the sink promises.
        """
        self._sink = sink
        self._context = context
        self._log = log
        self._value_column = value_column
        self._metrics: Metrics = context.metrics
        self._rows = 0
        self._held_before = total_held([*(states or {}).values(), *recovered]).rows
        self._partition = self._open(states or {}, recovered)
        self._close_on_error(lambda: check_partition(sink, self._partition))

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Close the partition. An error on closing does not hide the one that is under way."""
        try:
            self._partition.close()
        except Exception:
            if error is None:
                raise
            _log.warning("closing %s failed too", self._place(), exc_info=True)

    def write_batch(self, batch: pa.RecordBatch) -> None:
        """Write rows."""
        if batch.num_rows == 0:
            return
        if isinstance(self._partition, SupportsArrow):
            self._partition.write_record_batch(batch)
        else:
            self._partition.write_batch(to_values(batch, self._value_column))
        self._count(batch.num_rows)

    def write_values(self, values: list[Any]) -> None:
        """Write values that were never rows."""
        if not values:
            return
        if isinstance(self._partition, SupportsArrow) and not callable(getattr(self._partition, "write_batch", None)):
            self._partition.write_record_batch(to_batch(values, self._value_column))
        else:
            self._partition.write_batch(values)
        self._count(len(values))

    def flush(self, end_of_input: bool) -> None:
        """Flush at the end of the epoch. A task flushes all its parts before it finishes the first.

        Args:
            end_of_input: whether a sink that holds rows back across epochs has to deliver them.
        """
        reached("task: before flush")
        flush(self._partition, end_of_input=end_of_input or not isinstance(self._sink, SupportsHeldRows))
        reached("task: after flush")

    def finish(self, end_of_input: bool) -> PartAnswer:
        """Hand over committables and take the state. Nothing is written afterwards.

        Raises:
            CapabilityError: rows are held back although the input ends here, and none was delivered.
        """
        committables = self._prepare_commit()
        reached("task: after prepare_commit")
        answer = PartAnswer(
            part=self._context.part,
            writer=WriterRecord(
                generation=self._context.generation, epoch=self._context.epoch, attempt=self._context.attempt
            ),
            states=self._snapshot(),
            writer_states=self._snapshot_writer_states(),
            committables=committables,
        )
        if end_of_input:
            self._check_nothing_held(answer)
        reached("task: after snapshot")
        return answer

    def _open(self, states: Mapping[str, StoredValue], recovered: Sequence[StoredValue]) -> Any:
        return open_partition(
            self._sink,
            self._context,
            states=load_states(self._sink, states, self._log),
            recovered=[load_value(self._sink.writer_state_serializer(), item, log=self._log) for item in recovered],
        )

    def _close_on_error(self, check: Any) -> None:
        try:
            check()
        except BaseException as error:
            self.__exit__(type(error), error, None)
            raise

    def _count(self, rows: int) -> None:
        self._rows += rows
        self._metrics.add("rows", rows)
        reached("task: after write")

    def _prepare_commit(self) -> list[StoredValue]:
        if not isinstance(self._sink, SupportsCommitter):
            return []
        serializer = hand_over_serializer(self._sink)
        committables = self._returned("prepare_commit", self._partition.prepare_commit())
        try:
            return [store_value(serializer, item) for item in committables]
        except SerializationError as error:
            raise SerializationError.because_of(
                error,
                f"a committable of {self._place()} cannot be stored",
                step=self._context.step_id,
                epoch=self._context.epoch,
            ) from error.__cause__

    def _returned(self, method: str, value: Any) -> Sequence[Any]:
        return returned_list(self._partition, method, value, step=self._context.step_id, part=self._context.part)

    def _snapshot(self) -> dict[str, StoredValue]:
        if not is_fixed(self._sink):
            return {}
        part = self._context.part or ""
        states = states_after(self._sink, part, self._partition.snapshot())
        return {name: self._stored_state(name, value) for name, value in states.items()}

    def _stored_state(self, name: str, value: Any) -> StoredValue:
        if value is None:
            raise CapabilityError(
                f"{type(self._partition).__name__}.snapshot() returned None",
                step=self._context.step_id,
                part=name,
                do="return the position after the last value; 0 and empty values are states",
            )
        held = held_in(self._sink, {name: value} if isinstance(self._sink, SupportsNamedStates) else value)
        return self._stored(state_serializer(self._sink, name), value, name, held)

    def _snapshot_writer_states(self) -> list[StoredValue]:
        if not isinstance(self._sink, SupportsWriterState):
            return []
        states = self._returned("snapshot_state", self._partition.snapshot_state(self._context.epoch))
        name = f"writer-{self._context.worker_index}"
        return [
            self._stored(self._sink.writer_state_serializer(), state, name, held_in(self._sink, state))
            for state in states
        ]

    def _check_nothing_held(self, answer: PartAnswer) -> None:
        held = total_held([*answer.writer_states, *answer.states.values()])
        # What cannot go into one epoch with the rest is left to the next drain, as long as each gets further.
        if held.rows and held.rows >= self._held_before + self._rows:
            raise CapabilityError(
                f"{type(self._partition).__name__} still holds {held.rows} rows after flush(end_of_input=True)",
                step=self._context.step_id,
                part=self._context.part,
                do="deliver everything in flush when end_of_input is true",
            )

    def _stored(self, serializer: Any, value: Any, name: str, held: HeldRecord | None) -> StoredValue:
        try:
            stored = store_state(serializer, value, log=self._log, name=name, generation=self._context.generation)
            return stored.model_copy(update={"held": held}) if held else stored
        except SerializationError as error:
            raise SerializationError.because_of(
                error, f"the state of {self._place()} cannot be stored", step=self._context.step_id
            ) from error.__cause__

    def _place(self) -> str:
        return f"part {self._context.part!r}" if self._context.part else f"writer {self._context.worker_index}"
