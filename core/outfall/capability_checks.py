"""Checks which capabilities a sink or partition has, and whether they fit. Behavior counts, not base classes."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal, TypeGuard, TypeVar

from outfall.capabilities import (
    OUTPUT_MODES,
    DeclaresCapabilities,
    DeclaresGuarantee,
    DeclaresRoutingKey,
    Guarantee,
    SaveMode,
    SupportsArrow,
    SupportsBufferedRows,
    SupportsCommitter,
    SupportsDeadLetterSink,
    SupportsFlush,
    SupportsPostCommitTopology,
    SupportsPreCommitTopology,
    SupportsSeal,
    SupportsStateSerializer,
    SupportsTarget,
    SupportsWriterContext,
    SupportsWriterState,
    WithCompatibleState,
    class_name,
    no_save_mode,
)
from outfall.errors import CapabilityError, ConfigurationError
from outfall.serde import SimpleVersionedSerializer
from outfall.sinks import DynamicSink, FixedPartitionedSink

T = TypeVar("T")


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


def supports(thing: object, capability: type[T]) -> TypeGuard[T]:
    """Return whether a sink or a partition has a capability. Engine, wrappers and suite use only this check.

    Args:
        thing: A sink or an open partition of any class.
        capability: A class of `outfall.capabilities`, or `FixedPartitionedSink` or `DynamicSink`.
    """
    if isinstance(thing, DeclaresCapabilities):
        declared = thing.capabilities()
        return capability in declared or any(issubclass(found, capability) for found in declared)
    if capability is FixedPartitionedSink:
        return callable(getattr(thing, "list_parts", None)) and callable(getattr(thing, "build_part", None))
    if capability is DynamicSink:
        return callable(getattr(thing, "build", None))
    return isinstance(thing, capability)


def is_fixed(sink: object) -> bool:
    """Return whether the sink has a fixed list of parts."""
    return supports(sink, FixedPartitionedSink)


def is_dynamic(sink: object) -> bool:
    """Return whether the sink is built per task."""
    return supports(sink, DynamicSink)


def routes_by_default(sink: object) -> bool:
    """Return whether a fixed sink uses the default `part_fn`, so that routing can stay in the JVM."""
    return getattr(getattr(sink, "part_fn", None), "__func__", None) is FixedPartitionedSink.part_fn


def guarantee_of(sink: object) -> Guarantee:
    """Return the declared guarantee, or `AT_LEAST_ONCE` if there is none or the sink cannot be fenced."""
    if supports(sink, SupportsWriterContext) and supports(sink, DeclaresGuarantee):
        return sink.guarantee()
    return Guarantee.AT_LEAST_ONCE


def requirements_of(sink: object) -> Sequence[str]:
    """Return the conditions of the sink's guarantee on its environment."""
    return tuple(sink.requires()) if supports(sink, DeclaresGuarantee) else ()


def needs_same_rows(sink: object) -> bool:
    """Return whether the sink's guarantee requires the same rows in a replay."""
    return supports(sink, DeclaresGuarantee) and sink.needs_same_rows()


def bears_speculation(sink: object) -> bool:
    """Return whether two attempts of a task may run in parallel."""
    return not supports(sink, DeclaresGuarantee) or sink.bears_speculation()


def routing_key_of(sink: object) -> str | None:
    """Return the default routing column, or `None` if there is none."""
    if not supports(sink, SupportsChildren):
        return sink.routing_key() if supports(sink, DeclaresRoutingKey) else None
    keys = {routing_key_of(child) for child in sink.children().values() if is_fixed(child)}
    return keys.pop() if len(keys) == 1 else None


def check_unresumed(sink: object) -> None:
    """Reject a sink whose failed epoch can be completed but not rolled back, for a job that cannot be repeated.

    The tasks of such a sink publish in place. A replay distinguishes repeated rows from new ones by comparison.

    Raises:
        CapabilityError: The sink requires `epoch` and `recovery`.
    """
    children = children_of(sink).values()
    for child in children:
        check_unresumed(child)
    if not children and supports(sink, SupportsSeal) and needs_same_rows(sink):
        raise CapabilityError(
            f"a job with {type(sink).__name__} requires epoch= and recovery=",
            why="its tasks publish their own rows. If one task fails, the rows of the others cannot be rolled back, and"
            " only the same job can complete them",
            do="pass epoch= and recovery=, and repeat a failed job with the same values; or let the driver publish"
            " (without parts)",
        )


def keeps_writer_state(sink: object) -> bool:
    """Return whether a dynamic sink keeps state for the next epoch."""
    return supports(sink, SupportsWriterState) and sink.keeps_writer_state()


def kind_of(sink: object) -> str:
    """Return the kind of the sink as stored in the recovery data."""
    # By base class: a delegating sink has the kind of its worker, whatever the worker supports.
    return sink.kind() if isinstance(sink, SupportsTarget) else class_name(sink)


def target_of(sink: object) -> str | None:
    """Return the name of the target, or `None` if the sink has none."""
    return sink.target() if supports(sink, SupportsTarget) else None


def owns_target(sink: object) -> bool:
    """Return whether the sink takes over the data in its target. See `SupportsTarget.owns_target`."""
    return supports(sink, SupportsTarget) and sink.owns_target()


def in_save_mode(sink: Any, mode: SaveMode | None) -> Any:
    """Return the sink for a save mode of a batch job. See `SupportsTarget.in_save_mode`.

    Raises:
        ConfigurationError: The sink does not support the mode, or its options contradict it.
    """
    if supports(sink, SupportsTarget):
        return sink.in_save_mode(mode)
    if mode in ("error", "overwrite"):
        raise no_save_mode(sink, mode)
    return sink


