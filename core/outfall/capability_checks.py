"""What a given sink is and has, and whether that goes together. The engine checks behaviour, not ancestry."""

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
    """For wrappers only. On a fixed sink whose parts keep several states each, every one under a name of its own.

    `build_part` then gets a mapping from name to state, or `None` when there is none, and `snapshot()` returns one; a
    name that it leaves out keeps its state. `check_target` and `seal` speak of these names instead of parts.
    """

    @abstractmethod
    def state_names(self, part: str) -> Sequence[str]:
        """Return the names of a part's states. No two parts share one, and names outlive the names of the parts."""

    @abstractmethod
    def named_state_serializer(self, name: str) -> SimpleVersionedSerializer[Any]:
        """Return the serializer that the recovery data stores the state of this name with."""


class SupportsChildren(ABC):
    """For wrappers only. On a sink that consists of others: names them, for the recovery data."""

    @abstractmethod
    def children(self) -> Mapping[str, Any]:
        """Return the sinks by name. A name says which child it was before a restart, whatever the order.

        A child that the recovery data knows and that is gone, or writes elsewhere now, stops the query; a new one
        starts fresh.
        """


def supports(thing: object, capability: type[T]) -> TypeGuard[T]:
    """Whether a sink or a partition has a feature: the one place where engine, wrappers and suite ask.

    Args:
        thing: a sink or an open partition, of whatever class.
        capability: a class of `outfall.capabilities`, or `FixedPartitionedSink` or `DynamicSink`.
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
    """Whether the sink has a fixed list of parts."""
    return supports(sink, FixedPartitionedSink)


def is_dynamic(sink: object) -> bool:
    """Whether the sink is built per task."""
    return supports(sink, DynamicSink)


def routes_by_default(sink: object) -> bool:
    """Whether a fixed sink routes keys as `FixedPartitionedSink` does, so that this can stay in the JVM."""
    return getattr(getattr(sink, "part_fn", None), "__func__", None) is FixedPartitionedSink.part_fn


def guarantee_of(sink: object) -> Guarantee:
    """Return what the sink declares; `AT_LEAST_ONCE` when it declares nothing or cannot be fenced."""
    if supports(sink, SupportsWriterContext) and supports(sink, DeclaresGuarantee):
        return sink.guarantee()
    return Guarantee.AT_LEAST_ONCE


def requirements_of(sink: object) -> Sequence[str]:
    """Return what the sink's guarantee needs from its surroundings."""
    return tuple(sink.requires()) if supports(sink, DeclaresGuarantee) else ()


def needs_same_rows(sink: object) -> bool:
    """Whether the sink's guarantee needs the same rows when an epoch is run again."""
    return supports(sink, DeclaresGuarantee) and sink.needs_same_rows()


def bears_speculation(sink: object) -> bool:
    """Whether two attempts of a task may run side by side."""
    return not supports(sink, DeclaresGuarantee) or sink.bears_speculation()


def routing_key_of(sink: object) -> str | None:
    """Return the column that routes rows where the user names none; `None` where there is no such column."""
    if not supports(sink, SupportsChildren):
        return sink.routing_key() if supports(sink, DeclaresRoutingKey) else None
    keys = {routing_key_of(child) for child in sink.children().values() if is_fixed(child)}
    return keys.pop() if len(keys) == 1 else None


def check_unresumed(sink: object) -> None:
    """Refuse a sink whose failed epoch can only be run again, never taken back, for a job that is never run again.

    Its tasks publish in place, and it tells what came again from what is new by comparing both.

    Raises:
        CapabilityError: saying what to do.
    """
    children = children_of(sink).values()
    for child in children:
        check_unresumed(child)
    if not children and supports(sink, SupportsSeal) and needs_same_rows(sink):
        raise CapabilityError(
            f"a job with {type(sink).__name__} needs epoch= and recovery=",
            why="its tasks publish by themselves. Where one fails, the rows of the others can only be completed by the"
            " same job, and not be taken back",
            do="pass epoch= and recovery=, and run a job that failed again with the same; or let the driver publish"
            ' (delivery="epoch")',
        )


def keeps_writer_state(sink: object) -> bool:
    """Whether a dynamic sink leaves state behind for the next epoch."""
    return supports(sink, SupportsWriterState) and sink.keeps_writer_state()


def kind_of(sink: object) -> str:
    """Name the sink's kind as the recovery data stores it."""
    # By ancestry: what stands for another sink has that one's kind, whatever that one supports.
    return sink.kind() if isinstance(sink, SupportsTarget) else class_name(sink)


def target_of(sink: object) -> str | None:
    """The target's name, where the sink tells it."""
    return sink.target() if supports(sink, SupportsTarget) else None


def owns_target(sink: object) -> bool:
    """Whether the sink takes what it finds in its target for its own, see `SupportsTarget.owns_target`."""
    return supports(sink, SupportsTarget) and sink.owns_target()


