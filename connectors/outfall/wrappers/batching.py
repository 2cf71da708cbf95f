"""`BatchingSink`: larger batches for a sink."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta
from typing import Any

import pyarrow as pa

from outfall.capabilities import DeclaresCapabilities, SupportsArrow, SupportsFlush, WriterInitContext
from outfall.capability_checks import check_sink
from outfall.delegating_sink import DelegatingSink
from outfall.options import make_options, names_arguments, parse_options
from outfall.protocol.clock import Clock, SystemClock
from outfall.protocol.partition import resolve_partition
from outfall.values import rows_to_batch
from outfall.wrappers.batch_buffer import ArrowChunk, BatchingOptions, BatchLimits, Buffer, ValueChunk
from outfall.wrappers.cross_epoch_batching import CrossEpochBatching


class BatchingSink(DelegatingSink):
    """Passes rows to a sink in batches.

    Item type: that of the sink. A sink that takes Arrow batches gets them sliced and concatenated, never as rows.

    What must exist: the requirements of the sink.

    Unit of parallelism: that of the sink. Each of its partitions has its own batches.

    Guarantee: that of the sink.

    By default batches are complete within an epoch, and the last batch of each partition may be smaller. To the engine
    and in the recovery data it is then the given sink, with each of its capabilities: batching can be added and removed
    between restarts.

    With `across_epochs=True` rows are buffered in the recovery data until there are enough of them, they are old
    enough, a batch job ends, or `outfall.spark.drain` is called. Limits are checked while epochs run. A sink without
    parts then needs `workers=`. Changing this option needs a new checkpoint.

    Args:
        sink: any sink.
        batch_size: number of rows in a batch.
        flush_interval: maximum age of the oldest row before its batch is written: timedelta, seconds, or a string.
        batch_bytes: maximum size of a batch in Arrow memory: a number, or a string such as `"8 MiB"`.
        across_epochs: whether an incomplete batch is buffered across epochs.
        clock: returns the time; for tests.

    Raises:
        ConfigurationError: lists every wrong option.
        CapabilityError: the capabilities of the sink cannot be combined with batching.
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
        return f"BatchingSink({self.delegate!r}, batch_size={self.options.batch_size})"

    def build(self, step_id: str, worker_index: int, worker_count: int) -> Any:
        """Open a writer of the sink, behind batches."""
        return self._batched(self.delegate.build(step_id, worker_index, worker_count))

    def build_part(self, step_id: str, for_part: str, resume_state: Any) -> Any:
        """Open a part of the sink, behind batches."""
        return self._batched(self.delegate.build_part(step_id, for_part, resume_state))

    def restore_writer(self, context: WriterInitContext, recovered: Sequence[Any]) -> Any:
        """Open a writer of the sink that continues from its states, behind batches."""
        return self._batched(self.delegate.restore_writer(context, recovered))

    def _batched(self, partition: Any) -> Any:
        # Across epochs, the partitions of the worker create the batches.
        return partition if self.options.across_epochs else BatchedPartition(partition, self.options, self._clock)


def batching_from_options(sink: Any, options: Mapping[str, str]) -> BatchingSink:
    """Wrap a sink for batches by Spark options: `batch_size`, `flush_interval` and `batch_bytes`.

    Raises `ConfigurationError`, which lists every unknown or wrong option.
    """
    return BatchingSink(sink, **parse_options(BatchLimits, options).model_dump())


class BatchedPartition(DeclaresCapabilities):
    """Writes to another partition in batches. A batch that the partition rejects stays buffered.

    It has every public method of the partition.
    """

    def __init__(self, inner: Any, options: BatchingOptions, clock: Clock) -> None:
        """Start empty."""
        self._inner = inner
        self._opened = resolve_partition(inner)
        self._clock = clock
        self._buffer = Buffer(options)
        # Only an engine without Arrow passes values, and it passes nothing else.
        self._takes_values = SupportsArrow not in self._opened.capabilities or self._opened.takes_values

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)
        return getattr(self._inner, name)

    def capabilities(self) -> Collection[type]:
        return self._opened.capabilities | {SupportsFlush}

    def write_batch(self, values: list[Any]) -> None:
        """Buffer values."""
        self._add(ValueChunk(list(values)) if self._takes_values else ArrowChunk(rows_to_batch(values)))

    def write_record_batch(self, batch: pa.RecordBatch) -> None:
        """Buffer rows."""
        self._add(ArrowChunk(batch))

    def flush(self, end_of_input: bool) -> None:
        """Write all buffered rows, and flush."""
        self._write(everything=True)
        self._opened.flush(end_of_input=end_of_input)

    def close(self) -> None:
        """Close it, without writing buffered rows."""
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
