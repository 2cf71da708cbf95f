"""What is done for each child: names, counters, and errors that are raised together."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

from outfall.capabilities import Metrics
from outfall.capability_checks import check_sink
from outfall.errors import CapabilityError, ConfigurationError, raise_together

R = TypeVar("R")


def check_children(owner: str, children: Mapping[str, Any]) -> None:
    """Check the names and the shape of each child.

    Raises:
        ConfigurationError: there is none, or a name will not do.
        CapabilityError: a child's capabilities do not go together; says which child.
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

    def peak(self, name: str, amount: int) -> None:
        """Raise the counter here and there."""
        super().peak(name, amount)
        self._parent.peak(f"{self._name}.{name}", amount)
        if "." not in name:
            self._parent.peak(name, amount)
