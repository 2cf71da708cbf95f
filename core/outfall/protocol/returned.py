"""What a sink's methods returned, checked before it is recorded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from outfall.errors import CapabilityError


def returned_list(
    owner: object, method: str, value: Any, *, step: str | None = None, part: str | None = None
) -> Sequence[Any]:
    """Return a list or tuple of what a method returned.

    A text would be taken apart into its characters, each recorded, and the step could not go on any more.

    Args:
        owner: whose method it is.
        method: its name.
        value: what it returned.
        step: the step's id, where known.
        part: the part's name, if any.

    Raises:
        CapabilityError: it is neither.
    """
    if isinstance(value, list | tuple):
        return value
    raise CapabilityError(
        f"{type(owner).__name__}.{method}() returned a {type(value).__name__}",
        step=step,
        part=part,
        do="return a list, empty where there is nothing",
    )
