"""Run on a standalone cluster: copies of slow tasks, and an executor lost after its task's commit, while Spark writes.

Usage: own_writer_cluster.py <empty directory>
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

from outfall.file import FileSink
from outfall.spark import write
from tests.integration.support.cluster_facts import SPECULATION, cluster
from tests.integration.support.probes import events, record, task, until

ROWS = 20


def speculate(session: SparkSession, work: Path) -> None:
    """Have the first attempt of a task commit only when its copy has written all its rows, too."""
    log = str(work / "speculation")

    def slowly(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        retry, partition = task().attemptNumber(), task().partitionId()
        yield from batches
        if partition == 0 and retry == 0:
            until(lambda: events(log, "copy written"))
        record(log, "copy written" if retry else "written", partition=partition)

    rows = session.range(0, ROWS, 1, 2).mapInArrow(slowly, "id long")
    write(rows, FileSink(work / "speculated", format="parquet", writer="spark"))


def lose_an_executor(session: SparkSession, work: Path) -> None:
    """Kill the executor of a task that Spark has committed, while another task holds the job up."""
    log, out, lost = str(work / "loss"), work / "lost", work / "lost.now"

    def held(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        partition = task().partitionId()
        record(log, "runs", partition=partition, executor=os.getppid())
        if partition == 1:
            until(lost.exists)
        yield from batches

    def kill() -> None:
        until(lambda: list(out.glob("_outfall/staging/*.by_spark/_temporary/0/task_*")))
        (executor,) = {event["executor"] for event in events(log, "runs") if event["partition"] == 0}
        os.kill(_jvm_of(executor), signal.SIGKILL)
        record(log, "killed")
        lost.touch()

    killer = threading.Thread(target=kill)
    killer.start()
    write(session.range(0, ROWS, 1, 2).mapInArrow(held, "id long"), FileSink(out, format="parquet", writer="spark"))
    killer.join()


def _jvm_of(worker: int) -> int:
    """The executor above the daemon of its Python workers."""
    while b"CoarseGrainedExecutorBackend" not in Path(f"/proc/{worker}/cmdline").read_bytes():
        worker = int(Path(f"/proc/{worker}/stat").read_text().rpartition(")")[2].split()[1])
    return worker


def main(work: Path) -> None:
    with ExitStack() as stack:
        builder = SparkSession.builder.master(stack.enter_context(cluster(work)))
        builder = builder.config("spark.ui.enabled", "false").config("spark.executor.memory", "512m")
        for name, value in {"": "true", **{f".{name}": value for name, value in SPECULATION.items()}}.items():
            builder = builder.config(f"spark.speculation{name}", value)
        session = builder.getOrCreate()
        stack.callback(session.stop)
        session.sparkContext.setLogLevel("ERROR")
        speculate(session, work)
        lose_an_executor(session, work)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
