"""Batches across epochs: an incomplete batch is part of the state."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Self

import pyarrow as pa

from outfall.capabilities import (
    BufferedRows,
    DeclaresGuarantee,
    Guarantee,
    SaveMode,
    SupportsBufferedRows,
    SupportsTarget,
    SupportsWriterContext,
    SupportsWriterState,
    WriterInitContext,
    shown_name,
)
from outfall.capability_checks import resolve
from outfall.errors import CapabilityError, SerializationError
from outfall.protocol.clock import Clock
from outfall.serde import SimpleVersionedSerializer, parse_json
from outfall.sinks import DynamicSink, StatelessSinkPartition
from outfall.values import arrow_stream, rows_to_batch, to_batch
from outfall.wrappers.batch_buffer import ArrowChunk, BatchingOptions, Buffer
from outfall.wrappers.composite import Composite
from outfall.wrappers.composite_partition import CompositePartition, Opening

TARGET = "target"
BUFFER = "buffer"


@dataclass(frozen=True)
class BatchState:
    """Buffered rows, and when the oldest of them arrived."""

    batches: tuple[pa.RecordBatch, ...]
    oldest: datetime

    @property
    def rows(self) -> int:
        """Number of rows."""
        return sum(batch.num_rows for batch in self.batches)


class BatchStateSerializer(SimpleVersionedSerializer[BatchState]):
    """A line of JSON with the time and the lengths, followed by streams of Arrow IPC, one per schema."""

    def serialize(self, value: BatchState) -> bytes:
        """Write the line and the streams."""
        streams = [arrow_stream(batch) for batch in value.batches]
        head = {"oldest": value.oldest.isoformat(), "rows": value.rows, "lengths": [len(stream) for stream in streams]}
        return b"".join([json.dumps(head).encode(), b"\n", *streams])

    def deserialize(self, version: int, data: bytes) -> BatchState:
        """Read them."""
        self.check_version(version)
        head, _, rest = data.partition(b"\n")
        batches, at = [], 0
        try:
            found = parse_json(head)
            oldest = datetime.fromisoformat(found["oldest"])
            for length in found["lengths"]:
                with pa.ipc.open_stream(rest[at : at + length]) as reader:
                    batches += list(reader)
                at += length
        except (ValueError, TypeError, KeyError, pa.ArrowException, OSError) as error:
            raise SerializationError("a stored batch of rows is damaged", why=str(error)) from error
        value = BatchState(tuple(batches), oldest)
        if value.rows != found["rows"]:
            raise SerializationError(f"a stored batch has {value.rows} rows, not {found['rows']}")
        return value


class BufferSink(
    DynamicSink[Any],
    SupportsWriterState[Any, BatchState],
    SupportsBufferedRows[BatchState],
    SupportsWriterContext,
    SupportsTarget[Any],
    DeclaresGuarantee,
):
    """The buffer of the target: its state is the buffered rows."""

    def __init__(self, options: BatchingOptions, clock: Clock) -> None:
        self._options = options
        self._clock = clock

    def kind(self) -> str:
        return "buffer"

    def target(self) -> str:
        return "the recovery data"

    def build(self, step_id: str, worker_index: int, worker_count: int) -> BufferPartition:
        return BufferPartition(self._options, self._clock, ())

    def restore_writer(self, context: WriterInitContext, recovered: Sequence[BatchState]) -> BufferPartition:
        return BufferPartition(self._options, self._clock, recovered)

    def writer_state_serializer(self) -> BatchStateSerializer:
        return BatchStateSerializer()

    def buffered_rows(self, state: BatchState) -> BufferedRows:
        return BufferedRows(state.rows, state.oldest)

    def max_time_in_buffer(self) -> timedelta:
        return self._options.flush_interval

    def in_save_mode(self, mode: SaveMode | None) -> Self:
        return self  # no part of it is in a target

    def guarantee(self) -> Guarantee:
        return Guarantee.EXACTLY_ONCE


class BufferPartition(StatelessSinkPartition[Any]):
    """Buffered rows."""

    def __init__(self, options: BatchingOptions, clock: Clock, recovered: Sequence[BatchState]) -> None:
        """Continue with the rows buffered before, the oldest first."""
        self.clock = clock
        self.buffer = Buffer(options)
        for state in sorted(recovered, key=lambda state: state.oldest):
            for batch in state.batches:
                self.buffer.add(ArrowChunk(batch), state.oldest.timestamp())

    def write_batch(self, values: list[Any]) -> None:
        self.write_record_batch(rows_to_batch(values))

    def write_record_batch(self, batch: pa.RecordBatch) -> None:
        """Buffer rows."""
        self.buffer.add(ArrowChunk(batch), self.clock.time())

    def flush(self, end_of_input: bool) -> None:
        """No operation: the owner writes the rows that are due."""

    def snapshot_state(self, epoch: int) -> Sequence[BatchState]:
        """Return the buffered rows, with the time of the oldest."""
        chunks, oldest = self.buffer.chunks, self.buffer.oldest
        if oldest is None:
            return ()
        return (BatchState(_joined(chunks), datetime.fromtimestamp(oldest, UTC)),)


def _joined(chunks: Sequence[ArrowChunk]) -> tuple[pa.RecordBatch, ...]:
    """As few batches as there are consecutive schemas."""
    runs: list[list[ArrowChunk]] = []
    for chunk in chunks:
        if runs and runs[-1][0].joins(chunk):
            runs[-1].append(chunk)
        else:
            runs.append([chunk])
    return tuple(run[0].join(run[1:]).batch for run in runs)


class CrossEpochBatching(Composite):
    """A sink with the buffer in front of it."""

    kind_name = "batching"
    shown_as = "BatchingSink"

    def __init__(self, sink: Any, options: BatchingOptions, clock: Clock) -> None:
        resolved = resolve(sink)
        if resolved.replaces_rows():
            raise CapabilityError(
                f"rows of {shown_name(sink)} with these options replace earlier ones",
                why="a row that waits for a full batch would replace a newer row that another task has written since",
                do="omit across_epochs: each epoch is then written in batches, the last of which may be smaller",
            )
        if resolved.needs_same_rows():
            raise CapabilityError(
                f"{shown_name(sink)} with these options needs the same rows when an epoch is run again",
                why="the choice of buffered rows depends on their order and age, which differ in the second run",
                do="omit across_epochs, or use a sink whose guarantee does not depend on the rows of an epoch",
            )
        super().__init__({TARGET: sink, BUFFER: BufferSink(options, clock)})

    def open(self, openings: Mapping[str, Opening]) -> CrossEpochPartition:
        return CrossEpochPartition(openings, self.writer_context().value)


class CrossEpochPartition(CompositePartition):
    """Passes rows to the buffer, and from there in batches to the target, with one schema per epoch."""

    def __init__(self, openings: Mapping[str, Opening], value: str | None) -> None:
        """Open both."""
        self._value = value
        self._written: pa.Schema | None = None
        super().__init__(openings)

    @property
    def _waiting(self) -> BufferPartition:
        partition: BufferPartition = self.children[BUFFER].partition
        return partition

    def write_batch(self, values: list[Any]) -> None:
        """Buffer values as rows."""
        self.write_record_batch(rows_to_batch(values) if self._value is None else to_batch(values, self._value))

    def write_record_batch(self, batch: pa.RecordBatch) -> None:
        """Buffer rows, and write what is due."""
        self._waiting.write_record_batch(batch)
        self._write(everything=False)

    def flush(self, end_of_input: bool) -> None:
        """Write what is due, at the end of the input everything, and flush the target."""
        self._write(everything=end_of_input)
        self.children[TARGET].flush(end_of_input)

    def _write(self, *, everything: bool) -> None:
        buffer, clock = self._waiting.buffer, self._waiting.clock
        while (chunk := buffer.due(clock.time(), everything=everything)) is not None:
            if self._written is None:
                self._written = chunk.batch.schema
            elif not self._written.equals(chunk.batch.schema):
                # Rows of epochs before a schema change. A target may accept only one schema per epoch, as Spark
                # provides no other; the rest is due in the next epoch.
                return
            self.children[TARGET].write(chunk.batch)
            buffer.drop(chunk.rows)
