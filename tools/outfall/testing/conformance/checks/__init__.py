"""The checks by topic. The import fills `CHECKS` in run order."""

from outfall.testing.conformance.checks import (  # noqa: I001 - from the simplest to the most thorough
    basic,
    refused,
    names,
    layout,
    wrappers,
    replay,
    commit,
    attempts,
    parts,
    logs,
    stored,
    resources,
    clean_up,
    jobs,
    power,
    crashes,
)

__all__ = [
    "attempts", "basic", "clean_up", "commit", "crashes", "jobs", "layout", "logs", "names", "parts", "power",
    "refused", "replay", "resources", "stored", "wrappers",
]  # fmt: skip
