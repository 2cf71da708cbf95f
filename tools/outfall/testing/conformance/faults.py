"""Checks and their outcomes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from outfall.testing.conformance.trials import Trials


class ConformanceError(AssertionError):
    """The sink violates its guarantee.

    `fault` is the violation, one sentence without a full stop. `place` is the scenario, such as the step of a driver
    crash, and `do` is advice for the sink's author.
    """

    def __init__(self, fault: str, *, place: str | None = None, do: str | None = None) -> None:
        self.fault = fault
        self.place = place
        self.do = do
        sentences = [fault, f"When: {place}" if place else None, f"What to do: {do}" if do else None]
        super().__init__("\n".join(f"{sentence.rstrip('.')}." for sentence in sentences if sentence))

    def at(self, place: str) -> Self:
        """Add the scenario, unless an inner scenario is set."""
        where = f"{place}: {self.place}" if self.place else place
        return type(self)(self.fault, place=where, do=self.do)


class NotApplicableError(Exception):
    """The check does not apply to this sink; the guarantee does not depend on it."""


class NotTriedError(NotApplicableError):
    """The guarantee covers the check, but the check cannot run.

    `reason` is one sentence without a full stop. `strict` says whether this fails the suite; see `SinkHarness.strict`.
    """

    def __init__(self, reason: str, *, strict: bool) -> None:
        self.strict = strict
        super().__init__(reason)


class NotClaimedError(NotApplicableError):
    """The author excluded the check, with a reason."""


class StalledError(BaseException):
    """A check stalled. It is not an `Exception`, so no scenario treats it as an error of the sink."""

    def __init__(self) -> None:
        self.places: list[str] = []
        super().__init__()


@contextmanager
def when(place: str) -> Iterator[None]:
    """Add the scenario to faults in the block."""
    try:
        yield
    except ConformanceError as error:
        raise error.at(place) from error.__cause__
    except StalledError as stall:
        stall.places.insert(0, place)
        raise


@dataclass(frozen=True)
class Check:
    """A check: name, fault and function."""

    name: str
    finds: str
    run: Callable[[Trials], None]


CHECKS: dict[str, Check] = {}
"""All checks by name, in run order."""


def check(function: Callable[[Trials], None]) -> Callable[[Trials], None]:
    """Register a check. The first line of its docstring describes the fault."""
    doc = (function.__doc__ or "").strip().splitlines()
    CHECKS[function.__name__] = Check(function.__name__, doc[0], function)
    return function


@contextmanager
def quiet() -> Iterator[None]:
    """Suppress the engine's warnings, which Python prints if logging is not configured."""
    logger, silent = logging.getLogger("outfall"), logging.NullHandler()
    logger.addHandler(silent)
    try:
        yield
    finally:
        logger.removeHandler(silent)
