"""`Composite`: one sink that consists of others, which share one epoch and its record, each under its name."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from itertools import combinations
from typing import Any, Self, TypeVar

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
    changed,
    shown_name,
)
from outfall.capability_checks import ResolvedSink, SupportsChildren, SupportsNamedStates, resolve
from outfall.errors import CapabilityError, ConfigurationError
from outfall.serde import SimpleVersionedSerializer
from outfall.sinks import DynamicSink, FixedPartitionedSink
from outfall.wrappers.children import ChildMetrics, check_children, for_each, of_child, share
from outfall.wrappers.composite_committer import ChildValue, ChildValueSerializer, CompositeCommitter, ListSerializer
from outfall.wrappers.composite_partition import CompositePartition, Opening

G = TypeVar("G")


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

    reselects_base_states = True

    _parts: tuple[str, ...] = ()
    _parts_of: Mapping[str, tuple[str, ...]] = {}

    def __init__(self, children: Mapping[str, Any]) -> None:
        self.resolved = check_children(shown_name(self), children)

    def __repr__(self) -> str:
        described = (
            f"{name}={shown_name(child.sink)}({child.target() or ''})" for name, child in self.resolved.items()
        )
        return f"{shown_name(self)}({', '.join(described)})"

    def capabilities(self) -> Collection[type]:
        found = frozenset[type]().union(*(child.capabilities for child in self.resolved.values()))
        own = found.intersection(type(self).__mro__)
        own |= {DeclaresGuarantee, SupportsChildren, SupportsTarget, SupportsWriterContext}
        if FixedPartitionedSink in found:
            # States of writers are then stored next to those of the parts.
            return own - {DynamicSink, SupportsWriterState} | {SupportsNamedStates}
        return own

    def children(self) -> Mapping[str, Any]:
        return {name: child.sink for name, child in self.resolved.items()}

    def kind(self) -> str:
        return f"{self.kind_name}/{'fixed' if self._fixed() else 'dynamic'}"

    def target(self) -> str:
        return ", ".join(f"{name}={child.target()}" for name, child in self.resolved.items())

    def list_parts(self) -> list[str]:
        """List parts, each of which stands for one part of every fixed child.

        Raises:
            CapabilityError: the children have different numbers of parts.
        """
        listed = {name: tuple(child.list_parts()) for name, child in self._fixed().items()}
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
        fixed = [*self._fixed().values()]
        return fixed[0].part_fn if fixed else super().part_fn

    def build_part(self, step_id: str, for_part: str, resume_state: Mapping[str, Any] | None) -> CompositePartition:
        index, states = self._index(for_part), resume_state or {}
        return self.open({name: self._opening(name, index, states) for name in self.resolved})

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

    def state_names(self, part: str) -> Sequence[str]:
        index = self._index(part)
        return [found for name in self.resolved for found in self._names_of(name, index)]

    def named_state_serializer(self, name: str) -> SimpleVersionedSerializer[Any]:
        child, _, own = name.partition("/")
        owner = self.resolved[child]
        return owner.state_serializer(own) if owner.fixed else ListSerializer(owner.sink.writer_state_serializer())

    def keeps_writer_state(self) -> bool:
        return any(child.keeps_writer_state() for child in self.resolved.values())

    def writer_state_serializer(self) -> ChildValueSerializer:
        children = self._with(SupportsWriterState)
        return ChildValueSerializer({name: child.writer_state_serializer for name, child in children.items()})

    def buffered_rows(self, state: ChildValue | Mapping[str, Any]) -> BufferedRows:
        if isinstance(state, ChildValue):
            return _buffered_by(self.resolved[state.child], state.value)
        return _sum_of([self._buffered_under(name, value) for name, value in state.items()])

    def max_time_in_buffer(self) -> timedelta:
        found: list[timedelta] = [child.max_time_in_buffer() for child in self._with(SupportsBufferedRows).values()]
        return max(found)

    def guarantee(self) -> Guarantee:
        return min(child.guarantee() for child in self.resolved.values())

    def requires(self) -> Sequence[str]:
        return tuple(f"{name}: {text}" for name, child in self.resolved.items() for text in child.requirements())

    def needs_same_rows(self) -> bool:
        return any(child.needs_same_rows() for child in self.resolved.values())

    def replaces_rows(self) -> bool:
        return any(child.replaces_rows() for child in self.resolved.values())

    def keeps_newer_rows(self) -> bool:
        return not any(child.may_replace_newer_rows() for child in self.resolved.values())

    def supports_speculation(self) -> bool:
        return all(child.supports_speculation() for child in self.resolved.values())

    def check_target(self, context: TargetContext[Any]) -> TargetCheck[Any]:
        self._check_distinct(context.step_id)
        failed = "several targets do not match the recovery data"
        checks = self._pass_on(SupportsTarget, "check_target", self._share, context, failed)
        of_children = {
            name: check if isinstance(check, TargetCheck) else TargetCheck(check) for name, check in checks.items()
        }
        states = {
            f"{name}/{part}": state
            for name, check in of_children.items()
            for part, state in check.states.items()
            if f"{name}/{part}" not in context.states or self.resolved[name].sink.reselects_base_states
        }
        return TargetCheck(states, {name: check.found for name, check in of_children.items()})

    def open_target(self, context: TargetContext[Any]) -> None:
        self._pass_on(SupportsTarget, "open_target", self._share, context, "several targets could not be opened")

    def check_schema(self, schema: pa.Schema) -> None:
        self._pass_on(
            SupportsTarget, "check_schema", self.schema_for, schema, "several sinks cannot write these columns"
        )

    def clean_up(self, context: CleanUpContext) -> int:
        failed = "several sinks could not be cleaned up"
        return sum(self._pass_on(SupportsTarget, "clean_up", self._clean_up_of, context, failed).values())

    def find_leftovers(self, context: CleanUpContext) -> Sequence[str] | None:
        failed = "several sinks could not be checked"
        found = self._pass_on(SupportsTarget, "find_leftovers", self._clean_up_of, context, failed)
        known = {name: leftovers for name, leftovers in found.items() if leftovers is not None}
        if len(known) < len(found):
            # Without an error for one sink, the findings of the others would appear complete.
            return None
        return [f"{name}: {leftover}" for name, leftovers in known.items() for leftover in leftovers]

    def withdraw(self, context: CleanUpContext) -> None:
        failed = "several targets could not be withdrawn"
        self._pass_on(SupportsTarget, "withdraw", self._clean_up_of, context, failed)

    def check_connection(self) -> Sequence[str]:
        found = for_each(
            self._with(SupportsTarget),
            lambda name, child: list(child.check_connection()),
            "several sinks cannot reach their destinations",
        )
        silent = [name for name in self.resolved if not found.get(name)]
        return [f"{name}: {line}" for name, lines in found.items() for line in lines] + [
            f"{name}: has no connection check" for name in silent
        ]

    def owns_target(self) -> bool:
        # Each child does it for itself.
        return False

    def in_save_mode(self, mode: SaveMode | None) -> Self:
        resolved = for_each(
            self.resolved,
            lambda name, child: resolve(child.in_save_mode(self.save_mode_of(name, mode))),
            "several sinks do not support this save mode",
        )
        return changed(self, resolved=resolved)

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
        children = self._with(SupportsCommitter)
        return ChildValueSerializer({name: self.resolved[name].hand_over_serializer for name in children})

    def add_pre_commit_topology(
        self, results: Sequence[CommittableMessage[ChildValue]]
    ) -> Sequence[CommittableMessage[ChildValue]]:
        acting = self._with(SupportsPreCommitTopology)
        passing = [message for message in results if message.value.child not in acting]
        failed = "several sinks could not prepare their commit"
        made = self._pass_on(SupportsPreCommitTopology, "add_pre_commit_topology", _messages_of, results, failed)
        return passing + [
            replace(message, value=ChildValue(name, message.value)) for name, found in made.items() for message in found
        ]

    def add_post_commit_topology(self, committed: Sequence[CommittableMessage[ChildValue]]) -> None:
        failed = "several sinks failed after they had committed"
        self._pass_on(SupportsPostCommitTopology, "add_post_commit_topology", _messages_of, committed, failed)

    def _check_distinct(self, step_id: str) -> None:
        owners = {name: child for name, child in resolve(self).children().items() if child.owns_target()}
        places = {name: (child.kind().partition("/")[0], child.sink.place()) for name, child in owners.items()}
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
        return {name: child.sink for name, child in self.resolved.items() if capability in child.capabilities}

    def _fixed(self) -> dict[str, Any]:
        return self._with(FixedPartitionedSink)

    def _pass_on(
        self, capability: type, method: str, part_of: Callable[[str, G], Any], given: G, failed: str
    ) -> dict[str, Any]:
        """Call a method of every child with a capability, with the child's part of what was given. See `for_each`."""
        return for_each(
            self._with(capability),
            lambda name, child: getattr(child, method)(part_of(name, given)),
            failed,
            step=getattr(given, "step_id", None),
            epoch=getattr(given, "epoch", None),
        )

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
            states=share(name, context.states) if self.resolved[name].fixed else {},
            known_children=share(name, known, separator="."),
            published=context.children_published.get(name),
            children_published=share(name, context.children_published, separator="."),
            found=(context.found or {}).get(name),
        )

    def _build(self, recovered: Sequence[ChildValue]) -> CompositePartition:
        writer = self.writer_context()
        return self.open(
            {
                name: Opening(
                    child,
                    replace(writer, metrics=ChildMetrics(writer.metrics, name)),
                    states={},
                    recovered=[item.value for item in recovered if item.child == name],
                )
                for name, child in self.resolved.items()
            }
        )

    def _opening(self, name: str, index: int, states: Mapping[str, Any]) -> Opening:
        child, writer = self.resolved[name], self.writer_context()
        metrics = ChildMetrics(writer.metrics, name)
        if child.fixed:
            context = replace(writer, part=self._parts_of[name][index], metrics=metrics)
            return Opening(child, context, states=share(name, states), recovered=())
        context = replace(
            writer,
            part=None,
            # One task may write several parts, and so have several writers of this child: each is a separate worker.
            worker_index=index,
            worker_count=len(self._parts),
            attempt=writer.attempt * len(self._parts) + index,
            metrics=metrics,
        )
        kept_as = next(iter(self._names_of(name, index)), None)
        return Opening(child, context, states={}, recovered=states.get(kept_as or "", ()), kept_as=kept_as)

    def _names_of(self, name: str, index: int) -> Sequence[str]:
        child = self.resolved[name]
        if child.fixed:
            return [f"{name}/{own}" for own in child.state_names(self._parts_of[name][index])]
        return [f"{name}/writer-{index:05d}"] if SupportsWriterState in child.capabilities else []

    def _index(self, part: str) -> int:
        if part not in self._parts:
            self.list_parts()
        return self._parts.index(part)

    def _buffered_under(self, name: str, state: Any) -> BufferedRows:
        child, _, own = name.partition("/")
        owner = self.resolved[child]
        if SupportsNamedStates in owner.capabilities:
            return _buffered_by(owner, {own: state})
        return _buffered_by(owner, state) if owner.fixed else _sum_of([_buffered_by(owner, item) for item in state])

    def _clean_up_of(self, name: str, context: CleanUpContext) -> CleanUpContext:
        """The context with the states of one child. Writer states next to parts are lists, by the parts' names."""
        fixed = self.resolved[name].fixed

        def own() -> dict[str, Any]:
            return share(name, context.states())

        def writer_states() -> list[Any]:
            listed = [] if fixed else [item for items in own().values() for item in items]
            return [item.value for item in context.writer_states() if item.child == name] + listed

        return replace(context, states=own if fixed else dict, writer_states=writer_states)


class CompositeSink(Composite):
    """Passes each row to every child."""


def _lies_within(inner: tuple[str, str], outer: tuple[str, str]) -> bool:
    return inner[0] == outer[0] and outer[1].endswith("/") and inner[1].startswith(outer[1])


def _messages_of(name: str, messages: Sequence[CommittableMessage[ChildValue]]) -> list[CommittableMessage[Any]]:
    return [replace(message, value=message.value.value) for message in messages if message.value.child == name]


def _seals_of(name: str, parts: Sequence[PartSeal[Any]]) -> list[PartSeal[Any]]:
    own = share(name, {part.part: part for part in parts})
    return [replace(part, part=inner) for inner, part in own.items()]


def _buffered_by(child: ResolvedSink, state: Any) -> BufferedRows:
    return child.sink.buffered_rows(state) if SupportsBufferedRows in child.capabilities else BufferedRows(0)


def _sum_of(held: Sequence[BufferedRows]) -> BufferedRows:
    oldest = min((item.oldest for item in held if item.oldest is not None), default=None)
    return BufferedRows(sum(item.rows for item in held), oldest)
