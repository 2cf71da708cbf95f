"""A sink that holds rows back in its parts' states and writes them to files, a few large ones in place of many."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

from outfall.capabilities import (
    BufferedRows,
    CommitRequest,
    Committer,
    CommitterInitContext,
    SupportsBufferedRows,
    SupportsCommitter,
    SupportsWriterContext,
    WriterInitContext,
)
from outfall.serde import JsonSerializer, SimpleVersionedSerializer
from outfall.sinks import FixedPartitionedSink, StatefulSinkPartition


class HoldingFiles(
    FixedPartitionedSink[Any, list[Any]], SupportsCommitter[str], SupportsWriterContext, SupportsBufferedRows[list[Any]]
):
    """Two parts, which deliver at `enough` rows."""

    def __init__(self, directory: Path, enough: int) -> None:
        self.directory = directory
        self.enough = enough
        self.name = ""

    def bind(self, context: WriterInitContext) -> Self:
        bound = copy.copy(self)
        bound.name = f"{context.incarnation}-g{context.generation}-{context.part}-a{context.attempt}.json"
        return bound

    def list_parts(self) -> list[str]:
        return ["a", "b"]

    def build_part(self, step_id: str, for_part: str, resume_state: list[Any] | None) -> HoldingFile:
        return HoldingFile(self, resume_state or [])

    def buffered_rows(self, state: list[Any]) -> BufferedRows:
        return BufferedRows(len(state), datetime.now(UTC))

    def create_committer(self, context: CommitterInitContext) -> Committer[str]:
        return Renames(self.directory)

    def committable_serializer(self) -> SimpleVersionedSerializer[Any]:
        return JsonSerializer()


class HoldingFile(StatefulSinkPartition[Any, list[Any]]):
    def __init__(self, sink: HoldingFiles, held: list[Any]) -> None:
        self._sink = sink
        self._held = held
        self._staged: list[str] = []

    def write_batch(self, values: list[Any]) -> None:
        self._held.extend(values)

    def flush(self, end_of_input: bool) -> None:
        if self._held and (end_of_input or len(self._held) >= self._sink.enough):
            (self._sink.directory / f".{self._sink.name}").write_text(json.dumps(self._held))
            self._held, self._staged = [], [self._sink.name]

    def prepare_commit(self) -> Sequence[str]:
        return self._staged

    def snapshot(self) -> list[Any]:
        return self._held


class Renames(Committer[str]):
    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def commit(self, requests: Sequence[CommitRequest[str]]) -> None:
        for request in requests:
            if not (self._directory / request.committable).exists():
                os.rename(self._directory / f".{request.committable}", self._directory / request.committable)


def delivered(directory: Path) -> list[int]:
    """The ids that a reader finds."""
    files = [path for path in directory.iterdir() if path.name[0] != "."]
    return sorted(row["id"] for path in files for row in json.loads(path.read_text()))
