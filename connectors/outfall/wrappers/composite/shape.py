"""Which class a composite has: the one that was written down, with the capabilities that its children have."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar, cast

from outfall.capabilities import (
    SupportsCommitter,
    SupportsHeldRows,
    SupportsPostCommitTopology,
    SupportsPreCommitTopology,
    SupportsPreWriteTopology,
    SupportsSeal,
    SupportsWriterState,
    WithCompatibleState,
)
from outfall.capability_checks import is_fixed, routes_by_default, supports
from outfall.errors import CapabilityError

if TYPE_CHECKING:
    from outfall.wrappers.composite.sink import Composite

T = TypeVar("T", bound="Composite")


def shaped(kind: type[T], children: Mapping[str, Any]) -> type[T]:
    """Return the class of a composite of these children.

    Raises:
        CapabilityError: they do not go together; says why.
    """
    _check_together(children)
    return cast("type[T]", _made(kind, _shape_of(children)))


@cache
def _made(kind: type, mixins: tuple[type, ...]) -> type:
    names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, "__doc__": kind.__doc__}
    metaclass: Any = type(kind)
    made: type = metaclass(kind.__name__, (kind, *mixins), names | {"outfall_shape": mixins})
    return made


def _shape_of(children: Mapping[str, Any]) -> tuple[type, ...]:
    from outfall.wrappers.composite import mixins

    fixed = [child for child in children.values() if is_fixed(child)]
    shape: list[type] = [mixins.DynamicShape]
    if not fixed and any(supports(child, SupportsWriterState) for child in children.values()):
        shape = [mixins.KeepsWriterState]
    if fixed:
        default = routes_by_default(fixed[0])
        shape = [mixins.FixedShape if default else mixins.RoutedShape]
    for capability, mixin in (
        (SupportsCommitter, mixins.Commits),
        (SupportsPreCommitTopology, mixins.ActsBeforeCommit),
        (SupportsPostCommitTopology, mixins.ActsAfterCommit),
        (SupportsPreWriteTopology, mixins.ActsBeforeWrite),
        (SupportsSeal, mixins.Seals),
        (SupportsHeldRows, mixins.HoldsRows),
    ):
        if any(isinstance(child, capability) for child in children.values()):
            shape.append(mixin)
    return tuple(shape)


def _check_together(children: Mapping[str, Any]) -> None:
    shaping = [name for name, child in children.items() if supports(child, SupportsPreWriteTopology)]
    if len(shaping) > 1:
        raise CapabilityError(
            f"the sinks {' and '.join(shaping)} both change the DataFrame before it is written",
            why="all sinks get the same rows in the same partitions, and each would undo what the other needs",
            do="write one of them on its own, in a step of its own",
        )
    for name, child in children.items():
        if supports(child, WithCompatibleState) and child.compatible_writer_state_names():
            raise CapabilityError(
                f"the sink {name} adopts states of other steps",
                why="among other sinks a state carries its sink's name, which those of other steps do not have",
                do="let it adopt them in a step of its own first",
            )
    fixed = {name: child for name, child in children.items() if is_fixed(child)}
    if len(fixed) > 1:
        for name, child in fixed.items():
            if not routes_by_default(child):
                raise CapabilityError(
                    f"the sinks {' and '.join(fixed)} have parts, and {name} has a part_fn of its own",
                    why="a row's part in one would be in another task than its part in the other",
                    do="use the default part_fn in each, or write each in a step of its own",
                )
