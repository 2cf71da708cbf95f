"""What a sink can do, found out once, and whether it fits. Behavior counts, not base classes."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from outfall.capabilities import (
    OUTPUT_MODES,
    CommittingSinkPartition,
    DeclaresCapabilities,
    DeclaresGuarantee,
    DeclaresKind,
    DeclaresRoutingKey,
    Guarantee,
    RowIdentity,
    SaveMode,
    SnapshotsWriterState,
    SupportsArrow,
    SupportsBufferedRows,
    SupportsCommitter,
    SupportsDeadLetters,
    SupportsFlush,
    SupportsPostCommitTopology,
    SupportsPreCommitTopology,
    SupportsSeal,
    SupportsSparkWriter,
    SupportsStateSerializer,
    SupportsTarget,
    SupportsWriterContext,
    SupportsWriterState,
    WithCompatibleState,
    class_name,
    no_save_mode,
)
from outfall.errors import CapabilityError, ConfigurationError
from outfall.serde import JsonSerializer, SimpleVersionedSerializer
from outfall.sinks import DynamicSink, FixedPartitionedSink

_log = logging.getLogger(__name__)


class SupportsNamedStates(ABC):
    """For wrappers only. On a fixed sink whose parts have several named states each.

    `build_part` then gets a mapping from name to state, or `None` if there is none. `snapshot()` returns such a
    mapping; a name that it omits keeps its state. In `check_target` and `seal`, the names replace those of the parts.
    """

    @abstractmethod
    def state_names(self, part: str) -> Sequence[str]:
        """Return the names of a part's states, which are unique in the sink and outlive the names of the parts."""

    @abstractmethod
    def named_state_serializer(self, name: str) -> SimpleVersionedSerializer[Any]:
        """Return the serializer that the recovery data stores the state of this name with."""


class SupportsChildren(ABC):
    """For wrappers only. On a composite sink: names its children for the recovery data."""

    @abstractmethod
    def children(self) -> Mapping[str, Any]:
        """Return the children by name. The name identifies a child across restarts, independent of the order.

        If a child of the recovery data is missing, or has another target now, the query fails. A new child starts
        without states.
        """


_METHODS: dict[type, tuple[str, ...]] = {
    FixedPartitionedSink: ("list_parts", "build_part"),
    DynamicSink: ("build",),
    CommittingSinkPartition: ("prepare_commit",),
    SnapshotsWriterState: ("snapshot_state",),
    SupportsArrow: ("write_record_batch",),
    SupportsDeadLetters: ("dead_letters_to",),
    SupportsFlush: ("flush",),
}
"""The capabilities of any class with these methods. Every other one belongs to the classes that derive from it."""


def capabilities_of(thing: object) -> frozenset[type]:
    """Return what a sink or an open partition of any class can do, as classes of `outfall.capabilities`.

    A sink also has `FixedPartitionedSink` or `DynamicSink`. A capability needs no entry in any list: the result has all
    classes that the class of `thing`, or what it declares (`DeclaresCapabilities`), derives from.
    """
    if isinstance(thing, DeclaresCapabilities):
        return frozenset[type]().union(*[declared.__mro__ for declared in thing.capabilities()])
    found = {*type(thing).__mro__, *_METHODS}
    for kind, methods in _METHODS.items():
        for method in methods:
            if not callable(getattr(thing, method, None)):
                found.discard(kind)
    return frozenset(found)


