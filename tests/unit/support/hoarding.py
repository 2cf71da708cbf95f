"""Committing sinks that hold rows back until there are enough of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from outfall.capabilities import (
    BufferedRows,
    CommitRequest,
    Committer,
    CommitterInitContext,
    SupportsBufferedRows,
    SupportsWriterState,
    WriterInitContext,
)
from outfall.protocol.step import EpochOptions
from outfall.serde import JsonSerializer, SimpleVersionedSerializer
from outfall.sinks import FixedPartitionedSink, StatelessSinkPartition
from outfall.trace_points import reached
from tests.unit.support.setups import Row, Staging
from tests.unit.support.warehouse import (
    Staged,
    StagingCommitter,
    StagingPartition,
    StagingSink,
    Warehouse,
    staging_name,
)

OLDEST = datetime(2026, 11, 21, 12, tzinfo=UTC)
ENOUGH = 5


@dataclass
class LedgerWarehouse(Warehouse):
    """Knows the epochs that it holds by number, as a table with a ledger does."""

    last: int = -1

    def publish_all(self, epoch: int, names: Sequence[str]) -> bool:
        """Publish an epoch at once, unless it or a later one is there."""
        if epoch <= self.last:
            return False
        for name in names:
            self.publish(name)
        self.last = epoch
        return True


class LedgerCommitter(StagingCommitter):
    """Takes an epoch for published when the ledger holds its number."""

    def __init__(self, warehouse: LedgerWarehouse, epoch: int) -> None:
        super().__init__(warehouse)
        self._ledger = warehouse
        self._epoch = epoch

    def commit(self, requests: Sequence[CommitRequest[Staged]]) -> None:
        lost = [
            r for r in requests if self._epoch > self._ledger.last and r.committable.name not in self._ledger.staged
        ]
        for request in lost:
            request.signal_lost(f"{request.committable.name} is gone")
        if lost:
            return
        if not self._ledger.publish_all(self._epoch, [request.committable.name for request in requests]):
            for request in requests:
                request.signal_already_committed()
        reached("fake: published one")
        self._ledger.after_commit()

    def nothing_published(self, requests: Sequence[CommitRequest[Staged]]) -> bool:
        return self._epoch > self._ledger.last


class HoardingPartition(StagingPartition):
    """Stages what it holds once there is enough, or when it must."""

    def __init__(self, warehouse: Warehouse, name: str, held: Sequence[Any], enough: int = ENOUGH) -> None:
        super().__init__(warehouse, name)
        self._held = list(held)
        self._enough = enough

    def write_batch(self, values: list[Any]) -> None:
        self._held.extend(values)

    def flush(self, end_of_input: bool) -> None:
        if self._held and (end_of_input or len(self._held) >= self._enough):
            super().write_batch(self._held)
            self._held = []

    def snapshot(self) -> list[Any]:
        return self._held

    def snapshot_state(self, epoch: int) -> Sequence[list[Any]]:
        return [self._held] if self._held else []


class _Hoarding(StagingSink, SupportsBufferedRows[list[Any]]):
    warehouse: LedgerWarehouse

    def create_committer(self, context: CommitterInitContext) -> Committer[Any]:
        return LedgerCommitter(self.warehouse, context.epoch)

    def buffered_rows(self, state: list[Any]) -> BufferedRows:
        return BufferedRows(len(state), OLDEST if state else None)


class HoardingSink(_Hoarding, SupportsWriterState[Any, list[Any]]):
    """Holds rows in writer states."""

    enough = ENOUGH

    def build(self, step_id: str, worker_index: int, worker_count: int) -> StatelessSinkPartition[Any]:
        assert self._context is not None
        return HoardingPartition(self.warehouse, staging_name(self._context), [], self.enough)

    def restore_writer(self, context: WriterInitContext, recovered: Sequence[list[Any]]) -> StatelessSinkPartition[Any]:
        held = [row for state in recovered for row in state]
        return HoardingPartition(self.warehouse, staging_name(context), held, self.enough)

    def writer_state_serializer(self) -> SimpleVersionedSerializer[list[Any]]:
        return JsonSerializer()


class HoardingParts(_Hoarding):
    """Holds rows in the states of three parts."""

    build = None  # type: ignore[assignment]
    part_fn = FixedPartitionedSink.part_fn

    def list_parts(self) -> list[str]:
        return ["a", "b", "c"]

    def build_part(self, step_id: str, for_part: str, resume_state: list[Any] | None) -> HoardingPartition:
        assert self._context is not None
        return HoardingPartition(self.warehouse, f"{staging_name(self._context)}-{for_part}", resume_state or [])


class Hoarding(Staging):
    """Rows in writer states of two workers."""

    warehouse: LedgerWarehouse

    def __init__(self, recovery: str | None = None) -> None:
        super().__init__(recovery)
        self.warehouse = LedgerWarehouse()

    def sink(self) -> Any:
        return HoardingSink(self.warehouse)

    def options(self) -> EpochOptions:
        return EpochOptions(worker_count=2)

    def tasks(self, rows: Sequence[Sequence[Row]]) -> list[list[Any]]:
        flat = [list(row) for task in rows for row in task]
        return [flat[::2], flat[1::2]]

    def drain(self, epoch: int) -> None:
        self.driver().drain()


class HoardingInParts(Hoarding):
    """Rows in the states of parts."""

    def sink(self) -> Any:
        return HoardingParts(self.warehouse)

    def options(self) -> EpochOptions:
        return EpochOptions()

    def tasks(self, rows: Sequence[Sequence[Row]]) -> list[list[Any]]:
        return [[(str(row[2]), list(row)) for row in task] for task in rows]
