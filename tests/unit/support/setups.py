"""One target with the sink that writes it and a reader that knows nothing of the sink, for tests over all of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from typing import Any

from outfall.protocol.step import EpochOptions
from outfall.recovery import RecoveryConfig
from outfall.testing import LocalDriver, MemoryRecoveryConfig
from tests.unit.support.shelf import Shelf, ShelfSink, values_on
from tests.unit.support.warehouse import BundlingSink, HoldingSink, StagingSink, Warehouse, rows_of

Row = tuple[int, str, int]
"""Epoch, content, and which of its rows."""


def content(epoch: int, name: str = "a") -> list[list[Row]]:
    """One of two contents that a source brings for an epoch, in its tasks: they differ in rows, order and tasks."""
    if name == "a":
        return [[(epoch, name, task * 2 + i) for i in range(2)] for task in range(3)]
    return [[(epoch, name, i) for i in (7, 4, 1)], []]


def counted(tasks: Sequence[Sequence[Any]]) -> Counter[Any]:
    """The rows of all tasks, in any order."""
    return Counter(row for rows in tasks for row in rows)


class Setup(ABC):
    """A target that outlives its drivers, and where their log is."""

    def __init__(self, recovery: str | None = None) -> None:
        self.recovery: str | RecoveryConfig = recovery or MemoryRecoveryConfig()

    @abstractmethod
    def sink(self) -> Any:
        """Make the sink anew, as each process does."""

    @abstractmethod
    def found(self) -> Counter[Any]:
        """Read the target."""

    def driver(self, **options: Any) -> LocalDriver:
        """Start a driver."""
        return LocalDriver(self.sink(), self.recovery, options=self.options(), **options)

    def options(self) -> EpochOptions:
        return EpochOptions()

    def tasks(self, rows: Sequence[Sequence[Row]]) -> list[list[Any]]:
        """Bring rows into the form that the sink takes."""
        return [list(task) for task in rows]

    def run(self, driver: LocalDriver, epoch: int, name: str = "a") -> Any:
        """Run an epoch with one of its contents."""
        return driver.run_epoch(epoch, self.tasks(content(epoch, name)))

    def drain(self, epoch: int) -> None:
        """Bring what is held back to light, from `epoch` on."""


class Staging(Setup):
    """Staging areas, published by a committer."""

    def __init__(self, recovery: str | None = None) -> None:
        super().__init__(recovery)
        self.warehouse = Warehouse()

    def sink(self) -> Any:
        return StagingSink(self.warehouse)

    def found(self) -> Counter[Any]:
        return Counter(map(tuple, rows_of(self.warehouse)))


class Bundling(Staging):
    """With pre- and post-commit."""

    def sink(self) -> Any:
        return BundlingSink(self.warehouse)


class Holding(Staging):
    """With writer state."""

    def sink(self) -> Any:
        return HoldingSink(self.warehouse)

    def options(self) -> EpochOptions:
        return EpochOptions(worker_count=2)

    def tasks(self, rows: Sequence[Sequence[Row]]) -> list[list[Any]]:
        flat = [list(row) for task in rows for row in task]
        return [flat[::2], flat[1::2]]

    def drain(self, epoch: int) -> None:
        self.driver().run_epoch(epoch, [[], []])


class InPlace(Setup):
    """Files that are appended to."""

    def __init__(self, recovery: str | None = None) -> None:
        super().__init__(recovery)
        self.shelf = Shelf()

    def sink(self) -> Any:
        return ShelfSink(self.shelf)

    def tasks(self, rows: Sequence[Sequence[Row]]) -> list[list[Any]]:
        return [[(str(row[2]), row) for row in task] for task in rows]

    def found(self) -> Counter[Any]:
        return Counter(values_on(self.shelf))


EXACTLY_ONCE: list[type[Setup]] = [Staging, Bundling, Holding, InPlace]
