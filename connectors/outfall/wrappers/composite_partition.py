"""The open partitions of all children, as one partition."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import pyarrow as pa

from outfall.capabilities import SupportsBufferedRows, SupportsCommitter, SupportsWriterState, WriterInitContext
from outfall.capability_checks import ResolvedSink, returned_list
from outfall.protocol.partition import Rows, open_partition
from outfall.sinks import StatefulSinkPartition, StatelessSinkPartition
from outfall.wrappers.children import for_each, of_child
from outfall.wrappers.composite_committer import ChildValue

R = TypeVar("R")


@dataclass(frozen=True)
class Opening:
    """The parameters for opening one child's partition."""

    child: ResolvedSink
    context: WriterInitContext
    states: Mapping[str, Any]
    """Of a fixed child, by the child's own names."""
    recovered: Sequence[Any]
    """Of a dynamic child."""
    kept_as: str | None = None
    """The name of a dynamic child's states in a parent with parts."""

    @property
    def resumes(self) -> bool:
        """Whether there are states that would otherwise be lost, or rows that may be due."""
        return bool(self.recovered) or (bool(self.states) and SupportsBufferedRows in self.child.capabilities)


class ChildPartition:
    """One child's open partition."""

    def __init__(self, name: str, opening: Opening) -> None:
        """Open it. Raises `CapabilityError` if it lacks a capability that its sink declares."""
        self.name = name
        self._opening = opening
        self._context = opening.context
        self._child = opening.child
        with of_child(name):
            self.opened = open_partition(
                opening.child, opening.context, states=opening.states, recovered=opening.recovered
            )
        self.partition = self.opened.partition

    def write(self, rows: Rows) -> None:
        """Write rows, or values that were never rows; the child gets its own copies."""
        with of_child(self.name):
            # Arrow batches are immutable, and values that are made from them are new for each child.
            shared = self.opened.takes_values and not isinstance(rows, pa.RecordBatch)
            self.opened.write(copy.deepcopy(rows) if shared else rows, self._context.value)
        self._context.metrics.add("rows", len(rows))

    def flush(self, end_of_input: bool) -> None:
        """Flush the partition, if it buffers values."""
        with of_child(self.name):
            buffers = SupportsBufferedRows in self._child.capabilities
            self.opened.flush(end_of_input=end_of_input or not buffers)

    def prepare_commit(self) -> list[ChildValue]:
        """Return its committables, if any."""
        if SupportsCommitter not in self._child.capabilities:
            return []
        with of_child(self.name):
            return [
                ChildValue(self.name, value)
                for value in self._returned("prepare_commit", self.partition.prepare_commit())
            ]

    def named_states(self) -> dict[str, Any]:
        """Return its states by name, in the form that its parent stores."""
        with of_child(self.name):
            if self._child.fixed:
                states = self._child.states_after(self._context.part or "", self.partition.snapshot())
                return {f"{self.name}/{name}": state for name, state in states.items()}
            if self._opening.kept_as is None:
                return {}
            return {self._opening.kept_as: list(self._snapshot_state(self._context.epoch))}

    def writer_states(self, epoch: int) -> list[ChildValue]:
        """Return its writer states, if any."""
        if SupportsWriterState not in self._child.capabilities:
            return []
        with of_child(self.name):
            return [ChildValue(self.name, state) for state in self._snapshot_state(epoch)]

    def _snapshot_state(self, epoch: int) -> Sequence[Any]:
        return self._returned("snapshot_state", self.partition.snapshot_state(epoch))

    def _returned(self, method: str, value: Any) -> Sequence[Any]:
        return returned_list(self.partition, method, value, step=self._context.step_id, part=self._context.part)

    def close(self) -> None:
        """Close it."""
        self.partition.close()


class CompositePartition(StatefulSinkPartition[Any, Mapping[str, Any]], StatelessSinkPartition[Any]):
    """Passes everything to the partitions of all children, in order.

    A slow child delays its siblings, so no backlog builds up. An error in a write fails the attempt at once. Flush,
    commit preparation and close reach each child, and their errors are raised together.
    """

    def __init__(self, openings: Mapping[str, Opening]) -> None:
        """Open the children."""
        self._openings = openings
        self.children: dict[str, ChildPartition] = {}
        try:
            self.open_children()
        except BaseException:
            for child in self.children.values():
                # The original error must be raised.
                with suppress(Exception):
                    child.close()
            raise

    def open_children(self) -> None:
        """Open the children that are needed from the beginning. The default is all."""
        for name in self._openings:
            self.open_child(name)

    def open_child(self, name: str) -> ChildPartition:
        """Open one child."""
        self.children[name] = ChildPartition(name, self._openings[name])
        return self.children[name]

    def written_children(self) -> Sequence[ChildPartition]:
        """The children that get the rows. The default is all."""
        return tuple(self.children.values())

    def write_batch(self, values: list[Any]) -> None:
        """Write values to each child; each gets its own copies."""
        for child in self.written_children():
            child.write(values)

    def write_record_batch(self, batch: pa.RecordBatch) -> None:
        """Write rows to each child; they share the batch, which is immutable."""
        for child in self.written_children():
            child.write(batch)

    def flush(self, end_of_input: bool) -> None:
        """Flush each child, even after another one failed, as in `close`."""
        self._for_each(lambda name, child: child.flush(end_of_input), "several sinks could not be flushed")

    def prepare_commit(self) -> Sequence[ChildValue]:
        """Return the committables of all children.

        Each prepares its own even after another one failed, as in `close`.
        """
        found = self._for_each(
            lambda name, child: child.prepare_commit(), "several sinks could not prepare their commit"
        )
        return [item for items in found.values() for item in items]

    def snapshot(self) -> Mapping[str, Any]:
        """Return the states of all open children."""
        return {name: state for child in self.children.values() for name, state in child.named_states().items()}

    def snapshot_state(self, epoch: int) -> Sequence[ChildValue]:
        """Return the writer states of all children."""
        return [item for child in self.children.values() for item in child.writer_states(epoch)]

    def close(self) -> None:
        """Close each child, even after another one failed.

        Raises the error of a single child itself, and an `OutfallError` that lists all if several could not be closed.
        """
        self._for_each(lambda name, child: child.close(), "several sinks could not be closed")

    def _for_each(self, act: Callable[[str, ChildPartition], R], failed: str) -> dict[str, R]:
        context = next(iter(self._openings.values())).context
        return for_each(self.children, act, failed, step=context.step_id, epoch=context.epoch)
