"""The checks, by what they are about. Importing this fills `CHECKS`, in the order in which they run."""

from outfall.testing.conformance.checks import (  # noqa: I001 - from the simplest to the most thorough
    basic,
    replay,
    commit,
    attempts,
    drivers,
    parts,
    logs,
    stored,
    resources,
    system_calls,
    power,
    crashes,
    processes,
    schedules,
)

__all__ = [
    "attempts",
    "basic",
    "commit",
    "crashes",
    "drivers",
    "logs",
    "parts",
    "power",
    "processes",
    "replay",
    "resources",
    "schedules",
    "stored",
    "system_calls",
]
