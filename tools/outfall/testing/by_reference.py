"""Targets in memory that survive pickling, as a server survives its clients."""

from __future__ import annotations

import weakref
from typing import Any

_living: weakref.WeakValueDictionary[int, ByReference] = weakref.WeakValueDictionary()


class ByReference:
    """Base of a fake target: a pickled copy of a sink that holds it finds the very same object in this process.

    Tasks work on copies of the sink, as on Spark; without this each would write into a target of its own.
    """

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        """Pickle the address only."""
        _living[id(self)] = self
        return _find, (id(self),)

    def __deepcopy__(self, memo: dict[int, Any]) -> ByReference:
        """A target has no copies."""
        return self


def _find(address: int) -> ByReference:
    return _living[address]
