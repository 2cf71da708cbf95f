"""The five base classes of sinks and their partitions.

Names and signatures are those of Bytewax 0.21 (`bytewax.outputs`): a sink written for Bytewax runs here after a change
of the import. The engine checks behavior, not base classes: any object with these methods is a sink.

Outfall defines four points that Bytewax leaves open:

- `close()` only releases resources. It also runs after errors, and never flushes, publishes or commits.
- Parts are indexed in the order in which `list_parts()` returns them, not sorted.
- A state is absent only if it is `None`; `0`, `""` and `{}` are states.
- A sink never changes a value: another sink or a retry may receive it next.
"""

from __future__ import annotations

import zlib
from abc import ABC, abstractmethod
from typing import Generic, TypeVar

__all__ = ["DynamicSink", "FixedPartitionedSink", "Sink", "StatefulSinkPartition", "StatelessSinkPartition"]

X = TypeVar("X")
"""The type of one value: a `dict` of the row's columns, or one column's value."""

S = TypeVar("S")
"""The type of a part's state."""


class Sink(ABC, Generic[X]):
    """A picklable description of a destination: it contains options and opens nothing.

    Subclass `FixedPartitionedSink` or `DynamicSink`, not this.
    """


class StatefulSinkPartition(ABC, Generic[X, S]):
    """One open part of a fixed sink, in one attempt of one task at one epoch."""

    @abstractmethod
    def write_batch(self, values: list[X]) -> None:
        """Write values in their order.

        Called zero or more times between building and `snapshot`. The division into batches has no meaning. If it
        raises, the attempt fails, and Spark may retry the task with another partition object.

        Args:
            values: One or more values, which must not be changed.
        """

    @abstractmethod
    def snapshot(self) -> S:
        """Return the position after the last value written.

        Called once per epoch, after the last `write_batch` and a flush, and never after `close`. All written data must
        be durable when this returns, because the state is recorded next. A part that is built from this state must
        continue *after* the last value.

        Returns:
            The state, not `None`; `0`, `""` and `{}` are valid states.
        """

    def close(self) -> None:
        """Release resources. Called once, also after errors. Must not flush, publish or commit."""


class FixedPartitionedSink(Sink[tuple[str, X]], Generic[X, S]):
    """A sink with a fixed list of parts, each written by exactly one task and resumed from its own state.

    Rows are routed by key: `part_fn(key)` modulo the number of parts is an index into `list_parts()`.
    """

    @abstractmethod
    def list_parts(self) -> list[str]:
        """Return the names of all parts, in the order that `part_fn` indexes.

        Called on the driver several times per epoch. Must return the same list each time. Names must be unique and must
        not change between restarts. If a part with a state is no longer listed, the query fails. A new part has no
        state.

        Returns:
            All parts of the sink. Parts that are local to a worker are not supported.
        """

    def part_fn(self, item_key: str) -> int:
        """Return the number of the part for a key.

        Must depend on the key alone and return the same number in every process and release. The default is CRC-32
        (ISO 3309) of the key's UTF-8 bytes. Spark's `crc32` computes the same number, and routing stays in the JVM.
        Do not use `hash()`: it differs between processes.

        Args:
            item_key: The key of the row, cast to string by Spark.

        Returns:
            Any integer. The engine takes it modulo the number of parts.
        """
        return zlib.crc32(item_key.encode())

    @abstractmethod
    def build_part(self, step_id: str, for_part: str, resume_state: S | None) -> StatefulSinkPartition[X, S]:
        """Open a part, new or at its last recorded state.

        Called in a task, at most once per part and attempt. Data after `resume_state` was written by a failed attempt
        and must be truncated, overwritten or ignored.

        Args:
            step_id: The step id.
            for_part: One of the names from `list_parts()`.
            resume_state: The result of `snapshot()` in the last recorded epoch; `None` if there is none.

        Returns:
            The open part.
        """


class StatelessSinkPartition(ABC, Generic[X]):
    """One open writer of a dynamic sink, in one attempt of one task at one epoch."""

    @abstractmethod
    def write_batch(self, values: list[X]) -> None:
        """Write values in their order. As `StatefulSinkPartition.write_batch`.

        Args:
            values: One or more values, which must not be changed.
        """

    def close(self) -> None:
        """Release resources. Called once, also after errors. Must not flush, publish or commit."""


class DynamicSink(Sink[X]):
    """A sink that any number of tasks write in parallel, without routing.

    Its default guarantee is at-least-once, because rows of a failed attempt remain. Add `SupportsCommitter` to publish
    each row once.
    """

    @abstractmethod
    def build(self, step_id: str, worker_index: int, worker_count: int) -> StatelessSinkPartition[X]:
        """Open a writer for one task.

        Called in a task, once per attempt.

        Args:
            step_id: The step id.
            worker_index: The partition id of the task, from 0.
            worker_count: The number of tasks if it was set (`workers=`), else 0, because Spark does not provide it to
                tasks.

        Returns:
            The open writer.
        """
