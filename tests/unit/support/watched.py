"""Sinks that tell what is done to them, or shape the rows, for tests of those who hold several."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from outfall.capabilities import (
    DeclaresGuarantee,
    Guarantee,
    SupportsPreWriteTopology,
)
from outfall.sinks import DynamicSink, StatelessSinkPartition


class Watched(DynamicSink[Any], DeclaresGuarantee):
    """Says what is done with it; may change what it was given, and fail on closing."""

    def __init__(self, name: str, seen: list[Any], *, spoils: bool = False, fails: bool = False) -> None:
        self.name, self.seen, self.spoils, self.fails = name, seen, spoils, fails

    def build(self, step_id: str, worker_index: int, worker_count: int) -> StatelessSinkPartition[Any]:
        return _WatchedPartition(self)

    def guarantee(self) -> Guarantee:
        return Guarantee.EFFECTIVELY_ONCE

    def requires(self) -> Sequence[str]:
        return ("care",)


class _WatchedPartition(StatelessSinkPartition[Any]):
    def __init__(self, sink: Watched) -> None:
        self._sink = sink

    def write_batch(self, values: list[Any]) -> None:
        self._sink.seen.append((self._sink.name, copy.deepcopy(values)))
        if self._sink.spoils:
            for value in values:
                value["id"] = value["nested"]["id"] = -1
            values.clear()

    def close(self) -> None:
        self._sink.seen.append((self._sink.name, "closed"))
        if self._sink.fails:
            raise OSError(f"{self._sink.name} cannot be closed")


class Sorting(DynamicSink[Any], SupportsPreWriteTopology):
    def build(self, step_id: str, worker_index: int, worker_count: int) -> StatelessSinkPartition[Any]:
        raise NotImplementedError

    def add_pre_write_topology(self, df: Any) -> Any:
        return [*df, "sorted"]
