"""Sinks that are broken on purpose, each in one way, by the kind of target that they write to."""

from tests.unit.support.broken_sinks import (
    careless,
    cleaning,
    columns,
    databases,
    filed,
    held,
    jobs,
    keyed,
    naming,
    refusing,
    shelved,
    staged,
)
from tests.unit.support.broken_sinks.registry import BROKEN, Broken

__all__ = [
    "BROKEN", "Broken", "careless", "cleaning", "columns", "databases", "filed", "held", "jobs", "keyed", "naming",
    "refusing", "shelved", "staged",
]  # fmt: skip
