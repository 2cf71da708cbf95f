"""Three targets that are written together, each with a reader of its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from outfall.capabilities import CommitRequest, Committer, CommitterInitContext
from outfall.wrappers import FanOutSink
from tests.unit.support.setups import InPlace, Setup
from tests.unit.support.shelf import ShelfSink
from tests.unit.support.warehouse import BundlingSink, Staged, StagingCommitter, StagingSink, Warehouse, rows_of


class NamedStagingSink(StagingSink):
    """A staging sink that is told from others by its target."""

    def __init__(self, warehouse: Warehouse, name: str = "warehouse") -> None:
        super().__init__(warehouse)
        self.name = name
        self.before_commit: Callable[[], None] = _nothing

    def target(self) -> str:
        return self.name

    def create_committer(self, context: CommitterInitContext) -> Committer[Any]:
        return _Asking(self.warehouse, self.before_commit)


class NeedsSameRows(NamedStagingSink):
    """Says that a replay must bring the same rows."""

    def needs_same_rows(self) -> bool:
        return True


class NamedBundlingSink(BundlingSink):
    """With pre- and post-commit."""

    def __init__(self, warehouse: Warehouse, name: str = "warehouse") -> None:
        super().__init__(warehouse)
        self.name = name

    def target(self) -> str:
        return self.name


def _nothing() -> None:
    pass


class _Asking(StagingCommitter):
    def __init__(self, warehouse: Warehouse, before: Callable[[], None]) -> None:
        super().__init__(warehouse)
        self._before = before

    def commit(self, requests: Sequence[CommitRequest[Staged]]) -> None:
        self._before()
        super().commit(requests)


class Fanned(Setup):
    """Three staging areas: one behind a topology."""

    def __init__(self, recovery: str | None = None) -> None:
        super().__init__(recovery)
        self.warehouses = [Warehouse() for _ in range(3)]
        self.refusing: set[int] = set()

    def sink(self) -> Any:
        first, second, third = self.warehouses
        sinks = {
            "first": NamedStagingSink(first, "first"),
            "second": NamedBundlingSink(second, "second"),
            "third": NamedStagingSink(third, "third"),
        }
        for index, name in ((0, "first"), (2, "third")):
            sinks[name].before_commit = lambda index=index: self._ask(index)  # type: ignore[attr-defined]
        return FanOutSink(**sinks)

    def found(self) -> Counter[Any]:
        return self.founds()[0]

    def founds(self) -> list[Counter[Any]]:
        """What a reader of each target finds."""
        return [Counter(map(tuple, rows_of(warehouse))) for warehouse in self.warehouses]

    @contextmanager
    def refused_by(self, indices: Sequence[int]) -> Iterator[None]:
        """Some of the targets refuse every commit."""
        self.refusing = set(indices)
        yield
        self.refusing = set()

    def _ask(self, index: int) -> None:
        if index in self.refusing:
            raise ConnectionError(f"target {index} is away")


class FannedInPlace(InPlace):
    """Files that are appended to, and two staging areas beside them."""

    def __init__(self, recovery: str | None = None) -> None:
        super().__init__(recovery)
        self.staging = Fanned()

    def sink(self) -> Any:
        return FanOutSink(shelf=ShelfSink(self.shelf), **dict(list(self.staging.sink().children().items())[:2]))

    def founds(self) -> list[Counter[Any]]:
        return [self.found(), *self.staging.founds()[:2]]

    @contextmanager
    def refused_by(self, indices: Sequence[int]) -> Iterator[None]:
        with self.staging.refused_by([0] if indices else []):
            yield
