"""Faults of sinks with writer state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from outfall.capabilities import WriterInitContext
from outfall.sinks import StatelessSinkPartition
from tests.unit.support.broken_sinks.registry import found_by
from tests.unit.support.conforming import CarefulHoldingSink, Holding


class OneStateSink(CarefulHoldingSink):
    """Expects as many writers as there were before."""

    def restore_writer(self, context: WriterInitContext, recovered: Sequence[list[Any]]) -> StatelessSinkPartition[Any]:
        return super().restore_writer(context, recovered[:4])


@found_by("rescaling", "are missing")
class RestoresFewStates(Holding):
    def make_sink(self, target: Any) -> Any:
        return OneStateSink(target)
