"""Functions that run inside Spark's processes and tell a test what they saw there."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyspark
from pyspark import TaskContext
from pyspark.sql import DataFrame

SPARK = tuple(int(number) for number in pyspark.__version__.split(".")[:2])
PROPERTIES = ("streaming.sql.batchId", "sql.streaming.queryId")
ANSWER = "partition int, attempt long, retry int, rows long, batch_id string, query_id string"
_ARROW_ANSWER = pa.schema(
    [
        ("partition", pa.int32()),
        ("attempt", pa.int64()),
        ("retry", pa.int32()),
        ("rows", pa.int64()),
        ("batch_id", pa.string()),
        ("query_id", pa.string()),
    ]
)
CALLS: list[int] = []


def record(log: str, what: str, **details: Any) -> None:
    """Append one event to a file, from any process on this machine."""
    event = {"what": what, "process": os.getpid(), "time": time.time(), **details}
    with open(log, "a") as file:
        file.write(json.dumps(event) + "\n")


def events(log: str, *what: str) -> list[dict[str, Any]]:
    """Return the events of these kinds in the order in which they were written."""
    lines = Path(log).read_text().splitlines() if Path(log).exists() else []
    return [event for event in map(json.loads, lines) if event["what"] in what]


def until(condition: Callable[[], object], seconds: float = 120) -> None:
    """Wait for a condition, and fail when it does not come true in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"still not true after {seconds} s")
        time.sleep(0.02)


def task() -> TaskContext:
    """Return the context of the Spark task that this code runs in."""
    context = TaskContext.get()
    if context is None:
        raise RuntimeError("not inside a Spark task")
    return context


def answer(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """For `mapInArrow`: one row per task, which says what the task is and how many rows it got."""
    rows = sum(batch.num_rows for batch in batches)
    batch_id, query_id = map(task().getLocalProperty, PROPERTIES)
    values = (task().partitionId(), task().taskAttemptId(), task().attemptNumber(), rows, batch_id, query_id)
    yield pa.RecordBatch.from_pylist([dict(zip(_ARROW_ANSWER.names, values, strict=True))], schema=_ARROW_ANSWER)


def answers(df: DataFrame) -> list[dict[str, Any]]:
    """Run `answer` over a DataFrame and return its rows by partition."""
    rows = [row.asDict() for row in df.mapInArrow(answer, ANSWER).collect()]
    return sorted(rows, key=lambda row: row["partition"])


def lingers(log: str) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """For `mapInArrow`: a task that keeps writing for longer than any test waits, unless it is killed."""

    def linger(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in range(1000):
            record(log, "lingering", batch_id=task().getLocalProperty(PROPERTIES[0]))
            time.sleep(0.02)
        yield from answer(batches)

    return linger


class Calls:
    """For `foreachBatch`: writes down each call, and what has survived in its process since the one before."""

    def __init__(self, log: str) -> None:
        self.log = log
        self.own: list[int] = []

    def __call__(self, df: DataFrame, batch_id: int) -> None:
        self.own.append(batch_id)
        CALLS.append(batch_id)
        session = type(df.sparkSession)
        record(
            self.log,
            "call",
            batch_id=batch_id,
            own=self.own,
            module=CALLS,
            thread=threading.get_ident(),
            session=f"{session.__module__}.{session.__qualname__}",
            answers=answers(df),
        )
