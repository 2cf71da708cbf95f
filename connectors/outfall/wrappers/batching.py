"""`BatchingSink`: larger batches for a sink."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import timedelta
from typing import Any

import pyarrow as pa

from outfall.capabilities import (
    CommittingSinkPartition,
    DeclaresCapabilities,
    SnapshotsWriterState,
    SupportsArrow,
    SupportsDeadLetters,
    SupportsFlush,
    WriterInitContext,
)
from outfall.capability_checks import check_sink, flush, supports
from outfall.dead_letter import DeadLetter
from outfall.delegating_sink import DelegatingSink
from outfall.options import make_options, names_arguments, parse_options
from outfall.protocol.clock import Clock, SystemClock
from outfall.sinks import StatefulSinkPartition, StatelessSinkPartition
from outfall.values import rows_to_batch
from outfall.wrappers.batch_buffer import ArrowChunk, BatchingOptions, BatchLimits, Buffer, ValueChunk
from outfall.wrappers.cross_epoch_batching import CrossEpochBatching


class BatchingSink(DelegatingSink):
    """Gives a sink its rows in batches of a size.

    Item type: what the sink takes. A sink that takes Arrow batches gets them sliced and joined, never as rows.

    What must exist: what the sink needs.

    Unit of parallelism: that of the sink. Each of its partitions has batches of its own.

    Guarantee: that of the sink.

    Within an epoch, the default, the last batch of each partition may be smaller. To the engine and in the recovery
    data it is then the given sink, with each of its capabilities: batching can be put on and off between restarts.
    With `across_epochs=True` rows wait in the recovery data until there are enough of them, they are old enough, a
    batch job ends or `outfall.spark.drain` is called; limits are looked at while epochs run. A sink without parts then
    needs `workers=`. Turning that on or off needs a new checkpoint.

    Args:
        sink: any sink.
        batch_size: rows in a batch.
        flush_interval: how old the oldest row gets before its batch is written: timedelta, seconds, or text.
        batch_bytes: bytes in a batch, as Arrow holds the rows: a number, or text such as `"8 MiB"`.
        across_epochs: whether a batch waits for the rows of later epochs.
        clock: tells how old rows are. A test gives one of its own.

    Raises:
        ConfigurationError: naming every option that is wrong.
        CapabilityError: the sink's capabilities do not go together.
    """

    @names_arguments
    def __init__(
        self,
        sink: Any,
        batch_size: int = 1000,
        flush_interval: timedelta | float | str = timedelta(seconds=30),
        batch_bytes: int | str | None = None,
        across_epochs: bool = False,
        *,
        clock: Clock | None = None,
    ) -> None:
        given = {
            "batch_size": batch_size,
            "flush_interval": flush_interval,
            "batch_bytes": batch_bytes,
            "across_epochs": across_epochs,
        }
        self.options = make_options(BatchingOptions, given)
        self._clock = clock or SystemClock()
        check_sink(sink)
        super().__init__(CrossEpochBatching(sink, self.options, self._clock) if across_epochs else sink)

    def __repr__(self) -> str:
        return f"BatchingSink({self.worker!r}, batch_size={self.options.batch_size})"

    def build(self, step_id: str, worker_index: int, worker_count: int) -> Any:
        return self._batched(super().build(step_id, worker_index, worker_count))

    def build_part(self, step_id: str, for_part: str, resume_state: Any) -> Any:
        return self._batched(super().build_part(step_id, for_part, resume_state))

    def restore_writer(self, context: WriterInitContext, recovered: Sequence[Any]) -> Any:
        return self._batched(super().restore_writer(context, recovered))

    def _batched(self, partition: Any) -> Any:
        # Across epochs the worker's own partitions make the batches.
        return partition if self.options.across_epochs else BatchedPartition(partition, self.options, self._clock)


def batching_from_options(sink: Any, options: Mapping[str, str]) -> BatchingSink:
    """Give a sink batches by Spark options (`batch_size`, `flush_interval`, `batch_bytes`; also spelled `batchSize`).

    Raises:
        ConfigurationError: naming every option that is unknown or wrong.
    """
    return BatchingSink(sink, **parse_options(BatchLimits, options).model_dump())


class BatchedPartition(StatefulSinkPartition[Any, Any], StatelessSinkPartition[Any], DeclaresCapabilities):
    """Writes to another partition in batches. What that one refuses to take stays in the buffer."""

    def __init__(self, inner: Any, options: BatchingOptions, clock: Clock) -> None:
        """Hold nothing yet."""
        self._inner = inner
        self._clock = clock
        self._buffer = Buffer(options)
        passed_on = (SupportsArrow, SupportsDeadLetters, CommittingSinkPartition, SnapshotsWriterState)
        self._capabilities = [SupportsFlush, *(feature for feature in passed_on if supports(inner, feature))]
        # Values come from an engine without Arrow only, which brings nothing else.
        self._takes_values = SupportsArrow not in self._capabilities or callable(getattr(inner, "write_batch", None))

    def capabilities(self) -> Collection[type]:
        return self._capabilities

    def write_batch(self, values: list[Any]) -> None:
        """Take values."""
        self._add(ValueChunk(list(values)) if self._takes_values else ArrowChunk(rows_to_batch(values)))

    def write_record_batch(self, batch: pa.RecordBatch) -> None:
        """Take rows."""
        self._add(ArrowChunk(batch))

    def dead_letters_to(self, take: Callable[[Sequence[DeadLetter]], None]) -> None:
        """Hand refused records over."""
        self._inner.dead_letters_to(take)

    def flush(self, end_of_input: bool) -> None:
        """Write all that is buffered, and flush."""
        self._write(everything=True)
        flush(self._inner, end_of_input=end_of_input)

    def prepare_commit(self) -> Sequence[Any]:
        """Hand over what the partition does."""
        return self._inner.prepare_commit()  # type: ignore[no-any-return]

    def snapshot(self) -> Any:
        """Its state."""
        return self._inner.snapshot()

    def snapshot_state(self, epoch: int) -> Sequence[Any]:
        """Its states."""
        return self._inner.snapshot_state(epoch)  # type: ignore[no-any-return]

    def close(self) -> None:
        """Close it. What is buffered is not written."""
        self._inner.close()

    def _add(self, chunk: Any) -> None:
        self._buffer.add(chunk, self._clock.time())
        self._write(everything=False)

    def _write(self, *, everything: bool) -> None:
        while (chunk := self._buffer.due(self._clock.time(), everything=everything)) is not None:
            self._hand_on(chunk)
            self._buffer.drop(chunk.rows)

    def _hand_on(self, chunk: Any) -> None:
        if isinstance(chunk, ArrowChunk):
            self._inner.write_record_batch(chunk.batch)
        else:
            self._inner.write_batch(chunk.values)
