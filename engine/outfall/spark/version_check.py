"""Checks the version of PySpark, and that of Outfall in a process that receives pickled functions."""

from __future__ import annotations

import importlib
import pickle
from typing import Any

from outfall.errors import TerminalError
from outfall.version import outfall_version

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


class PickledWithVersion:
    """Base of functions that Spark sends to other processes: the version is compared before the state is unpickled.

    A Connect server or an executor may have another release, whose classes have other attributes and modules. Then
    unpickling the state fails without the reason, or succeeds and the function fails later.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        """Return the state as bytes, beside the version."""
        from pyspark import cloudpickle

        dumps: Any = cloudpickle.dumps
        return _unpickled, (type(self), outfall_version(), dumps(self.__dict__))


def _unpickled(cls: type[Any], version: str, state: bytes) -> Any:
    if version != outfall_version():
        raise TerminalError(
            f"outfall {version} sent a {cls.__name__} to a process with outfall {outfall_version()}",
            do="install the same version where the query is started, on the driver or Connect server, and on every"
            " executor",
        )
    made = object.__new__(cls)
    made.__dict__.update(pickle.loads(state))  # noqa: S301 - from Spark, which has unpickled its class just now
    return made
