"""What is done for each child of a composite: checks, names, counters, and errors that are raised together."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

from outfall.capabilities import Metrics, SupportsPreWriteTopology, WithCompatibleState
from outfall.capability_checks import check_sink, is_fixed, routes_by_default, supports
from outfall.errors import CapabilityError, ConfigurationError, raise_together

R = TypeVar("R")


def check_children(owner: str, children: Mapping[str, Any]) -> None:
    """Check the names of the children, what each is, and whether they go together.

    Raises:
        ConfigurationError: there is none, or a name will not do.
        CapabilityError: a child cannot be used, alone or among the others; says which and why.
    """
    if not children:
        raise ConfigurationError(f"{owner} has no sinks", do="give it at least one")
    for name, child in children.items():
        if not re.fullmatch(r"[A-Za-z0-9_]+", name):
            raise ConfigurationError(f"{name!r} cannot name a sink", do="use letters, digits and underscores")
        try:
            check_sink(child)
        except CapabilityError as error:
            raise CapabilityError.because_of(error, f"the sink {name!r} of {owner} cannot be used") from error.__cause__
    _check_together(children)


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


def for_each(children: Mapping[str, Any], act: Callable[[str, Any], R], failed: str, **where: Any) -> dict[str, R]:
    """Act for every child, also after one has failed, and return the results by name.

    Args:
        children: by name.
        act: called with the name and the child.
        failed: what it means when several fail, for the text.
        where: step and epoch, as far as known.

    Raises:
        Exception: what a single child raised, with a note of its name.
        OutfallError: several failed; see `raise_together`.
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
    """Note the child's name on what is raised within."""
    try:
        yield
    except Exception as error:
        raise_together({name: error}, "")


class ChildMetrics(Metrics):
    """A child's counters: its own, under its name among the parent's, and in the parent's sums."""

    def __init__(self, parent: Metrics, name: str) -> None:
        """Count for the child `name`."""
        super().__init__()
        self._parent = parent
        self._name = name

    def add(self, name: str, amount: int = 1) -> None:
        """Add to the counter here and there. Rows are summed by the engine, which counts those that it hands over."""
        super().add(name, amount)
        self._parent.add(f"{self._name}.{name}", amount)
        if "." not in name and name != "rows":
            self._parent.add(name, amount)

    def example(self, name: str, text: str) -> None:
        """Keep the example here and there."""
        super().example(name, text)
        self._parent.example(f"{self._name}.{name}", text)

    def peak(self, name: str, amount: int) -> None:
        """Raise the counter here and there."""
        super().peak(name, amount)
        self._parent.peak(f"{self._name}.{name}", amount)
        if "." not in name:
            self._parent.peak(name, amount)
