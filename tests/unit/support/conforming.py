"""Harnesses of the sinks in memory that do what they claim."""

from __future__ import annotations

import copy
import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from outfall.capabilities import (
    CommitRequest,
    Committer,
    CommitterInitContext,
    PartSeal,
    SealContext,
    TargetContext,
    WriterId,
    WriterInitContext,
)
from outfall.errors import FencedError, TargetNotEmptyError
from outfall.sinks import StatefulSinkPartition
from outfall.target_record import TargetRecord, behind, check_opening, check_record, check_writing
from outfall.testing import ByReference, SinkHarness
from tests.unit.support.hoarding import HoardingSink
from tests.unit.support.shelf import PartFile, Shelf, ShelfPartition, ShelfSink, values_on
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

_STAGED = re.compile(r"(?P<incarnation>\w+)-g(?P<generation>\d+)-e(?P<epoch>\d+)-.*-t(?P<token>\w+)")


@dataclass(eq=False)
class SharedWarehouse(ByReference, Warehouse):
    """A warehouse that all copies of a sink find."""

    name: str = field(default_factory=lambda: uuid.uuid4().hex)
    records: dict[str, TargetRecord] = field(default_factory=dict)
    """Incarnation → the BEGIN that last opened the warehouse, and the newest epoch."""
    identity: str = "the first"
    """What the warehouse says of itself: another one for each that is created."""
    identities: dict[str, str] = field(default_factory=dict)
    """Incarnation → the identity of the warehouse that it opened."""

    def publish(self, name: str) -> None:
        """Make a staging area readable, unless another driver has opened the warehouse since."""
        self.note([name])
        super().publish(name)

    def publish_all(self, names: Iterable[str]) -> None:
        """Make staging areas readable together."""
        self.note(names)
        left = {name: rows for name, rows in self.staged.items() if name not in names}
        self.published, self.staged = self.published | {name: self.staged[name] for name in names}, left

    def note(self, names: Iterable[str]) -> None:
        """Refuse what was staged under another BEGIN than the last, and write down the epoch of the others."""
        for found in filter(None, map(_STAGED.fullmatch, names)):
            record = TargetRecord(int(found["generation"]), found["token"], int(found["epoch"]))
            last = self.records.get(found["incarnation"], record)
            if (last.generation, last.token) != (record.generation, record.token):
                raise FencedError(f"another driver has opened the warehouse since {found[0]} was staged")
            self.records[found["incarnation"]] = record


@dataclass(eq=False)
class SharedShelf(ByReference, Shelf):
    """A shelf that all copies of a sink find."""

    name: str = field(default_factory=lambda: uuid.uuid4().hex)
    owner: str | None = None
    """The incarnation that writes here."""
    record: TargetRecord = field(default_factory=lambda: TargetRecord(0))
    """The BEGIN that last opened the shelf."""


class FencedPartition(ShelfPartition):
    """Writes while no other driver has opened the shelf."""

    def __init__(self, shelf: SharedShelf, context: WriterInitContext, file: PartFile, length: int) -> None:
        self._shelf = shelf
        self._context = context
        self._check()
        super().__init__(file, WriterId(context.generation, context.epoch, context.attempt), length)

    def write_batch(self, values: list[Any]) -> None:
        for value in values:
            self._check()
            super().write_batch([value])

    def snapshot(self) -> int:
        self._check()
        return super().snapshot()

    def _check(self) -> None:
        check_writing("the shelf", self._shelf.record, self._context)


class NamedShelfSink(ShelfSink):
    """Tells shelves and those who write on them apart, and goes by its list of parts alone."""

    shelf: SharedShelf

    def target(self) -> str:
        return f"shelf {self.shelf.name}"

    def check_target(self, context: TargetContext[int]) -> Mapping[str, int]:
        if self.shelf.owner not in (None, context.incarnation):
            raise TargetNotEmptyError("another step writes on the shelf", step=context.step_id)
        if self.shelf.owner is not None:
            check_record("the shelf", self.shelf.record, context, ahead="restore the recovery data")
        listed = copy.copy(self)
        listed.parts = self.list_parts()
        return ShelfSink.check_target(listed, context)

    def open_target(self, context: TargetContext[int]) -> None:
        if self.shelf.owner is not None:
            check_opening("the shelf", self.shelf.record, context)
        self.shelf.owner = context.incarnation
        self.shelf.record = TargetRecord(context.generation, context.token)
        super().open_target(context)

    def build_part(self, step_id: str, for_part: str, resume_state: int | None) -> StatefulSinkPartition[Any, int]:
        assert self._context is not None
        return FencedPartition(self.shelf, self._context, self.shelf.file(for_part), resume_state or 0)

    def seal(self, context: SealContext, parts: Sequence[PartSeal[int]]) -> None:
        for part in parts:
            check_writing("the shelf", self.shelf.record, context)
            super().seal(context, [part])


class CarefulStagingSink(StagingSink):
    """Compares the warehouse with the recovery data, and recognises somebody else's."""

    warehouse: SharedWarehouse

    def target(self) -> str:
        return f"warehouse {self.warehouse.name}"

    def check_target(self, context: TargetContext[Any]) -> Mapping[str, Any]:
        for name in self.warehouse.published:
            if name.split("-")[0] != context.incarnation:
                raise TargetNotEmptyError("the warehouse holds another step's rows", step=context.step_id)
        found = self.warehouse.records.get(context.incarnation)
        if found is not None:
            check_record("the warehouse", found, context, ahead="restore the recovery data")
        elif context.completed is not None:
            raise behind("the warehouse", "it has no record", step=context.step_id, epoch=context.epoch)
        return super().check_target(context)

    def open_target(self, context: TargetContext[Any]) -> None:
        found = self.warehouse.records.get(context.incarnation, TargetRecord(0))
        check_opening("the warehouse", found, context)
        self.warehouse.records[context.incarnation] = TargetRecord(context.generation, context.token, found.epoch)


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

    def lose_target(self, target: Any) -> None:
        target.published, target.staged, target.records = {}, {}, {}

    def save_target(self, target: Any) -> Callable[[], None]:
        return saved(target, "published", "staged", "records")

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


class HoldingNewest(Holding):
    """With one visible row per key, the newest."""

    def replacing_row(self, number: int, version: int) -> Any:
        return [number, f"version {version}"]

    def read(self, target: Any) -> Iterable[Any]:
        return list({number: [number, text] for number, text in super().read(target)}.values())


class Hoarding(Holding):
    """With rows held back until there are enough, or a drain comes."""

    drain_epochs = 0

    def make_sink(self, target: Any) -> Any:
        return CarefulHoardingSink(target)


class InPlace(SinkHarness):
    """Files that are appended to."""

    # As above.
    strict: bool | None = False
    not_claimed: Mapping[str, str] = {
        "log_copied_during_an_epoch": "a part is sealed before its epoch is recorded",
        "failed_job": "a shelf orders generations only, and those of the next job begin anew",
    }

    def new_target(self, directory: Path) -> Any:
        return SharedShelf()

    def make_sink(self, target: Any) -> Any:
        return NamedShelfSink(target)

    def read(self, target: Any) -> Iterable[Any]:
        return values_on(target)

    def lose_target(self, target: Any) -> None:
        target.files.clear()

    def save_target(self, target: Any) -> Callable[[], None]:
        return saved(target, "files", "record")


def saved(target: Any, *names: str) -> Callable[[], None]:
    """Copy attributes of a target in memory, and return a function that restores them."""
    copies = copy.deepcopy({name: getattr(target, name) for name in names})
    return lambda: vars(target).update(copies)
