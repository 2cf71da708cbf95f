"""Combinations of which the default run tries as few as show each value once, and `nox -s thorough` all."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product
from typing import Any

import pytest


def thorough(*values: Any) -> Any:
    """The values of one parameter, or of several, that the default run leaves out."""
    return pytest.param(*values, marks=pytest.mark.thorough)


def one_each(*axes: Iterable[Any]) -> list[Any]:
    """Every combination of the axes' values, as parameters; those beyond one for each value are thorough."""
    lists = [list(axis) for axis in axes]
    shown = {tuple(number % len(axis) for axis in lists) for number in range(max(map(len, lists)))}
    return [
        pytest.param(
            *(axis[index] for axis, index in zip(lists, indexes, strict=True)),
            marks=() if indexes in shown else pytest.mark.thorough,
        )
        for indexes in product(*(range(len(axis)) for axis in lists))
    ]