@dataclass(frozen=True)
class ResolvedSink:
    """A sink and what it can do. Made once, when the engine or a wrapper takes the sink up, and then only read."""

    sink: Any
    capabilities: frozenset[type]
    """The classes of `outfall.capabilities` that apply."""

    @property
    def name(self) -> str:
        """The name of the class, for messages."""
        return type(self.sink).__name__

    @property
    def fixed(self) -> bool:
        """Whether the sink has a fixed list of parts."""
        return FixedPartitionedSink in self.capabilities

    @property
    def dynamic(self) -> bool:
        """Whether the sink is built per task."""
        return DynamicSink in self.capabilities

    def guarantee(self) -> Guarantee:
        """Return the declared guarantee, or `AT_LEAST_ONCE` if there is none or the sink cannot be fenced."""
        if {SupportsWriterContext, DeclaresGuarantee} <= self.capabilities:
            declared: Guarantee = self.sink.guarantee()
            return declared
        return Guarantee.AT_LEAST_ONCE

    def requirements(self) -> Sequence[str]:
        """Return the conditions of the guarantee on the environment."""
        return tuple(self.sink.requires()) if DeclaresGuarantee in self.capabilities else ()

    def needs_same_rows(self) -> bool:
        """Return whether the guarantee requires the same rows in a replay."""
        return DeclaresGuarantee in self.capabilities and self.sink.needs_same_rows()

    def replaces_rows(self) -> bool:
        """Return whether a row can replace or delete a row of an earlier epoch."""
        return DeclaresGuarantee in self.capabilities and self.sink.replaces_rows()

    def may_replace_newer_rows(self) -> bool:
        """Return whether a row can replace or delete a newer one that was written before it."""
        return self.replaces_rows() and not self.sink.keeps_newer_rows()

    def supports_speculation(self) -> bool:
        """Return whether two attempts of a task may run in parallel."""
        return DeclaresGuarantee not in self.capabilities or self.sink.supports_speculation()

    def keeps_writer_state(self) -> bool:
        """Return whether a dynamic sink keeps state for the next epoch."""
        return SupportsWriterState in self.capabilities and self.sink.keeps_writer_state()

    def routing_key(self) -> str | None:
        """Return the default routing column, or `None` if there is none."""
        if SupportsChildren not in self.capabilities:
            return self.sink.routing_key() if DeclaresRoutingKey in self.capabilities else None
        keys = {child.routing_key() for child in map(resolve, self.sink.children().values()) if child.fixed}
        return keys.pop() if len(keys) == 1 else None

    def kind(self) -> str:
        """Return the kind of the sink as stored in the recovery data."""
        return self.sink.kind() if DeclaresKind in self.capabilities else class_name(self.sink)

    def target(self) -> str | None:
        """Return the name of the target, or `None` if the sink has none."""
        return self.sink.target() if SupportsTarget in self.capabilities else None

    def row_identity(self) -> RowIdentity | None:
        """Return what identifies a row in the target. See `SupportsTarget.row_identity`."""
        return self.sink.row_identity() if SupportsTarget in self.capabilities else None

    def applies_key_at_commit(self) -> bool:
        """Whether a commit applies the row identity of the running query. See `SupportsTarget`."""
        return SupportsTarget in self.capabilities and self.sink.applies_key_at_commit()

    def recovery_location(self) -> str | None:
        """Return a recovery location in the target's own database. See `SupportsTarget.recovery_location`."""
        return self.sink.recovery_location() if SupportsTarget in self.capabilities else None

    def owns_target(self) -> bool:
        """Return whether the sink takes over the data in its target. See `SupportsTarget.owns_target`."""
        return SupportsTarget in self.capabilities and self.sink.owns_target()

    def output_modes(self) -> Collection[str]:
        """Return the accepted output modes of streaming queries."""
        return self.sink.output_modes() if SupportsTarget in self.capabilities else OUTPUT_MODES

    def in_save_mode(self, mode: SaveMode | None) -> Any:
        """Return the sink for a save mode of a batch job. See `SupportsTarget.in_save_mode`, also for its error."""
        if SupportsTarget in self.capabilities:
            return self.sink.in_save_mode(mode)
        if mode in ("error", "overwrite"):
            raise no_save_mode(self.sink, mode)
        return self.sink

    def state_names(self, part: str) -> Sequence[str]:
        """Return the names of a part's states: its own name, unless it has several."""
        return tuple(self.sink.state_names(part)) if SupportsNamedStates in self.capabilities else (part,)

    def state_serializer(self, name: str) -> SimpleVersionedSerializer[Any]:
        """Return the serializer of the state of this name: the sink's, or JSON."""
        if SupportsNamedStates in self.capabilities:
            return self.sink.named_state_serializer(name)  # type: ignore[no-any-return]
        return self.sink.state_serializer() if SupportsStateSerializer in self.capabilities else JsonSerializer()

    def resume_state(self, part: str, states: Mapping[str, Any]) -> Any:
        """Return the state to pass to `build_part`, out of all states by name; `None` if there is none."""
        own = {name: states[name] for name in self.state_names(part) if name in states}
        if SupportsNamedStates in self.capabilities:
            return own or None
        return own.get(part)

    def states_after(self, part: str, snapshot: Any) -> Mapping[str, Any]:
        """Return the states in the result of a part's `snapshot()`, by name."""
        return snapshot if SupportsNamedStates in self.capabilities else {part: snapshot}

    def hand_over_serializer(self) -> SimpleVersionedSerializer[Any]:
        """Return the serializer of task results: write results before a pre-commit topology, otherwise committables."""
        if SupportsPreCommitTopology in self.capabilities:
            return self.sink.write_result_serializer()  # type: ignore[no-any-return]
        serializer: SimpleVersionedSerializer[Any] = self.sink.committable_serializer()
        return serializer

    def children(self) -> dict[str, ResolvedSink]:
        """Return the children of a composite sink, and their children as `child.grandchild`."""
        if SupportsChildren not in self.capabilities:
            return {}
        found: dict[str, ResolvedSink] = {}
        for name, child in self.sink.children().items():
            resolved = resolve(child)
            found |= {name: resolved} | {f"{name}.{inner}": each for inner, each in resolved.children().items()}
        return found


def resolve(sink: Any) -> ResolvedSink:
    """Find out what a sink of any class can do."""
    return ResolvedSink(sink, capabilities_of(sink))


