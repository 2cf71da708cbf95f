"""What a check is, and what it may say: that the sink has a fault, or that the check does not apply to it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from outfall.testing.conformance.trial import Trials


class ConformanceError(AssertionError):
    """The sink does not do what it claims.

    Args:
        fault: what was found, one sentence without its full stop.
        place: in which scenario, such as the step at which a driver died.
        do: what the sink's author can do about it.
    """

    def __init__(self, fault: str, *, place: str | None = None, do: str | None = None) -> None:
        self.fault = fault
        self.place = place
        self.do = do
        sentences = [fault, f"When: {place}" if place else None, f"What to do: {do}" if do else None]
        super().__init__("\n".join(f"{sentence.rstrip('.')}." for sentence in sentences if sentence))

    def at(self, place: str) -> Self:
        """Say in which scenario; an inner place stays."""
        where = f"{place}: {self.place}" if self.place else place
        return type(self)(self.fault, place=where, do=self.do)


class NotApplicableError(Exception):
    """The check says nothing about this sink, and why: nothing that is claimed is left open by it."""


class NotTriedError(NotApplicableError):
    """The claim covers what the check tries, but the check cannot try it here, and why.

    Args:
        reason: what is missing, one sentence without its full stop.
        strict: whether this fails the run, see `SinkHarness.strict`.
    """

    def __init__(self, reason: str, *, strict: bool) -> None:
        self.strict = strict
        super().__init__(reason)


class NotClaimedError(NotApplicableError):
    """The author gave the check up, and why."""


class StalledError(BaseException):
    """A check does not go on. Not an `Exception`, so that no scenario takes it for an error of the sink."""

    def __init__(self) -> None:
        self.places: list[str] = []
        super().__init__()


@contextmanager
def when(place: str) -> Iterator[None]:
    """Name the scenario in the faults that are found within the block."""
    try:
        yield
    except ConformanceError as error:
        raise error.at(place) from error.__cause__
    except StalledError as stall:
        stall.places.insert(0, place)
        raise


@dataclass(frozen=True)
class Check:
    """One check: its name, the fault that it finds, and how."""

    name: str
    finds: str
    run: Callable[[Trials], None]


CHECKS: dict[str, Check] = {}
"""All checks by name, in the order in which they run."""


def check(function: Callable[[Trials], None]) -> Callable[[Trials], None]:
    """Add a function to the checks. The first line of its docstring says which fault it finds."""
    doc = (function.__doc__ or "").strip().splitlines()
    CHECKS[function.__name__] = Check(function.__name__, doc[0], function)
    return function


@contextmanager
def quiet() -> Iterator[None]:
    """Keep the engine's warnings from the terminal, where Python brings them when nobody has configured logging."""
    logger, silent = logging.getLogger("outfall"), logging.NullHandler()
    logger.addHandler(silent)
    try:
        yield
    finally:
        logger.removeHandler(silent)
