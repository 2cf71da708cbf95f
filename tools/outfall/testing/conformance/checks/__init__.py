"""The checks, by what they are about. Importing this fills `CHECKS`, in the order in which they run."""

from outfall.testing.conformance.checks import (  # noqa: I001 - from the simplest to the most thorough
    basic,
    replay,
    commit,
    attempts,
    parts,
    logs,
    stored,
    resources,
    power,
    crashes,
)

__all__ = ["attempts", "basic", "commit", "crashes", "logs", "parts", "power", "replay", "resources", "stored"]
