"""A sink that notes the batches that it gets, and the limits that its task has."""

from __future__ import annotations

import json
import os
import resource
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext

from outfall.capabilities import SupportsArrow
from outfall.sinks import DynamicSink, StatelessSinkPartition
from outfall.spark.arrow_batches import BYTES_SETTING, ROWS_SETTING


class SeenPartition(StatelessSinkPartition[Any], SupportsArrow):
    """Writes one line per batch."""

    def __init__(self, out: Path) -> None:
        self._out = out
        out.mkdir(exist_ok=True, parents=True)

    def write_batch(self, values: list[Any]) -> None:
        raise NotImplementedError

    def write_record_batch(self, batch: pa.RecordBatch) -> None:
        context = TaskContext.get()
        assert context is not None
        line = {
            "rows": batch.num_rows,
            "first": str(batch.column(0)[0])[:20],
            "limits": [context.getLocalProperty(name) for name in (ROWS_SETTING, BYTES_SETTING)],
            "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
        }
        with (self._out / f"{context.taskAttemptId()}-{os.getpid()}").open("a") as file:
            file.write(json.dumps(line) + "\n")


class SeenSink(DynamicSink[Any]):
    """Notes batches in a directory."""

    def __init__(self, out: Path) -> None:
        self.out = out

    def build(self, step_id: str, worker_index: int, worker_count: int) -> SeenPartition:
        return SeenPartition(self.out)


def seen(out: Path) -> list[dict[str, Any]]:
    """Return what was noted, by task."""
    return [json.loads(line) for path in sorted(out.iterdir()) for line in path.read_text().splitlines()]
