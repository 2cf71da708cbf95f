"""Common operations on the children of a composite: checks, names, counters, and combined errors."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

from outfall.capabilities import Metrics, SupportsPreWriteTopology, WithCompatibleState
from outfall.capability_checks import ResolvedSink, check_sink, routes_by_default
from outfall.errors import CapabilityError, ConfigurationError, raise_together

R = TypeVar("R")


def check_children(owner: str, children: Mapping[str, Any]) -> dict[str, ResolvedSink]:
    """Check the names of the children, each child, and their combination, and return what each can do.

    Raises `ConfigurationError` if there is no child, or a name is invalid, and `CapabilityError`, with the child and
    the reason, if a child cannot be used, alone or in the combination.
    """
    if not children:
        raise ConfigurationError(f"{owner} has no sinks", do="pass at least one")
    resolved: dict[str, ResolvedSink] = {}
    for name, child in children.items():
        if not re.fullmatch(r"[A-Za-z0-9_]+", name):
            raise ConfigurationError(
                f"{name!r} is not a valid name of a sink", do="use letters, digits and underscores"
            )
        try:
            resolved[name] = check_sink(child)
        except CapabilityError as error:
            raise CapabilityError.because_of(error, f"the sink {name!r} of {owner} cannot be used") from error.__cause__
    _check_together(resolved)
    return resolved


def _check_together(children: Mapping[str, ResolvedSink]) -> None:
    shaping = [name for name, child in children.items() if SupportsPreWriteTopology in child.capabilities]
    if len(shaping) > 1:
        raise CapabilityError(
            f"the sinks {' and '.join(shaping)} both change the DataFrame before it is written",
            why="all sinks get the same rows in the same partitions, and each would undo the change of the other",
            do="write one of them in a separate step",
        )
    for name, child in children.items():
        if WithCompatibleState in child.capabilities and child.sink.compatible_writer_state_names():
            raise CapabilityError(
                f"the sink {name} adopts states of other steps",
                why="in a composite, a state has its sink's name, which states of other steps do not have",
                do="first let it adopt them in a separate step",
            )
    fixed = {name: child for name, child in children.items() if child.fixed}
    if len(fixed) > 1:
        for name, child in fixed.items():
            if not routes_by_default(child.sink):
                raise CapabilityError(
                    f"the sinks {' and '.join(fixed)} have parts, and {name} has its own part_fn",
                    why="a row would go to different tasks for the two sinks",
                    do="use the default part_fn in each, or write each in a separate step",
                )


def for_each(children: Mapping[str, Any], act: Callable[[str, Any], R], failed: str, **where: Any) -> dict[str, R]:
    """Call a function for every child, even after one has failed, and return the results by name.

    A single child's error is raised itself, with a note of its name. If several failed, an `OutfallError` is raised,
    see `raise_together`; `failed` describes them for its text, and `where` has step and epoch, as far as available.
    """
    results: dict[str, R] = {}
    errors: dict[str, Exception] = {}
    for name, child in children.items():
        try:
            results[name] = act(name, child)
        except Exception as error:
            errors[name] = error
    raise_together(errors, failed, **where)
    return results


def share(name: str, items: Mapping[str, Any], *, separator: str = "/") -> dict[str, Any]:
    """The items of one child, by the child's own names for them."""
    start = name + separator
    return {key.removeprefix(start): value for key, value in items.items() if key.startswith(start)}


@contextmanager
def of_child(name: str) -> Iterator[None]:
    """Add a note with the child's name to errors raised inside."""
    try:
        yield
    except Exception as error:
        raise_together({name: error}, "")


class ChildMetrics(Metrics):
    """A child's counters: added to its own, to the parent's with its name as a prefix, and to the parent's sums."""

    def __init__(self, parent: Metrics, name: str) -> None:
        """Count for the child `name`."""
        super().__init__()
        self._parent = parent
        self._name = name

    def add(self, name: str, amount: int = 1) -> None:
        """Add to the counter in the child and the parent. The engine sums rows itself."""
        super().add(name, amount)
        self._parent.add(f"{self._name}.{name}", amount)
        if "." not in name and name != "rows":
            self._parent.add(name, amount)

    def example(self, name: str, text: str) -> None:
        """Store the example in the child and the parent."""
        super().example(name, text)
        self._parent.example(f"{self._name}.{name}", text)

    def table(self, name: str, rows: int) -> None:
        """Set the rows of a table in the child and the parent."""
        super().table(name, rows)
        self._parent.table(f"{self._name}: {name}", rows)

    def peak(self, name: str, amount: int) -> None:
        """Raise the counter in the child and the parent."""
        super().peak(name, amount)
        self._parent.peak(f"{self._name}.{name}", amount)
        if "." not in name:
            self._parent.peak(name, amount)
