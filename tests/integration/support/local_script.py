"""A driver without Spark that runs epochs into files: `python local_script.py <directory> <epochs> <content>`.

Each task stages a file; the committer renames it. Imports the crash points, so that the environment can kill it.
"""

from __future__ import annotations

import copy
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from outfall.capabilities import (
    CommitRequest,
    Committer,
    CommitterInitContext,
    SupportsCommitter,
    SupportsWriterContext,
    WriterInitContext,
)
from outfall.serde import JsonSerializer
from outfall.sinks import DynamicSink, StatelessSinkPartition
from outfall.testing import LocalDriver
from outfall.trace_points import reached


class Partition(StatelessSinkPartition[Any]):
    """Writes a hidden file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._rows: list[Any] = []

    def write_batch(self, values: list[Any]) -> None:
        self._rows += values
        self._path.write_text(json.dumps(self._rows))

    def prepare_commit(self) -> Sequence[str]:
        return [self._path.name] if self._rows else []


class RenamingCommitter(Committer[str]):
    """Shows hidden files."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def commit(self, requests: Sequence[CommitRequest[str]]) -> None:
        for request in requests:
            hidden = self._directory / request.committable
            shown = self._directory / request.committable.lstrip(".")
            if shown.exists():
                request.signal_already_committed()
            else:
                os.rename(hidden, shown)
            reached("script: renamed")


class RenamingSink(DynamicSink[Any], SupportsCommitter[str], SupportsWriterContext):
    """Files that are hidden until they are committed."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._name = ""

    def bind(self, context: WriterInitContext) -> Self:
        bound = copy.copy(self)
        bound._name = f".{context.generation}-{context.epoch}-{context.attempt}"
        return bound

    def build(self, step_id: str, worker_index: int, worker_count: int) -> StatelessSinkPartition[Any]:
        return Partition(self._directory / self._name)

    def create_committer(self, context: CommitterInitContext) -> Committer[str]:
        return RenamingCommitter(self._directory)

    def committable_serializer(self) -> JsonSerializer:
        return JsonSerializer()


def main(directory: Path, epochs: int, content: str) -> None:
    """Run what is left of the epochs, in two tasks each, from the last one that began, as Spark's offset log has it."""
    out, offset = directory / "out", directory / "offset"
    out.mkdir(exist_ok=True)
    driver = LocalDriver(RenamingSink(out), str(directory / "chk"))
    for epoch in range(int(offset.read_text()) if offset.exists() else 0, epochs):
        offset.write_text(str(epoch))
        driver.run_epoch(epoch, [[[epoch, content, 0]], [[epoch, content, 1], [epoch, content, 2]]])


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
