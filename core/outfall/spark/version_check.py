"""Checks the version of PySpark."""

from __future__ import annotations

import importlib

OLDEST = (3, 5)
OLDEST_FOR_OPTIONS = (4, 1)


def pyspark_version() -> tuple[int, int]:
    """Return the major and minor version of the PySpark that would be imported. Raises `ImportError` if there is none.

    Read from the module and not from a distribution, because clusters provide PySpark without one.
    """
    try:
        found = str(importlib.import_module("pyspark").__version__)
    except ImportError as error:
        raise ImportError(
            "pyspark is not installed. What to do: pip install 'outfall[spark]', or use a cluster that provides it."
        ) from error
    major, minor = found.split(".")[:2]
    return int(major), int(minor)


def check_pyspark(oldest: tuple[int, int] = OLDEST) -> None:
    """Reject a PySpark that is missing or too old. The `ImportError` names the found and the required version."""
    found = pyspark_version()
    if found < oldest:
        raise ImportError(
            f"PySpark {found[0]}.{found[1]} is too old for this part of Outfall, which requires"
            f" {oldest[0]}.{oldest[1]} or later. What to do: use a newer Spark."
        )
