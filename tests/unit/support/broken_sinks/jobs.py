"""Staging sinks with one fault each in what batch jobs and commands call."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, Self

import pyarrow as pa

from outfall.capabilities import SaveMode, TargetContext
from outfall.errors import TargetNotEmptyError
from tests.unit.support.broken_sinks.registry import found_by
from tests.unit.support.broken_sinks.staged import Faulty
from tests.unit.support.conforming import CarefulStagingSink


class MarkingSink(CarefulStagingSink):
    """Marks its target for one query, and leaves the mark when its job has failed."""

    def check_target(self, context: TargetContext[Any]) -> Mapping[str, Any]:
        if self.warehouse.followed - {context.incarnation}:
            raise TargetNotEmptyError("another query has begun here", step=context.step_id)
        return super().check_target(context)

    def open_target(self, context: TargetContext[Any]) -> None:
        super().open_target(context)
        self.warehouse.followed.add(context.incarnation)


@found_by("failed_job", "the target rejected the next job")
class LeavesAMark(Faulty):
    sink = MarkingSink


class AddingSink(CarefulStagingSink):
    """Adds its rows in every save mode."""

    adds = False

    def in_save_mode(self, mode: SaveMode | None) -> Self:
        changed = copy.copy(self)
        changed.adds = True
        return changed

    def check_target(self, context: TargetContext[Any]) -> Mapping[str, Any]:
        return {} if self.adds else super().check_target(context)


@found_by("save_modes", "the second job was not rejected")
class AddsInEveryMode(Faulty):
    sink = AddingSink


class OverwritingNothingSink(AddingSink):
    """Adds its rows in the save mode that replaces, too."""

    def in_save_mode(self, mode: SaveMode | None) -> Self:
        return copy.copy(self) if mode == "error" else super().in_save_mode(mode)


@found_by("save_modes", "6 of 6 existing rows are in the target.*mode='overwrite'")
class OverwritesNothing(Faulty):
    sink = OverwritingNothingSink


class ModeOnItselfSink(AddingSink):
    def in_save_mode(self, mode: SaveMode | None) -> Self:
        self.adds = True
        return self


@found_by("save_modes", r"in_save_mode\('append'\) changed the sink")
class KeepsTheModeOnItself(Faulty):
    sink = ModeOnItselfSink


class AlwaysReachableSink(CarefulStagingSink):
    def check_connection(self) -> Sequence[str]:
        return ["the warehouse can be reached"]


@found_by("connection_check", r"check_connection\(\) succeeded although")
class OverlooksAnOutage(Faulty):
    sink = AlwaysReachableSink


class EmptyingCheckSink(CarefulStagingSink):
    def check_connection(self) -> Sequence[str]:
        self.warehouse.published.clear()
        return ()


@found_by("connection_check", r"check_connection\(\) changed the target")
class ChangesWhatItChecks(Faulty):
    sink = EmptyingCheckSink


class LackingColumnSink(CarefulStagingSink):
    def row_schema(self) -> pa.Schema:
        return pa.schema({"id": pa.int64()})


@found_by("connection_check", r"row_schema\(\) has no column text")
class LacksAColumn(Faulty):
    sink = LackingColumnSink
