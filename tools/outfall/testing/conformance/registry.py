"""The list of checks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from outfall.testing.conformance.trials import Trials


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
