"""The installed version."""

from __future__ import annotations

from functools import cache
from importlib.metadata import PackageNotFoundError, version


@cache
def outfall_version() -> str:
    """Return the version of the installed distribution; `"0+unknown"` when it runs from bare sources."""
    try:
        return version("outfall")
    except PackageNotFoundError:
        return "0+unknown"