def check_output_mode(sink: Any, mode: str) -> None:
    """Reject a streaming query that sends changed rows again if the sink only adds rows.

    Raises:
        ConfigurationError: States the alternatives.
    """
    modes = sink.output_modes() if supports(sink, SupportsTarget) else OUTPUT_MODES
    if mode not in modes:
        raise ConfigurationError(
            f"the query's output mode is {mode}, and {type(sink).__name__} takes {' and '.join(modes)} only",
            why="Spark sends changed rows again, and the sink would add them to their old versions",
            do='use .outputMode("append"), with a watermark if rows are aggregated; or use a sink that upserts, such as'
            ' PostgresSink(…, write_mode="upsert", key_columns=…); or pass the rows that are to be added to'
            " for_each_batch(…) in your own foreachBatch function",
        )


def children_of(sink: object) -> dict[str, Any]:
    """Return the children of a composite sink, and their children as `child.grandchild`."""
    if not supports(sink, SupportsChildren):
        return {}
    found: dict[str, Any] = {}
    for name, child in sink.children().items():
        found |= {name: child} | {f"{name}.{inner}": sink for inner, sink in children_of(child).items()}
    return found


def check_sink(sink: Any) -> None:
    """Check the capabilities of a sink before any data moves.

    Raises:
        CapabilityError: A capability is missing or does not fit the others.
    """
    if isinstance(sink, type):
        raise CapabilityError(f"{sink.__name__} is a class, not a sink", do=f"create an instance: {sink.__name__}(…)")
    name = type(sink).__name__
    if is_fixed(sink) == is_dynamic(sink):
        has = (
            "both list_parts/build_part and build" if is_fixed(sink) else "neither list_parts and build_part nor build"
        )
        raise CapabilityError(
            f"{name} has {has}", do="derive it from FixedPartitionedSink or DynamicSink (outfall.sinks), not both"
        )
    for mixin, needs in _NEEDS.items():
        if supports(sink, mixin) and not supports(sink, needs):
            raise CapabilityError(f"{name} has {mixin.__name__} but not {needs.__name__}", do=f"add {needs.__name__}")
    for mixin in (SupportsSeal, SupportsStateSerializer, SupportsNamedStates):
        if supports(sink, mixin) and not is_fixed(sink):
            raise CapabilityError(
                f"{name} has {mixin.__name__} but no parts", do="derive it from FixedPartitionedSink, or drop the mixin"
            )
    if supports(sink, SupportsBufferedRows) and not (is_fixed(sink) or supports(sink, SupportsWriterState)):
        raise CapabilityError(
            f"{name} has SupportsBufferedRows but no state for the rows",
            do="add SupportsWriterState, or derive it from FixedPartitionedSink",
        )
    if supports(sink, SupportsWriterState) and is_fixed(sink):
        raise CapabilityError(
            f"{name} has SupportsWriterState and fixed parts", do="keep the state of a part in its snapshot()"
        )


def flush(partition: Any, *, end_of_input: bool) -> None:
    """Flush an open partition that buffers values. Does nothing for a partition without `flush`.

    A `flush` without arguments, as in some Bytewax partitions, is assumed to send all values.
    """
    takes = _flush_takes(partition)
    if takes == "nothing":
        partition.flush()
    elif takes is not None:
        partition.flush(end_of_input=end_of_input)


def _flush_takes(partition: Any) -> Literal["end_of_input", "nothing", "something else"] | None:
    if not supports(partition, SupportsFlush):
        return None
    try:
        signature = inspect.signature(partition.flush)
    except ValueError:  # a builtin without a signature
        return "end_of_input"
    with suppress(TypeError):
        signature.bind(end_of_input=True)
        return "end_of_input"
    with suppress(TypeError):
        signature.bind()
        return "nothing"
    return "something else"


def check_partition(sink: Any, partition: Any) -> None:
    """Check an open partition against the capabilities of its sink, before the first row is written.

    Raises:
        CapabilityError: A method is missing or has the wrong signature.
    """
    needed = ["write_batch"] if not supports(partition, SupportsArrow) else []
    needed += ["snapshot"] if is_fixed(sink) else []
    needed += ["prepare_commit"] if supports(sink, SupportsCommitter) else []
    needed += ["dead_letters_to"] if supports(sink, SupportsDeadLetterSink) else []
    needed += ["flush"] if supports(sink, SupportsBufferedRows) else []
    needed += ["snapshot_state"] if supports(sink, SupportsWriterState) else []
    for method in needed:
        if not callable(getattr(partition, method, None)):
            raise CapabilityError(
                f"{type(sink).__name__} built a {type(partition).__name__} that has no {method}()",
                do=f"add {method}() to the partition, or drop the capability that requires it from the sink",
            )
    takes = _flush_takes(partition)
    if takes == "something else" or (takes == "nothing" and supports(sink, SupportsBufferedRows)):
        raise CapabilityError(
            f"{type(sink).__name__} built a {type(partition).__name__} whose flush() does not take end_of_input",
            do="define it as flush(self, end_of_input: bool), or rename it",
        )


_NEEDS: dict[type, type] = {
    SupportsPreCommitTopology: SupportsCommitter,
    SupportsPostCommitTopology: SupportsCommitter,
    WithCompatibleState: SupportsWriterState,
    SupportsSeal: SupportsWriterContext,
}
