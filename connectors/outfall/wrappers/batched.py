"""Batches within an epoch: a sink that is the given one in all but the size of what its partitions are given."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from outfall.capabilities import SupportsArrow, SupportsDeadLetters
from outfall.capability_checks import flush, supports
from outfall.dead_letter import DeadLetter
from outfall.protocol.clock import Clock, SystemClock
from outfall.sinks import StatefulSinkPartition, StatelessSinkPartition
from outfall.values import rows_to_batch
from outfall.wrappers.batch_buffer import ArrowChunk, BatchingOptions, Buffer, ValueChunk


@dataclass(frozen=True)
class WallClock(SystemClock):
    """The machine's own clock; all of them are one."""


@dataclass(frozen=True)
class Batching:
    """How batches are made."""

    options: BatchingOptions
    clock: Clock = field(default_factory=WallClock)


def batched(sink: Any, batching: Batching) -> Any:
    """Return a copy of a sink whose partitions get batches.

    Its class is a subclass made for it, of the sink's own name: to the engine and in the recovery data it is the sink
    that it was, with each of its capabilities, and batching can be put on and off between restarts.
    """
    found = copy.copy(sink)
    kind: Any = type(sink)
    object.__setattr__(found, "__class__", _batched_class(kind, batching))
    return found


@functools.cache
def _batched_class(kind: Any, batching: Batching) -> type:
    def plain(sink: Any) -> Any:
        made = type(sink)
        object.__setattr__(sink, "__class__", kind)
        try:
            return copy.copy(sink)
        finally:
            object.__setattr__(sink, "__class__", made)

    def opening(name: str) -> Any:
        original = getattr(kind, name)

        @functools.wraps(original)
        def open_partition(self: Any, *args: Any, **options: Any) -> Any:
            return batched_partition(original(self, *args, **options), batching)

        return open_partition

    names: dict[str, Any] = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, "__doc__": kind.__doc__}
    names |= {"__slots__": (), "outfall_batching": batching}
    names |= {name: opening(name) for name in ("build", "build_part", "restore_writer") if hasattr(kind, name)}
    if hasattr(kind, "bind"):
        # A sink may make its bound copy in any way.
        names["bind"] = lambda self, context: batched(plain(self).bind(context), batching)
    names["__copy__"] = lambda self: batched(plain(self), batching)
    names["__reduce_ex__"] = lambda self, protocol: (batched, (plain(self), batching))
    made: type = type(kind)(kind.__name__, (kind,), names)
    return made


class BatchedPartition(StatefulSinkPartition[Any, Any], StatelessSinkPartition[Any]):
    """Writes to another partition in batches. What that one refuses to take stays in the buffer."""

    def __init__(self, inner: Any, batching: Batching) -> None:
        """Hold nothing yet."""
        self._inner = inner
        self._clock = batching.clock
        self._buffer = Buffer(batching.options)

    def write_batch(self, values: list[Any]) -> None:
        """Take values."""
        self._add(ValueChunk(list(values)))

    def flush(self, end_of_input: bool) -> None:
        """Write all that is held, and flush."""
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
        """Close it. What is held is not written."""
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


class _TakesArrow(BatchedPartition):
    def write_record_batch(self, batch: pa.RecordBatch) -> None:
        """Take rows."""
        self._add(ArrowChunk(batch))

    def _add(self, chunk: Any) -> None:
        # Only an engine without Arrow brings values to such a partition, and then nothing else.
        if isinstance(chunk, ValueChunk) and not callable(getattr(self._inner, "write_batch", None)):
            chunk = ArrowChunk(rows_to_batch(chunk.values))
        super()._add(chunk)


class _HandsOverLetters(BatchedPartition):
    def dead_letters_to(self, take: Callable[[Sequence[DeadLetter]], None]) -> None:
        """Hand refused records over."""
        self._inner.dead_letters_to(take)


class _TakesArrowAndHandsOverLetters(_TakesArrow, _HandsOverLetters):
    pass


def batched_partition(inner: Any, batching: Batching) -> BatchedPartition:
    """Stand before a partition, with the features that it has."""
    classes: dict[tuple[bool, bool], type[BatchedPartition]] = {
        (False, False): BatchedPartition,
        (True, False): _TakesArrow,
        (False, True): _HandsOverLetters,
        (True, True): _TakesArrowAndHandsOverLetters,
    }
    return classes[supports(inner, SupportsArrow), supports(inner, SupportsDeadLetters)](inner, batching)
