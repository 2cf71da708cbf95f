"""`Composite`: one sink that consists of others, which share one epoch and its record, each under its name."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from itertools import combinations
from typing import Any, Self

import pyarrow as pa

from outfall.capabilities import (
    OUTPUT_MODES,
    BufferedRows,
    CleanUpContext,
    CommittableMessage,
    CommitterInitContext,
    DeclaresCapabilities,
    DeclaresGuarantee,
    Guarantee,
    PartSeal,
    SaveMode,
    SealContext,
    SupportsBufferedRows,
    SupportsCommitter,
    SupportsCountCheck,
    SupportsPostCommitTopology,
    SupportsPreCommitTopology,
    SupportsPreWriteTopology,
    SupportsSeal,
    SupportsTarget,
    SupportsWriterContext,
    SupportsWriterState,
    TargetCheck,
    TargetContext,
    WriterInitContext,
    shown_name,
)
from outfall.capability_checks import (
    SupportsChildren,
    SupportsNamedStates,
    bears_speculation,
    children_of,
    guarantee_of,
    in_save_mode,
    is_fixed,
    keeps_writer_state,
    kind_of,
    needs_same_rows,
    owns_target,
    requirements_of,
    supports,
    target_of,
)
from outfall.errors import CapabilityError, ConfigurationError
from outfall.protocol.states import hand_over_serializer, state_names, state_serializer
from outfall.serde import SimpleVersionedSerializer
from outfall.sinks import DynamicSink, FixedPartitionedSink
from outfall.wrappers.children import ChildMetrics, check_children, for_each, of_child, share
from outfall.wrappers.composite_committer import ChildValue, ChildValueSerializer, CompositeCommitter, ListSerializer
from outfall.wrappers.composite_partition import CompositePartition, Opening


class Composite(
    FixedPartitionedSink[Any, Mapping[str, Any]],
    DynamicSink[Any],
    DeclaresCapabilities,
    DeclaresGuarantee,
    SupportsChildren,
    SupportsCommitter[ChildValue],
    SupportsCountCheck,
    SupportsBufferedRows[Any],
    SupportsNamedStates,
    SupportsPostCommitTopology[ChildValue],
    SupportsPreCommitTopology[ChildValue, ChildValue],
    SupportsPreWriteTopology,
    SupportsSeal[Any],
    SupportsTarget[Any],
    SupportsWriterContext,
    SupportsWriterState[Any, ChildValue],
):
    """Base of sinks that consist of others: to the engine one sink, with one epoch and one record for all children.

    It has the capabilities of its children, and no others. It has parts if a child has them: part i stands for part i
    of every such child, and has its own writer in every child without parts. Counters, committables and states have the
    name of their child; errors have a note with it.

    Subclasses determine which child gets which rows, by overriding `open`.

    Args:
        children: sinks by name.

    Raises:
        ConfigurationError: there is no child, or a name is invalid.
        CapabilityError: a child cannot be used, alone or in the combination.
    """

    kind_name = "composite"
    """The stable name of the kind; the kind also contains whether there are parts."""

    chooses_bases_anew = True

    _parts: tuple[str, ...] = ()
    _parts_of: Mapping[str, tuple[str, ...]] = {}

    def __init__(self, children: Mapping[str, Any]) -> None:
        check_children(shown_name(self), children)
        self._children = dict(children)
        self._capabilities = _capabilities_of(self._children)
        self.context: WriterInitContext | None = None

    def __repr__(self) -> str:
        shown = (f"{name}={shown_name(child)}({target_of(child) or ''})" for name, child in self._children.items())
        return f"{shown_name(self)}({', '.join(shown)})"

    def capabilities(self) -> Collection[type]:
        return self._capabilities

    def children(self) -> Mapping[str, Any]:
        return self._children

    def kind(self) -> str:
        return f"{self.kind_name}/{'fixed' if is_fixed(self) else 'dynamic'}"

    def target(self) -> str:
        return ", ".join(f"{name}={target_of(child)}" for name, child in self._children.items())

    def bind(self, context: WriterInitContext) -> Self:
        bound = copy.copy(self)
        bound.context = context
        return bound

    def list_parts(self) -> list[str]:
        """List parts, each of which stands for one part of every fixed child.

        Raises:
            CapabilityError: the children have different numbers of parts.
        """
        listed = {name: tuple(child.list_parts()) for name, child in self._children.items() if is_fixed(child)}
        counts = {name: len(parts) for name, parts in listed.items()}
        if len(set(counts.values())) > 1:
            found = ", ".join(f"{name} {count}" for name, count in counts.items())
            raise CapabilityError(
                f"the sinks have different numbers of parts: {found}",
                why="a row would go to different tasks for the sinks",
                do="use the same number of parts in each, or write each in a separate step",
            )
        self._parts_of = listed
        columns = zip(*listed.values(), strict=True)
        self._parts = tuple("+".join(dict.fromkeys(column)) for column in columns)
        return list(self._parts)

    @property
    def part_fn(self) -> Callable[[str], int]:
        # The child's own method, so that a caller can check whether it is the default.
        fixed = [child for child in self._children.values() if is_fixed(child)]
        return fixed[0].part_fn if fixed else super().part_fn

    def build_part(self, step_id: str, for_part: str, resume_state: Mapping[str, Any] | None) -> CompositePartition:
        index, states = self._index(for_part), resume_state or {}
        return self.open({name: self._opening(name, index, states) for name in self._children})

    def build(self, step_id: str, worker_index: int, worker_count: int) -> CompositePartition:
        return self._build(())

    def restore_writer(self, context: WriterInitContext, recovered: Sequence[ChildValue]) -> CompositePartition:
        return self._build(recovered)

    def schema_for(self, name: str, schema: pa.Schema) -> pa.Schema:
        """Return the columns of the rows for a child, if the sink gets those of `schema`."""
        return schema

    def open(self, openings: Mapping[str, Opening]) -> CompositePartition:
        """Open the children's partitions. Called in a task. By default, each row goes to each child."""
        return CompositePartition(openings)

    @property
    def writer(self) -> WriterInitContext:
        """The context from `bind`.

        Raises:
            ConfigurationError: `bind` was not called.
        """
        if self.context is None:
            raise ConfigurationError(
                f"{shown_name(self)} has no writer context", do="run it with outfall, which calls bind() first"
            )
        return self.context

    def state_names(self, part: str) -> Sequence[str]:
        index = self._index(part)
        return [found for name in self._children for found in self._names_of(name, index)]

    def named_state_serializer(self, name: str) -> SimpleVersionedSerializer[Any]:
        child, _, own = name.partition("/")
        sink = self._children[child]
        return state_serializer(sink, own) if is_fixed(sink) else ListSerializer(sink.writer_state_serializer())

    def keeps_writer_state(self) -> bool:
        return any(map(keeps_writer_state, self._children.values()))

    def writer_state_serializer(self) -> ChildValueSerializer:
        children = self._with(SupportsWriterState)
        return ChildValueSerializer({name: child.writer_state_serializer for name, child in children.items()})

    def buffered_rows(self, state: ChildValue | Mapping[str, Any]) -> BufferedRows:
        if isinstance(state, ChildValue):
            return _held_by(self._children[state.child], state.value)
        return _sum_of([self._held_under(name, value) for name, value in state.items()])

    def max_time_in_buffer(self) -> timedelta:
        found: list[timedelta] = [child.max_time_in_buffer() for child in self._with(SupportsBufferedRows).values()]
        return max(found)

    def guarantee(self) -> Guarantee:
        return min(guarantee_of(child) for child in self._children.values())

    def requires(self) -> Sequence[str]:
        return tuple(f"{name}: {text}" for name, child in self._children.items() for text in requirements_of(child))

    def needs_same_rows(self) -> bool:
        return any(map(needs_same_rows, self._children.values()))

    def bears_speculation(self) -> bool:
        return all(map(bears_speculation, self._children.values()))

    def check_target(self, context: TargetContext[Any]) -> TargetCheck[Any]:
        self._check_distinct(context.step_id)
        checks = for_each(
            self._with(SupportsTarget),
            lambda name, child: child.check_target(self._share(name, context)),
            "several targets do not match the recovery data",
            step=context.step_id,
            epoch=context.epoch,
        )
        of_children = {
            name: check if isinstance(check, TargetCheck) else TargetCheck(check) for name, check in checks.items()
        }
        states = {
            f"{name}/{part}": state
            for name, check in of_children.items()
            for part, state in check.states.items()
            if f"{name}/{part}" not in context.states or self._children[name].chooses_bases_anew
        }
        return TargetCheck(states, {name: check.found for name, check in of_children.items()})

    def open_target(self, context: TargetContext[Any]) -> None:
        for_each(
            self._with(SupportsTarget),
            lambda name, child: child.open_target(self._share(name, context)),
            "several targets could not be opened",
            step=context.step_id,
            epoch=context.epoch,
        )

    def check_schema(self, schema: pa.Schema) -> None:
        for_each(
            self._with(SupportsTarget),
            lambda name, child: child.check_schema(self.schema_for(name, schema)),
            "several sinks cannot write these columns",
        )

    def clean_up(self, context: CleanUpContext) -> int:
        removed = for_each(
            self._with(SupportsTarget),
            lambda name, child: int(child.clean_up(_clean_up_of(name, child, context))),
            "several sinks could not be cleaned up",
            step=context.step_id,
        )
        return sum(removed.values())

    def find_leftovers(self, context: CleanUpContext) -> Sequence[str] | None:
        found = for_each(
            self._with(SupportsTarget),
            lambda name, child: child.find_leftovers(_clean_up_of(name, child, context)),
            "several sinks could not be checked",
            step=context.step_id,
        )
        told = {name: leftovers for name, leftovers in found.items() if leftovers is not None}
        if len(told) < len(found):
            # Without an error for one sink, the findings of the others would appear complete.
            return None
        return [f"{name}: {leftover}" for name, leftovers in told.items() for leftover in leftovers]

    def withdraw(self, context: CleanUpContext) -> None:
        for_each(
            self._with(SupportsTarget),
            lambda name, child: child.withdraw(_clean_up_of(name, child, context)),
            "several targets could not be withdrawn",
            step=context.step_id,
        )

    def check_connection(self) -> Sequence[str]:
        found = for_each(
            self._with(SupportsTarget),
            lambda name, child: list(child.check_connection()),
            "several sinks cannot reach their destinations",
        )
        silent = [name for name in self.children() if not found.get(name)]
        return [f"{name}: {line}" for name, lines in found.items() for line in lines] + [
            f"{name}: has no connection check" for name in silent
        ]

    def owns_target(self) -> bool:
        # Each child does it for itself.
        return False

    def in_save_mode(self, mode: SaveMode | None) -> Self:
        changed = copy.copy(self)
        changed._children = for_each(
            self._children,
            lambda name, child: in_save_mode(child, self.save_mode_of(name, mode)),
            "several sinks do not support this save mode",
        )
        changed._capabilities = _capabilities_of(changed._children)
        return changed

    def save_mode_of(self, name: str, mode: SaveMode | None) -> SaveMode | None:
        """Return the save mode of a child, if the composite has `mode`."""
        return mode

    def output_modes(self) -> Collection[str]:
        targets = self._with(SupportsTarget).values()
        return [mode for mode in OUTPUT_MODES if all(mode in child.output_modes() for child in targets)]

    def add_pre_write_topology(self, df: Any) -> Any:
        for name, child in self._with(SupportsPreWriteTopology).items():
            with of_child(name):
                df = child.add_pre_write_topology(df)
        return df

    def seal(self, context: SealContext, parts: Sequence[PartSeal[Any]]) -> None:
        for_each(
            self._with(SupportsSeal),
            lambda name, child: child.seal(context, _seals_of(name, parts)),
            "several sinks could not be sealed",
            step=context.step_id,
            epoch=context.epoch,
        )

    def check_counts(self, counts: Mapping[str, int], examples: Mapping[str, str]) -> None:
        for_each(
            self._with(SupportsCountCheck),
            lambda name, child: child.check_counts(
                share(name, counts, separator="."), share(name, examples, separator=".")
            ),
            "several sinks reject the counts of their tasks",
        )

    def create_committer(self, context: CommitterInitContext) -> CompositeCommitter:
        return CompositeCommitter(self._with(SupportsCommitter), context)

    def committable_serializer(self) -> ChildValueSerializer:
        return ChildValueSerializer({n: c.committable_serializer for n, c in self._with(SupportsCommitter).items()})

    def write_result_serializer(self) -> ChildValueSerializer:
        return ChildValueSerializer(
            {n: lambda c=c: hand_over_serializer(c) for n, c in self._with(SupportsCommitter).items()}  # type: ignore[misc]
        )

    def add_pre_commit_topology(
        self, results: Sequence[CommittableMessage[ChildValue]]
    ) -> Sequence[CommittableMessage[ChildValue]]:
        acting = self._with(SupportsPreCommitTopology)
        passing = [message for message in results if message.value.child not in acting]
        made = for_each(
            acting,
            lambda name, child: child.add_pre_commit_topology(_messages_of(name, results)),
            "several sinks could not prepare their commit",
        )
        return passing + [
            replace(message, value=ChildValue(name, message.value)) for name, found in made.items() for message in found
        ]

    def add_post_commit_topology(self, committed: Sequence[CommittableMessage[ChildValue]]) -> None:
        for_each(
            self._with(SupportsPostCommitTopology),
            lambda name, child: child.add_post_commit_topology(_messages_of(name, committed)),
            "several sinks failed after they had committed",
        )

    def _check_distinct(self, step_id: str) -> None:
        owners = {name: child for name, child in children_of(self).items() if owns_target(child)}
        places = {name: (kind_of(child).partition("/")[0], child.place()) for name, child in owners.items()}
        for one, other in combinations(owners, 2):
            if places[one] == places[other]:
                found = f"the sinks {one} and {other} write to the same target {owners[other].target()}"
            elif _lies_within(places[one], places[other]) or _lies_within(places[other], places[one]):
                found = f"the sinks {one} and {other} write to {owners[one].target()} and {owners[other].target()},"
                found += " and one of these contains the other"
            else:
                continue
            raise ConfigurationError(
                found,
                step=step_id,
                why="each would treat the other's data as its own",
                do="use separate targets",
            )

    def _with(self, capability: type) -> dict[str, Any]:
        """The children that have a capability."""
        return {name: child for name, child in self._children.items() if supports(child, capability)}

    def _share(self, name: str, context: TargetContext[Any]) -> TargetContext[Any]:
        """The part of the target's recovery data that concerns one child."""
        known, completed = context.known_children, context.completed
        got_one = name in known and completed is not None and completed >= known[name]
        return replace(
            context,
            # A child that is new to the recovery data has a new target too. Epochs completed before do not concern that
            # target.
            first_contact=context.first_contact or name not in known,
            completed=completed if got_one else None,
            states=share(name, context.states) if is_fixed(self._children[name]) else {},
            known_children=share(name, known, separator="."),
            published=context.children_published.get(name),
            children_published=share(name, context.children_published, separator="."),
            found=(context.found or {}).get(name),
        )

    def _build(self, recovered: Sequence[ChildValue]) -> CompositePartition:
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

    def _opening(self, name: str, index: int, states: Mapping[str, Any]) -> Opening:
        child, metrics = self._children[name], ChildMetrics(self.writer.metrics, name)
        if is_fixed(child):
            context = replace(self.writer, part=self._parts_of[name][index], metrics=metrics)
            return Opening(child, context, states=share(name, states), recovered=())
        context = replace(
            self.writer,
            part=None,
            # One task may write several parts, and so have several writers of this child: each is a separate worker.
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

    def _held_under(self, name: str, state: Any) -> BufferedRows:
        child, _, own = name.partition("/")
        sink = self._children[child]
        if supports(sink, SupportsNamedStates):
            return _held_by(sink, {own: state})
        return _held_by(sink, state) if is_fixed(sink) else _sum_of([_held_by(sink, item) for item in state])


class CompositeSink(Composite):
    """Passes each row to every child."""


_OF_ANY_CHILD = (
    SupportsCommitter,
    SupportsCountCheck,
    SupportsBufferedRows,
    SupportsPostCommitTopology,
    SupportsPreCommitTopology,
    SupportsPreWriteTopology,
    SupportsSeal,
)
"""Capabilities that the composite has if any child has them."""


def _capabilities_of(children: Mapping[str, Any]) -> tuple[type, ...]:
    def one_has(capability: type) -> bool:
        return any(supports(child, capability) for child in children.values())

    found: list[type] = [DeclaresGuarantee, SupportsChildren, SupportsTarget, SupportsWriterContext]
    found += filter(one_has, _OF_ANY_CHILD)
    if one_has(FixedPartitionedSink):
        # States of writers are then stored next to those of the parts.
        return (*found, FixedPartitionedSink, SupportsNamedStates)
    return (*found, DynamicSink, SupportsWriterState) if one_has(SupportsWriterState) else (*found, DynamicSink)


def _lies_within(inner: tuple[str, str], outer: tuple[str, str]) -> bool:
    return inner[0] == outer[0] and outer[1].endswith("/") and inner[1].startswith(outer[1])


def _clean_up_of(name: str, child: Any, context: CleanUpContext) -> CleanUpContext:
    """The context with the states of one child. Writer states next to parts are lists, by the names of the parts."""

    def own() -> dict[str, Any]:
        return share(name, context.states())

    def writer_states() -> list[Any]:
        listed = [] if is_fixed(child) else [item for items in own().values() for item in items]
        return [item.value for item in context.writer_states() if item.child == name] + listed

    return replace(context, states=own if is_fixed(child) else dict, writer_states=writer_states)


def _messages_of(name: str, messages: Sequence[CommittableMessage[ChildValue]]) -> list[CommittableMessage[Any]]:
    return [replace(message, value=message.value.value) for message in messages if message.value.child == name]


def _seals_of(name: str, parts: Sequence[PartSeal[Any]]) -> list[PartSeal[Any]]:
    own = share(name, {part.part: part for part in parts})
    return [replace(part, part=inner) for inner, part in own.items()]


def _held_by(sink: Any, state: Any) -> BufferedRows:
    return sink.buffered_rows(state) if supports(sink, SupportsBufferedRows) else BufferedRows(0)


def _sum_of(held: Sequence[BufferedRows]) -> BufferedRows:
    oldest = min((item.oldest for item in held if item.oldest is not None), default=None)
    return BufferedRows(sum(item.rows for item in held), oldest)
