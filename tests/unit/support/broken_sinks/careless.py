"""Faults of sinks that do not look at their target before they write, or claim what they do not do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from outfall.capabilities import Guarantee, TargetContext
from outfall.sinks import DynamicSink, StatelessSinkPartition
from outfall.testing import ByReference, SinkHarness
from tests.unit.support.broken_sinks.registry import found_by
from tests.unit.support.conforming import InPlace, NamedShelfSink, Staging
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


class BlindSink(StagingSink):
    """Knows its target, and never looks at it."""


@found_by("rewound_log", "the run was not rejected")
@found_by("lost_log", "the run was not rejected")
@found_by("foreign_log", "two targets have the same name")
class NeverLooksAtItsTarget(Staging):
    def make_sink(self, target: Any) -> Any:
        return BlindSink(target)


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