def in_save_mode(sink: Any, mode: SaveMode | None) -> Any:
    """Return a sink as a batch job writes it; see `SupportsTarget.in_save_mode`.

    Raises:
        ConfigurationError: the sink cannot do that, or its options say otherwise.
    """
    if supports(sink, SupportsTarget):
        return sink.in_save_mode(mode)
    if mode in ("error", "overwrite"):
        raise no_save_mode(sink, mode)
    return sink


def check_output_mode(sink: Any, mode: str) -> None:
    """Refuse a streaming query whose rows come again where the sink can only add them.

    Raises:
        ConfigurationError: saying what to use.
    """
    modes = sink.output_modes() if supports(sink, SupportsTarget) else OUTPUT_MODES
    if mode not in modes:
        raise ConfigurationError(
            f"the query's output mode is {mode}, and {type(sink).__name__} takes {' and '.join(modes)} only",
            why="rows that change come again, and would stand beside what they were before",
            do='use .outputMode("append"), with a watermark where rows are aggregated; or a sink that upserts, as'
            ' PostgresSink(…, write_mode="upsert", key_columns=…); or, in a foreachBatch function of your own, hand'
            " rows that are to be added to for_each_batch(…)",
        )


def children_of(sink: object) -> dict[str, Any]:
    """Return the sinks that a sink consists of, and theirs in turn as `child.grandchild`."""
    if not supports(sink, SupportsChildren):
        return {}
    found: dict[str, Any] = {}
    for name, child in sink.children().items():
        found |= {name: child} | {f"{name}.{inner}": sink for inner, sink in children_of(child).items()}
    return found


def check_sink(sink: Any) -> None:
    """Check a sink's shape before any data moves.

    Raises:
        CapabilityError: naming what is missing or does not go together.
    """
    if isinstance(sink, type):
        raise CapabilityError(f"{sink.__name__} is a class, not a sink", do=f"make one of it: {sink.__name__}(…)")
    name = type(sink).__name__
    if is_fixed(sink) == is_dynamic(sink):
        has = (
            "both list_parts/build_part and build" if is_fixed(sink) else "neither list_parts and build_part nor build"
        )
        raise CapabilityError(
            f"{name} has {has}", do="make it a FixedPartitionedSink or a DynamicSink (outfall.sinks), not both"
        )
    for mixin, needs in _NEEDS.items():
        if supports(sink, mixin) and not supports(sink, needs):
            raise CapabilityError(f"{name} has {mixin.__name__} but not {needs.__name__}", do=f"add {needs.__name__}")
    for mixin in (SupportsSeal, SupportsStateSerializer, SupportsNamedStates):
        if supports(sink, mixin) and not is_fixed(sink):
            raise CapabilityError(
                f"{name} has {mixin.__name__} but no parts", do="make it a FixedPartitionedSink, or drop the mixin"
            )
    if supports(sink, SupportsBufferedRows) and not (is_fixed(sink) or supports(sink, SupportsWriterState)):
        raise CapabilityError(
            f"{name} has SupportsBufferedRows but no state to hold rows in",
            do="add SupportsWriterState, or make it a FixedPartitionedSink",
        )
    if supports(sink, SupportsWriterState) and is_fixed(sink):
        raise CapabilityError(
            f"{name} has SupportsWriterState and fixed parts", do="keep the state of a part in its snapshot()"
        )


def flush(partition: Any, *, end_of_input: bool) -> None:
    """Flush an open partition that holds values back; one without `flush` has nothing to send.

    A `flush` that takes nothing is a partition's own, as those written for Bytewax may have: whatever it is for, what
    was written is out once it was called.
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
    except ValueError:  # built in, and says nothing of itself
        return "end_of_input"
    with suppress(TypeError):
        signature.bind(end_of_input=True)
        return "end_of_input"
    with suppress(TypeError):
        signature.bind()
        return "nothing"
    return "something else"


def check_partition(sink: Any, partition: Any) -> None:
    """Check an open partition against what its sink promises, before the first row is written.

    Raises:
        CapabilityError: naming the method that is missing.
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
                do=f"add {method}() to the partition, or drop the capability that needs it from the sink",
            )
    takes = _flush_takes(partition)
    if takes == "something else" or (takes == "nothing" and supports(sink, SupportsBufferedRows)):
        raise CapabilityError(
            f"{type(sink).__name__} built a {type(partition).__name__} whose flush() does not take end_of_input",
            do="make it flush(self, end_of_input: bool), or give it another name",
        )


_NEEDS: dict[type, type] = {
    SupportsPreCommitTopology: SupportsCommitter,
    SupportsPostCommitTopology: SupportsCommitter,
    WithCompatibleState: SupportsWriterState,
    SupportsSeal: SupportsWriterContext,
}
