"""The rows of trials, identified by the numbers from which they were created."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from outfall.testing.conformance.faults import ConformanceError
from outfall.testing.conformance.harness import SinkHarness

Numbers = Counter[int]
MOST_SHOWN = 5


class Rows:
    """The rows of one trial: created from numbers, and identified by their content when they are read."""

    def __init__(self, harness: SinkHarness) -> None:
        """Start without rows."""
        self.row = harness.row
        """Creates the row of a number."""
        self._numbers: dict[Any, int] = {}

    def make(self, number: int) -> Any:
        """Return the row of a number as a new object."""
        row = self.row(number)
        known = self._numbers.setdefault(frozen(row), number)
        if known != number:
            raise ValueError(f"row({number}) equals row({known}): create a distinct row for each number")
        return row

    def find(self, rows: Iterable[Any]) -> Numbers:
        """Count visible rows. Raises `ConformanceError` if a row was never sent."""
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
                do="write values unchanged; if the target returns them in another form, convert them in read() to the"
                " form of row()",
            )
        return found


def frozen(value: Any) -> Any:
    """Return a hashable value that is equal for equal content. Lists and tuples are equal."""
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


@dataclass(frozen=True)
class Content:
    """The rows of an epoch by task, as numbers."""

    epoch: int
    tasks: tuple[tuple[int, ...], ...]
    new: bool = False
    """Whether these rows are new. If the epoch is skipped, this content does not count."""

    @property
    def numbers(self) -> Numbers:
        """All rows, in any order."""
        return Counter(number for task in self.tasks for number in task)


def dealt(numbers: Sequence[int], tasks: int, *, first_empty: bool = False) -> list[list[int]]:
    """Distribute rows to tasks evenly, or leave the first of several tasks empty."""
    receiving = tasks - 1 if first_empty and tasks > 1 else tasks
    dealt_out = [list(numbers[index::receiving]) for index in range(receiving)]
    return [[], *dealt_out] if receiving < tasks else dealt_out
