"""Harnesses of the sinks in memory that do what they claim."""

from __future__ import annotations

import copy
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from outfall.capabilities import CommitRequest, Committer, CommitterInitContext, TargetContext
from outfall.errors import TargetAheadError, TargetNotEmptyError
from outfall.testing import ByReference, SinkHarness
from tests.unit.support.hoarding import HoardingSink
from tests.unit.support.shelf import Shelf, ShelfSink, values_on
from tests.unit.support.warehouse import (
    Bundle,
    BundlingCommitter,
    BundlingSink,
    HoldingSink,
    Staged,
    StagingCommitter,
    StagingSink,
    Warehouse,
    rows_of,
)


@dataclass(eq=False)
class SharedWarehouse(ByReference, Warehouse):
    """A warehouse that all copies of a sink find."""

    name: str = field(default_factory=lambda: uuid.uuid4().hex)

    def publish_all(self, names: Iterable[str]) -> None:
        """Make staging areas readable together."""
        left = {name: rows for name, rows in self.staged.items() if name not in names}
        self.published, self.staged = self.published | {name: self.staged[name] for name in names}, left


@dataclass(eq=False)
class SharedShelf(ByReference, Shelf):
    """A shelf that all copies of a sink find."""

    name: str = field(default_factory=lambda: uuid.uuid4().hex)
    owner: str | None = None
    """The incarnation that writes here."""


class NamedShelfSink(ShelfSink):
    """Tells shelves and those who write on them apart, and goes by its list of parts alone."""

    shelf: SharedShelf

    def target(self) -> str:
        return f"shelf {self.shelf.name}"

    def check_target(self, context: TargetContext[int]) -> Mapping[str, int]:
        if self.shelf.owner not in (None, context.incarnation):
            raise TargetNotEmptyError("another step writes on the shelf", step=context.step_id)
        listed = copy.copy(self)
        listed.parts = self.list_parts()
        return ShelfSink.check_target(listed, context)

    def open_target(self, context: TargetContext[int]) -> None:
        self.shelf.owner = context.incarnation
        super().open_target(context)


class CarefulStagingSink(StagingSink):
    """Recognises a warehouse that is ahead of the recovery data, or somebody else's."""

    warehouse: SharedWarehouse

    def target(self) -> str:
        return f"warehouse {self.warehouse.name}"

    def check_target(self, context: TargetContext[Any]) -> Mapping[str, Any]:
        for name in self.warehouse.published:
            incarnation, generation, *_ = name.split("-")
            if incarnation != context.incarnation:
                raise TargetNotEmptyError("the warehouse holds another step's rows", step=context.step_id)
            if int(generation[1:]) > context.last_generation:
                raise TargetAheadError(f"{name} is newer than the recovery data", step=context.step_id)
        return super().check_target(context)


class AtomicBundlingCommitter(BundlingCommitter):
    """Publishes each bundle in one assignment, so that no crash comes between."""

    _warehouse: SharedWarehouse

    def commit(self, requests: Sequence[CommitRequest[Bundle]]) -> None:
        for request in requests:
            names = [member.name for member in request.committable.members]
            if set(names) <= self._warehouse.published.keys():
                request.signal_already_committed()
            else:
                self._warehouse.publish_all(names)


class CarefulBundlingSink(BundlingSink, CarefulStagingSink):
    def create_committer(self, context: CommitterInitContext) -> Committer[Any]:
        return AtomicBundlingCommitter(self.warehouse)


class CarefulHoldingSink(HoldingSink, CarefulStagingSink):
    pass


class CarefulHoardingSink(HoardingSink, CarefulStagingSink):
    enough = 2
    warehouse: SharedWarehouse  # type: ignore[assignment]

    def create_committer(self, context: CommitterInitContext) -> Committer[Any]:
        return StagingCommitter(self.warehouse)


class Staging(SinkHarness):
    """Staging areas, published by a committer."""

    # In this process's memory: nothing of it can be killed, synced or deleted.
    strict: bool | None = False

    def new_target(self, directory: Path) -> Any:
        return SharedWarehouse()

    def make_sink(self, target: Any) -> Any:
        return CarefulStagingSink(target)

    def read(self, target: Any) -> Iterable[Any]:
        return rows_of(target)

    def lose(self, target: Any, committable: Staged) -> None:
        target.lose(committable.name)

    def leftovers(self, target: Any) -> int:
        return len(target.staged)

    @contextmanager
    def breaking(self, target: Any) -> Iterator[None]:
        with target.replies_lost():
            yield


class Bundling(Staging):
    """With pre- and post-commit."""

    lose = SinkHarness.lose

    def make_sink(self, target: Any) -> Any:
        return CarefulBundlingSink(target)


class Holding(Staging):
    """With writer state."""

    drain_epochs = 1

    def make_sink(self, target: Any) -> Any:
        return CarefulHoldingSink(target)

    def row(self, number: int) -> Any:
        return [number, f"row {number}: ä"]


class Hoarding(Holding):
    """With rows held back until there are enough, or a drain comes."""

    drain_epochs = 0

    def make_sink(self, target: Any) -> Any:
        return CarefulHoardingSink(target)


class InPlace(SinkHarness):
    """Files that are appended to."""

    # As above.
    strict: bool | None = False

    def new_target(self, directory: Path) -> Any:
        return SharedShelf()

    def make_sink(self, target: Any) -> Any:
        return NamedShelfSink(target)

    def read(self, target: Any) -> Iterable[Any]:
        return values_on(target)

    def lose_target(self, target: Any) -> None:
        target.files.clear()
