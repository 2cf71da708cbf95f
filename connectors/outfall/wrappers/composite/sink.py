"""`CompositeSink`: one sink that consists of others."""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any, Self

import pyarrow as pa

from outfall.capabilities import (
    OUTPUT_MODES,
    DeclaresGuarantee,
    Guarantee,
    SaveMode,
    SupportsTarget,
    SupportsWriterContext,
    SweepContext,
    TargetContext,
    WriterInitContext,
)
from outfall.capability_checks import (
    SupportsChildren,
    children_of,
    guarantee_of,
    in_save_mode,
    is_fixed,
    kind_of,
    needs_same_rows,
    owns_target,
    requirements_of,
    target_of,
)
from outfall.errors import ConfigurationError
from outfall.sinks import Sink
from outfall.wrappers.composite.children import check_children, for_each
from outfall.wrappers.composite.partition import CompositePartition, Opening
from outfall.wrappers.composite.shape import shaped


class Composite(Sink[Any], SupportsChildren, SupportsTarget[Any], SupportsWriterContext, DeclaresGuarantee):
    """Base of sinks that consist of others: to the engine one sink, with one epoch and one record of all shares.

    It has the capabilities that its children have, and no other: constructing one gives it the class of their shape. It
    has parts if a child has them; the parts of several such children are written side by side, and a child without any
    has a writer in each part. Counters, committables and states carry the name of their child, errors note it.

    Subclasses say which child gets which rows, by an `open` of their own.

    Args:
        children: sinks by name.

    Raises:
        ConfigurationError: there is none, or a name will not do.
        CapabilityError: a child cannot be used, alone or among the others.
    """

    kind_name = "composite"
    """The stable name of the kind, to which the shape is added."""

    def __init__(self, children: Mapping[str, Any]) -> None:
        check_children(type(self).__name__, children)
        self._children = dict(children)
        self.context: WriterInitContext | None = None
        # The engine looks at the class for what a sink can do.
        self.__class__ = shaped(type(self), self._children)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as the class that was written down: the one made for the shape has no address of its own."""
        return _restored, (plain_class(type(self)), self.__dict__.copy())

    def __repr__(self) -> str:
        shown = (f"{name}={type(child).__name__}({target_of(child) or ''})" for name, child in self._children.items())
        return f"{type(self).__name__}({', '.join(shown)})"

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

    def guarantee(self) -> Guarantee:
        return min(guarantee_of(child) for child in self._children.values())

    def requires(self) -> Sequence[str]:
        return tuple(f"{name}: {text}" for name, child in self._children.items() for text in requirements_of(child))

    def needs_same_rows(self) -> bool:
        return any(map(needs_same_rows, self._children.values()))

    chooses_bases_anew = True

    def check_target(self, context: TargetContext[Any]) -> Mapping[str, Any]:
        self._check_distinct(context.step_id)
        found = for_each(
            self._with(SupportsTarget),
            lambda name, child: child.check_target(self._share(name, context)),
            "several targets are not what the recovery data says",
            step=context.step_id,
            epoch=context.epoch,
        )
        return {
            f"{name}/{part}": state
            for name, states in found.items()
            for part, state in states.items()
            if f"{name}/{part}" not in context.states or self._children[name].chooses_bases_anew
        }

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

    def sweep(self, context: SweepContext) -> int:
        removed = for_each(
            self._with(SupportsTarget),
            lambda name, child: int(child.sweep(_sweep_of(name, child, context))),
            "several sinks could not be swept",
            step=context.step_id,
        )
        return sum(removed.values())

    def find_leftovers(self, context: SweepContext) -> Sequence[str] | None:
        found = for_each(
            self._with(SupportsTarget),
            lambda name, child: child.find_leftovers(_sweep_of(name, child, context)),
            "several sinks could not be looked at",
            step=context.step_id,
        )
        told = {name: leftovers for name, leftovers in found.items() if leftovers is not None}
        if len(told) < len(found):
            # One that keeps silent would make what the others tell look whole.
            return None
        return [f"{name}: {leftover}" for name, leftovers in told.items() for leftover in leftovers]

    def withdraw(self, context: SweepContext) -> None:
        for_each(
            self._with(SupportsTarget),
            lambda name, child: child.withdraw(_sweep_of(name, child, context)),
            "several targets could not be given up",
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
            f"{name}: has no check of its destination" for name in silent
        ]

    def owns_target(self) -> bool:
        # Its children do, each for itself.
        return False

    def in_save_mode(self, mode: SaveMode | None) -> Self:
        changed = copy.copy(self)
        changed._children = for_each(
            self._children,
            lambda name, child: in_save_mode(child, self.save_mode_of(name, mode)),
            "several sinks cannot be written like this",
        )
        return changed

    def save_mode_of(self, name: str, mode: SaveMode | None) -> SaveMode | None:
        """Return the save mode of a child, where that of the whole is `mode`."""
        return mode

    def output_modes(self) -> Collection[str]:
        targets = self._with(SupportsTarget).values()
        return [mode for mode in OUTPUT_MODES if all(mode in child.output_modes() for child in targets)]

    def schema_for(self, name: str, schema: pa.Schema) -> pa.Schema:
        """Return the columns of the rows that a child gets, where the sink gets those of `schema`."""
        return schema

    def open(self, openings: Mapping[str, Opening]) -> CompositePartition:
        """Open the children's partitions. Called in a task. The default is one that hands each row to each child."""
        return CompositePartition(openings)

    @property
    def writer(self) -> WriterInitContext:
        """Who writes."""
        if self.context is None:
            raise ConfigurationError(
                f"{type(self).__name__} was not told who writes", do="run it through outfall, which calls bind() first"
            )
        return self.context

    def _check_distinct(self, step_id: str) -> None:
        owners = {name: child for name, child in children_of(self).items() if owns_target(child)}
        places = {name: (kind_of(child).partition("/")[0], child.place()) for name, child in owners.items()}
        for one, other in combinations(owners, 2):
            if places[one] == places[other]:
                found = f"the sinks {one} and {other} write to the same target {owners[other].target()}"
            elif _lies_within(places[one], places[other]) or _lies_within(places[other], places[one]):
                found = f"the sinks {one} and {other} write to {owners[one].target()} and {owners[other].target()}, of"
                found += " which one lies within the other"
            else:
                continue
            raise ConfigurationError(
                found,
                step=step_id,
                why="they would take each other's rows for their own",
                do="give each a target of its own",
            )

    def _with(self, capability: type) -> dict[str, Any]:
        """The children that have a capability."""
        return {name: child for name, child in self._children.items() if isinstance(child, capability)}

    def _share(self, name: str, context: TargetContext[Any]) -> TargetContext[Any]:
        """What concerns one child in what the recovery data knows of the target."""
        known, completed = context.known_children, context.completed
        got_one = name in known and completed is not None and completed >= known[name]
        return replace(
            context,
            # A child that is new to the recovery data finds a target that is new to it too, and what was completed
            # before it came says nothing of that target.
            first_contact=context.first_contact or name not in known,
            completed=completed if got_one else None,
            states=share(name, context.states) if is_fixed(self._children[name]) else {},
            known_children=share(name, known, separator="."),
            published=context.children_published.get(name),
            children_published=share(name, context.children_published, separator="."),
        )


