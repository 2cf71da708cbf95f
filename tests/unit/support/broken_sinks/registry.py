"""The list of broken sinks: each with the checks that must name its fault."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from outfall.testing import SinkHarness

H = TypeVar("H", bound=type[SinkHarness])


@dataclass(frozen=True)
class Broken:
    """A sink with one fault, one check that finds it, and words that its text must hold."""

    harness: type[SinkHarness]
    check: str
    words: str
    thorough: bool = False
    """Whether it is left out by default: it takes a second, or another sink shows sooner what the check finds."""


BROKEN: list[Broken] = []


def found_by(check: str, words: str = "", *, thorough: bool = False) -> Callable[[H], H]:
    """Add a harness to the list."""

    def add(harness: H) -> H:
        BROKEN.append(Broken(harness, check, words, thorough))
        return harness

    return add
