"""The five classes that a sink is made of.

Names and signatures are those of Bytewax 0.21 (`bytewax.outputs`), so that a sink written for it runs here by
changing an import. The engine checks behaviour and not ancestry: any object with these methods is a sink.

What Bytewax leaves open is fixed here:

- `close()` only releases resources. It runs after errors too, and never flushes, publishes or commits.
- Parts are indexed in the order in which `list_parts()` returns them, not sorted.
- A state is absent only when it is `None`; `0`, `""` and `{}` are states.
- A value handed to a sink is never changed by it: another sink or a retry may see it next.
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
    """A picklable description of a destination: it holds options and opens nothing.

    Subclass `FixedPartitionedSink` or `DynamicSink`, not this.
    """


class StatefulSinkPartition(ABC, Generic[X, S]):
    """One open part of a fixed sink, in one attempt of one task at one epoch."""

    @abstractmethod
    def write_batch(self, values: list[X]) -> None:
        """Write values in their order.

        Called zero or more times between building and `snapshot`. How values are cut into batches carries no meaning.
        A raised error fails the attempt; Spark may try the task again with another partition object.

        Args:
            values: one or more values, never to be changed.
        """

    @abstractmethod
    def snapshot(self) -> S:
        """Return the position after the last value written.

        Called once per epoch, after the last `write_batch` and a flush, never after `close`. What has been written must
        be durable when this returns, since the state is recorded next. Building a part from this state must go on
        *after* the last value; beware of being off by one.

        Returns:
            The state, not `None`; `0`, `""` and `{}` are states like any other.
        """

    def close(self) -> None:
        """Release resources. Called once, after errors too. Must not flush, publish or commit."""


class FixedPartitionedSink(Sink[tuple[str, X]], Generic[X, S]):
    """A sink with a fixed list of parts, each written by exactly one task and resumed from its own state.

    Rows are routed by key: `part_fn(key)` modulo the number of parts is an index into `list_parts()`.
    """

    @abstractmethod
    def list_parts(self) -> list[str]:
        """Name all parts, in the order that `part_fn` indexes.

        Called on the driver, several times per epoch, with the same answer each time. Names must be unique and must not
        change between restarts: a part that had state and is no longer listed stops the query; new names start fresh.

        Returns:
            All parts of the sink. Parts local to a worker are not supported.
        """

    def part_fn(self, item_key: str) -> int:
        """Choose the part for a key.

        Must depend on the key alone and give the same number in every process and release. The default is CRC-32
        (ISO 3309) of the key's UTF-8 bytes, which Spark's `crc32` computes too, so that routing stays in the JVM.
        Do not use `hash()`: it differs between processes.

        Args:
            item_key: the row's key, cast to string by Spark.

        Returns:
            Any integer; it is taken modulo the number of parts.
        """
        return zlib.crc32(item_key.encode())

    @abstractmethod
    def build_part(self, step_id: str, for_part: str, resume_state: S | None) -> StatefulSinkPartition[X, S]:
        """Open a part, anew or where its last recorded state says.

        Called in a task, at most once per part and attempt. Whatever lies behind `resume_state` comes from an attempt
        that does not count and must be cut, overwritten or ignored.

        Args:
            step_id: the step's id.
            for_part: one of the names from `list_parts()`.
            resume_state: what `snapshot()` returned in the last recorded epoch; `None` if there is none.

        Returns:
            The open part.
        """


class StatelessSinkPartition(ABC, Generic[X]):
    """One open writer of a dynamic sink, in one attempt of one task at one epoch."""

    @abstractmethod
    def write_batch(self, values: list[X]) -> None:
        """Write values in their order. As `StatefulSinkPartition.write_batch`.

        Args:
            values: one or more values, never to be changed.
        """

    def close(self) -> None:
        """Release resources. Called once, after errors too. Must not flush, publish or commit."""


class DynamicSink(Sink[X]):
    """A sink that any number of tasks write side by side, without routing.

    By itself it gives at-least-once: what a failed attempt wrote stays. `SupportsCommitter` makes it publish once.
    """

    @abstractmethod
    def build(self, step_id: str, worker_index: int, worker_count: int) -> StatelessSinkPartition[X]:
        """Open a writer for one task.

        Called in a task, once per attempt.

        Args:
            step_id: the step's id.
            worker_index: the task's partition id, from 0.
            worker_count: the number of tasks where it was fixed (`workers=`), else 0: Spark does not tell a task how
                many there are.

        Returns:
            The open writer.
        """
