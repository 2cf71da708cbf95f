"""Rows by the numbers they were made of, and what a claim says about them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from outfall.testing.conformance.faults import ConformanceError
from outfall.testing.conformance.harness import SinkHarness

Numbers = Counter[int]
MOST_SHOWN = 5


class Rows:
    """The rows of one trial: made from numbers on the way in, found again by their content on the way out."""

    def __init__(self, harness: SinkHarness) -> None:
        """Know no row yet."""
        self._harness = harness
        self._numbers: dict[Any, int] = {}

    def make(self, number: int) -> Any:
        """Return the row of a number, a new object each time."""
        row = self._harness.row(number)
        known = self._numbers.setdefault(frozen(row), number)
        if known != number:
            raise ValueError(f"row({number}) equals row({known}): the harness must make a different row of each number")
        return row

    def find(self, rows: Iterable[Any]) -> Numbers:
        """Count the rows that a reader found.

        Raises:
            ConformanceError: one was never sent.
        """
        found: Numbers = Counter()
        strange = []
        for row in rows:
            number = self._numbers.get(frozen(row))
            if number is None:
                strange.append(row)
            else:
                found[number] += 1
        if strange:
            raise ConformanceError(
                f"{len(strange)} rows in the target were never sent, such as {strange[0]!r}",
                do="write values as they come; if the target gives them back in another form, have read() turn them"
                " into what row() makes",
            )
        return found


def frozen(value: Any) -> Any:
    """Return a value as something hashable that equals for equal content. Lists and tuples are the same."""
    if isinstance(value, Mapping):
        return frozenset((key, frozen(item)) for key, item in value.items())
    if isinstance(value, list | tuple):
        return tuple(frozen(item) for item in value)
    return value


def some(numbers: Iterable[int]) -> str:
    """List a few numbers."""
    chosen = sorted(set(numbers))
    rest = f" and {len(chosen) - MOST_SHOWN} more" if len(chosen) > MOST_SHOWN else ""
    return ", ".join(map(str, chosen[:MOST_SHOWN])) + rest
