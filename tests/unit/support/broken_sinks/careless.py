"""Faults of sinks that do not look at their target before they write, or claim what they do not do."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from outfall.capabilities import Guarantee, TargetContext
from outfall.errors import FencedError, TargetLostError
from outfall.sinks import DynamicSink, StatelessSinkPartition
from outfall.target_record import TargetRecord
from outfall.testing import ByReference, SinkHarness
from tests.unit.support.broken_sinks.registry import found_by
from tests.unit.support.conforming import CarefulStagingSink, InPlace, NamedShelfSink, SharedWarehouse, Staging
from tests.unit.support.warehouse import PlainPartition, StagingSink


class Rows(ByReference, list[Any]):
    """A list that all copies of a sink find."""


class AppendingSink(DynamicSink[Any]):
    """Appends at once, and declares nothing."""

    def __init__(self, rows: Rows) -> None:
        self.rows = rows

    def build(self, step_id: str, worker_index: int, worker_count: int) -> StatelessSinkPartition[Any]:
        return PlainPartition(self.rows)


class AtLeastOnce(SinkHarness):
    """Claims no more than it does."""

    def new_target(self, directory: Path) -> Any:
        return Rows()

    def make_sink(self, target: Any) -> Any:
        return AppendingSink(target)

    def read(self, target: Any) -> Iterable[Any]:
        return list(target)


@found_by("declared_guarantee", "the test claims EXACTLY_ONCE, but the sink declares AT_LEAST_ONCE")
@found_by("replay_of_a_lost_epoch", "EXACTLY_ONCE does not hold")
class ClaimsTooMuch(AtLeastOnce):
    claim = Guarantee.EXACTLY_ONCE


class OpenWarehouse(SharedWarehouse):
    """Writes down who publishes, and refuses nobody."""

    def note(self, names: Iterable[str]) -> None:
        with suppress(FencedError):
            super().note(names)


class BlindSink(StagingSink):
    """Knows its target, and never looks at it."""


@found_by("rewound_log", "the run was not rejected")
@found_by("lost_log", "the run was not rejected")
@found_by("foreign_log", "two targets have the same name")
class NeverLooksAtItsTarget(Staging):
    def new_target(self, directory: Path) -> Any:
        return OpenWarehouse()

    def make_sink(self, target: Any) -> Any:
        return BlindSink(target)


class CheckingOnceSink(CarefulStagingSink):
    """Compares its target with the log before BEGIN, and never again."""

    def open_target(self, context: TargetContext[Any]) -> None:
        with suppress(FencedError):
            super().open_target(context)


@found_by("copied_log", "the log was copied, and both began")
class NeverLooksAgain(Staging):
    def new_target(self, directory: Path) -> Any:
        return OpenWarehouse()

    def make_sink(self, target: Any) -> Any:
        return CheckingOnceSink(target)


@found_by("log_copied_during_an_epoch", "of its 6 rows 6 are missing")
class TakesCompletedRowsForLeftovers(InPlace):
    not_claimed = {"failed_job": InPlace.not_claimed["failed_job"]}


class AheadSink(CarefulStagingSink):
    """Recognises a target that is ahead, or empty, and goes on with one that is behind."""

    def check_target(self, context: TargetContext[Any]) -> Mapping[str, Any]:
        found = self.warehouse.records.get(context.incarnation)
        if found is not None and found.generation <= context.last_generation:
            begun = {found.generation: context.begun.get(found.generation, found.token or "")}
            context = replace(context, begun=begun, published=None)
        return super().check_target(context)

    def open_target(self, context: TargetContext[Any]) -> None:
        found = self.warehouse.records.get(context.incarnation, TargetRecord(0))
        self.warehouse.records[context.incarnation] = TargetRecord(context.generation, context.token, found.epoch)


@found_by("restored_target", "the run was not rejected")
class WritesOnAfterARestore(Staging):
    def make_sink(self, target: Any) -> Any:
        return AheadSink(target)


class FreshSink(NamedShelfSink):
    """Takes every part that has no state for empty."""

    def check_target(self, context: TargetContext[int]) -> Mapping[str, int]:
        if context.first_contact:
            self.shelf.files.clear()
        return super().check_target(context)


@found_by("second_query", "another query with its own recovery data")
class WritesOverStrangers(InPlace):
    def make_sink(self, target: Any) -> Any:
        return FreshSink(target)


class UnmeasuringSink(NamedShelfSink):
    """Does not compare lengths."""

    def check_target(self, context: TargetContext[int]) -> Mapping[str, int]:
        return {part: 0 for part in self.list_parts() if part not in context.states}


@found_by("lost_target", "the run was not rejected")
class WritesOnAfterALoss(InPlace):
    def make_sink(self, target: Any) -> Any:
        return UnmeasuringSink(target)


class AddressedSink(CarefulStagingSink):
    """Its records are elsewhere, and of the warehouse itself it knows the address."""


@found_by("lost_target", "deleted, and created again under its address.*What to do: compare the target")
class TakesAnAddressForAnIdentity(Staging):
    def make_sink(self, target: Any) -> Any:
        return AddressedSink(target)

    def replace_target(self, target: Any) -> None:
        target.published, target.staged, target.identity = {}, {}, uuid.uuid4().hex


class IdentifyingSink(AddressedSink):
    """Stores with its record what the warehouse says of itself."""

    def check_target(self, context: TargetContext[Any]) -> Mapping[str, Any]:
        known = self.warehouse.identities.get(context.incarnation, self.warehouse.identity)
        if known != self.warehouse.identity:
            raise TargetLostError("the warehouse was created again", step=context.step_id)
        return super().check_target(context)

    def open_target(self, context: TargetContext[Any]) -> None:
        super().open_target(context)
        self.warehouse.identities[context.incarnation] = self.warehouse.identity


class ComparesIdentities(TakesAnAddressForAnIdentity):
    """Recognises a target that was created again."""

    def make_sink(self, target: Any) -> Any:
        return IdentifyingSink(target)