def returned_list(
    owner: object, method: str, value: Any, *, step: str | None = None, part: str | None = None
) -> Sequence[Any]:
    """Return the value of a method that must return a list or tuple, or raise `CapabilityError`.

    A string would be split into its characters, and each would be recorded, so that the step could not continue.
    """
    if isinstance(value, list | tuple):
        return value
    raise CapabilityError(
        f"{type(owner).__name__}.{method}() returned a {type(value).__name__}",
        step=step,
        part=part,
        do="return a list, which may be empty",
    )


def routes_by_default(sink: object) -> bool:
    """Return whether a fixed sink uses the default `part_fn`, so that routing can stay in the JVM."""
    return getattr(getattr(sink, "part_fn", None), "__func__", None) is FixedPartitionedSink.part_fn


def check_unresumed(sink: ResolvedSink) -> None:
    """Reject a sink whose failed epoch can be completed but not rolled back, for a job that cannot be repeated.

    The tasks of such a sink publish in place, and a replay distinguishes repeated rows from new ones by comparison.
    Raises `CapabilityError`, because the sink requires `epoch` and `recovery`.
    """
    children = sink.children().values()
    for child in children:
        check_unresumed(child)
    if not children and SupportsSeal in sink.capabilities and sink.needs_same_rows():
        raise CapabilityError(
            f"a job with {sink.name} requires epoch= and recovery=",
            why="its tasks publish their own rows. If one task fails, the rows of the others cannot be rolled back, and"
            " only the same job can complete them",
            do="pass epoch= and recovery=, and repeat a failed job with the same values; or let the driver publish"
            " (without parts)",
        )


def check_output_mode(sink: ResolvedSink, mode: str) -> None:
    """Reject a query that sends changed rows again if the sink only adds rows. The error states the alternatives."""
    modes = sink.output_modes()
    if mode not in modes:
        raise ConfigurationError(
            f"the query's output mode is {mode}, and {sink.name} takes {' and '.join(modes)} only",
            why="Spark sends changed rows again, and the sink would add them to their old versions",
            do='use .outputMode("append"), with a watermark if rows are aggregated; or use a sink that upserts by'
            " key; or pass the rows that are to be added to for_each_batch(…) in your own foreachBatch function",
        )
    if mode == "complete" and sink.replaces_rows():
        _warn_of_kept_keys(sink.name)


@cache
def _warn_of_kept_keys(name: str) -> None:
    """Log once in this process what `complete` does not do: Spark does not say which keys have left the result."""
    _log.warning(
        "the query's output mode is complete: %s replaces the rows of each key of the result, and keeps those of keys"
        " that have left it, for example by a filter or a limit after the aggregation; filter when you read the target",
        name,
    )


def check_sink(sink: Any) -> ResolvedSink:
    """Find out what a sink can do, and check that it fits together, before any data moves.

    Raises `CapabilityError` if a capability is missing or does not fit the others.
    """
    if isinstance(sink, type):
        raise CapabilityError(f"{sink.__name__} is a class, not a sink", do=f"create an instance: {sink.__name__}(…)")
    resolved = resolve(sink)
    name, has = resolved.name, resolved.capabilities
    if resolved.fixed == resolved.dynamic:
        both = (
            "both list_parts/build_part and build" if resolved.fixed else "neither list_parts and build_part nor build"
        )
        raise CapabilityError(
            f"{name} has {both}", do="derive it from FixedPartitionedSink or DynamicSink (outfall.sinks), not both"
        )
    for mixin, needs in _NEEDS.items():
        if mixin in has and needs not in has:
            raise CapabilityError(f"{name} has {mixin.__name__} but not {needs.__name__}", do=f"add {needs.__name__}")
    for mixin in (SupportsSeal, SupportsStateSerializer, SupportsNamedStates):
        if mixin in has and not resolved.fixed:
            raise CapabilityError(
                f"{name} has {mixin.__name__} but no parts", do="derive it from FixedPartitionedSink, or drop the mixin"
            )
    if SupportsBufferedRows in has and not (resolved.fixed or SupportsWriterState in has):
        raise CapabilityError(
            f"{name} has SupportsBufferedRows but no state for the rows",
            do="add SupportsWriterState, or derive it from FixedPartitionedSink",
        )
    if SupportsWriterState in has and resolved.fixed:
        raise CapabilityError(
            f"{name} has SupportsWriterState and fixed parts", do="keep the state of a part in its snapshot()"
        )
    for child, found in resolved.children().items():
        if SupportsSparkWriter in found.capabilities:
            raise CapabilityError(
                f"{found.name} {child!r} of {name} lets Spark write the rows",
                why="a sink with children divides the rows among them in Python",
                do='omit writer="spark", or write to that sink in a step of its own',
            )
    return resolved


_NEEDS: dict[type, type] = {
    SupportsPreCommitTopology: SupportsCommitter,
    SupportsPostCommitTopology: SupportsCommitter,
    WithCompatibleState: SupportsWriterState,
    SupportsSeal: SupportsWriterContext,
    SupportsSparkWriter: SupportsCommitter,
}