def _lies_within(inner: tuple[str, str], outer: tuple[str, str]) -> bool:
    return inner[0] == outer[0] and outer[1].endswith("/") and inner[1].startswith(outer[1])


def share(name: str, items: Mapping[str, Any], *, separator: str = "/") -> dict[str, Any]:
    """The items of one child, by the child's own names for them."""
    start = name + separator
    return {key.removeprefix(start): value for key, value in items.items() if key.startswith(start)}


def plain_class(kind: type) -> type:
    """The class that was written down, of one that was made for a shape."""
    while "outfall_shape" in vars(kind):
        kind = kind.__bases__[0]
    return kind


def _restored(kind: type[Composite], state: dict[str, Any]) -> Composite:
    sink = object.__new__(kind)
    sink.__dict__.update(state)
    sink.__class__ = shaped(kind, sink.children())
    return sink


class CompositeSink(Composite):
    """Hands each row to every child."""


def _sweep_of(name: str, child: Any, context: SweepContext) -> SweepContext:
    """The context with the states of one child; those of a writer beside parts are lists under names of parts."""

    def own() -> dict[str, Any]:
        return share(name, context.states())

    def writer_states() -> list[Any]:
        listed = [] if is_fixed(child) else [item for items in own().values() for item in items]
        return [item.value for item in context.writer_states() if item.child == name] + listed

    return replace(context, states=own if is_fixed(child) else dict, writer_states=writer_states)
