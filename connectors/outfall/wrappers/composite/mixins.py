"""The capabilities of a composite: each does what it says for the children that have it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from outfall.capabilities import (
    CommittableMessage,
    CommitterInitContext,
    HeldRows,
    PartSeal,
    SealContext,
    SupportsCommitter,
    SupportsHeldRows,
    SupportsPostCommitTopology,
    SupportsPreCommitTopology,
    SupportsPreWriteTopology,
    SupportsSeal,
    SupportsWriterState,
    WriterInitContext,
)
from outfall.capability_checks import SupportsNamedStates, is_fixed, keeps_writer_state, supports
from outfall.errors import CapabilityError
from outfall.protocol.states import hand_over_serializer, state_names, state_serializer
from outfall.serde import SimpleVersionedSerializer
from outfall.sinks import DynamicSink, FixedPartitionedSink
from outfall.wrappers.composite.children import ChildMetrics, for_each, of_child
from outfall.wrappers.composite.committer import CompositeCommitter
from outfall.wrappers.composite.partition import CompositePartition, Opening
from outfall.wrappers.composite.sink import Composite, share
from outfall.wrappers.composite.tagged import ListSerializer, OfChild, TaggedSerializer


class DynamicShape(Composite, DynamicSink[Any]):
    """No child has parts."""

    def build(self, step_id: str, worker_index: int, worker_count: int) -> CompositePartition:
        return self._build(())

    def _build(self, recovered: Sequence[OfChild]) -> CompositePartition:
        return self.open(
            {
                name: Opening(
                    child,
                    replace(self.writer, metrics=ChildMetrics(self.writer.metrics, name)),
                    states={},
                    recovered=[item.value for item in recovered if item.child == name],
                )
                for name, child in self._children.items()
            }
        )


class KeepsWriterState(DynamicShape, SupportsWriterState[Any, OfChild]):
    """A child keeps states across epochs, and none has parts."""

    def restore_writer(self, context: WriterInitContext, recovered: Sequence[OfChild]) -> CompositePartition:
        return self._build(recovered)

    def keeps_writer_state(self) -> bool:
        return any(map(keeps_writer_state, self._children.values()))

    def writer_state_serializer(self) -> TaggedSerializer:
        children = self._with(SupportsWriterState)
        return TaggedSerializer({name: child.writer_state_serializer for name, child in children.items()})


class FixedShape(Composite, FixedPartitionedSink[Any, Mapping[str, Any]], SupportsNamedStates):
    """A child has parts. Part i is part i of every such child, and a writer of its own in every other."""

    _parts: tuple[str, ...] = ()
    _parts_of: Mapping[str, tuple[str, ...]] = {}

    def list_parts(self) -> list[str]:
        listed = {name: tuple(child.list_parts()) for name, child in self._children.items() if is_fixed(child)}
        counts = {name: len(parts) for name, parts in listed.items()}
        if len(set(counts.values())) > 1:
            found = ", ".join(f"{name} {count}" for name, count in counts.items())
            raise CapabilityError(
                f"the sinks have different numbers of parts: {found}",
                why="a row's part in one would be in another task than its part in the other",
                do="give each the same number of parts, or write each in a step of its own",
            )
        self._parts_of = listed
        columns = zip(*listed.values(), strict=True)
        self._parts = tuple("+".join(dict.fromkeys(column)) for column in columns)
        return list(self._parts)

    def state_names(self, part: str) -> Sequence[str]:
        index = self._index(part)
        return [found for name in self._children for found in self._names_of(name, index)]

    def named_state_serializer(self, name: str) -> SimpleVersionedSerializer[Any]:
        child, _, own = name.partition("/")
        sink = self._children[child]
        return state_serializer(sink, own) if is_fixed(sink) else ListSerializer(sink.writer_state_serializer())

    def build_part(self, step_id: str, for_part: str, resume_state: Mapping[str, Any] | None) -> CompositePartition:
        index, states = self._index(for_part), resume_state or {}
        return self.open({name: self._opening(name, index, states) for name in self._children})

    def _opening(self, name: str, index: int, states: Mapping[str, Any]) -> Opening:
        child, metrics = self._children[name], ChildMetrics(self.writer.metrics, name)
        if is_fixed(child):
            context = replace(self.writer, part=self._parts_of[name][index], metrics=metrics)
            return Opening(child, context, states=share(name, states), recovered=())
        context = replace(
            self.writer,
            part=None,
            # One task may write several parts, and so hold several writers of this child: each is a worker of its own.
            worker_index=index,
            worker_count=len(self._parts),
            attempt=self.writer.attempt * len(self._parts) + index,
            metrics=metrics,
        )
        kept_as = next(iter(self._names_of(name, index)), None)
        return Opening(child, context, states={}, recovered=states.get(kept_as or "", ()), kept_as=kept_as)

    def _names_of(self, name: str, index: int) -> Sequence[str]:
        child = self._children[name]
        if is_fixed(child):
            return [f"{name}/{own}" for own in state_names(child, self._parts_of[name][index])]
        return [f"{name}/writer-{index:05d}"] if supports(child, SupportsWriterState) else []

    def _index(self, part: str) -> int:
        if part not in self._parts:
            self.list_parts()
        return self._parts.index(part)


class RoutedShape(FixedShape):
    """The one child with parts has a `part_fn` of its own."""

    def part_fn(self, item_key: str) -> int:
        (routing,) = (child for child in self._children.values() if is_fixed(child))
        index: int = routing.part_fn(item_key)
        return index


class HoldsRows(Composite, SupportsHeldRows[Any]):
    """A child holds rows back across epochs."""

    def held_rows(self, state: OfChild | Mapping[str, Any]) -> HeldRows:
        if isinstance(state, OfChild):
            return _held_by(self._children[state.child], state.value)
        return _sum_of([self._held_under(name, value) for name, value in state.items()])

    def _held_under(self, name: str, state: Any) -> HeldRows:
        child, _, own = name.partition("/")
        sink = self._children[child]
        if supports(sink, SupportsNamedStates):
            return _held_by(sink, {own: state})
        return _held_by(sink, state) if is_fixed(sink) else _sum_of([_held_by(sink, item) for item in state])


class Commits(Composite, SupportsCommitter[OfChild]):
    """A child publishes at commit."""

    def create_committer(self, context: CommitterInitContext) -> CompositeCommitter:
        return CompositeCommitter(self._with(SupportsCommitter), context)

    def committable_serializer(self) -> TaggedSerializer:
        return TaggedSerializer({n: c.committable_serializer for n, c in self._with(SupportsCommitter).items()})


class ActsBeforeCommit(Composite, SupportsPreCommitTopology[OfChild, OfChild]):
    """A child turns write results into committables; those of the others are committables already."""

    def write_result_serializer(self) -> TaggedSerializer:
        return TaggedSerializer(
            {n: lambda c=c: hand_over_serializer(c) for n, c in self._with(SupportsCommitter).items()}  # type: ignore[misc]
        )

    def add_pre_commit_topology(
        self, results: Sequence[CommittableMessage[OfChild]]
    ) -> Sequence[CommittableMessage[OfChild]]:
        acting = self._with(SupportsPreCommitTopology)
        passing = [message for message in results if message.value.child not in acting]
        made = for_each(
            acting,
            lambda name, child: child.add_pre_commit_topology(_messages_of(name, results)),
            "several sinks could not prepare their commit",
        )
        return passing + [
            replace(message, value=OfChild(name, message.value)) for name, found in made.items() for message in found
        ]


class ActsAfterCommit(Composite, SupportsPostCommitTopology[OfChild]):
    """A child acts on what was committed."""

    def add_post_commit_topology(self, committed: Sequence[CommittableMessage[OfChild]]) -> None:
        for_each(
            self._with(SupportsPostCommitTopology),
            lambda name, child: child.add_post_commit_topology(_messages_of(name, committed)),
            "several sinks failed after they had committed",
        )


class ActsBeforeWrite(Composite, SupportsPreWriteTopology):
    """One child changes the DataFrame; the others get its rows as they then are."""

    def add_pre_write_topology(self, df: Any) -> Any:
        for name, child in self._with(SupportsPreWriteTopology).items():
            with of_child(name):
                df = child.add_pre_write_topology(df)
        return df


class Seals(Composite, SupportsSeal[Any]):
    """A child writes in place."""

    def seal(self, context: SealContext, parts: Sequence[PartSeal[Any]]) -> None:
        for_each(
            self._with(SupportsSeal),
            lambda name, child: child.seal(context, _seals_of(name, parts)),
            "several sinks could not be sealed",
            step=context.step_id,
            epoch=context.epoch,
        )


def _messages_of(name: str, messages: Sequence[CommittableMessage[OfChild]]) -> list[CommittableMessage[Any]]:
    return [replace(message, value=message.value.value) for message in messages if message.value.child == name]


def _seals_of(name: str, parts: Sequence[PartSeal[Any]]) -> list[PartSeal[Any]]:
    own = share(name, {part.part: part for part in parts})
    return [replace(part, part=inner) for inner, part in own.items()]


def _held_by(sink: Any, state: Any) -> HeldRows:
    return sink.held_rows(state) if supports(sink, SupportsHeldRows) else HeldRows(0)


def _sum_of(held: Sequence[HeldRows]) -> HeldRows:
    oldest = min((item.oldest for item in held if item.oldest is not None), default=None)
    return HeldRows(sum(item.rows for item in held), oldest)
