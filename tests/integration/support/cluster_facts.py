"""Run on a standalone cluster of its own: what retries and speculation do. Local modes speculate never.

Spark starts no copy of a task on the host that runs the original: the two workers have two loopback addresses.

Usage: cluster_facts.py <directory with one file per micro-batch> <empty directory>
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyarrow as pa
import pyspark
from pyspark.sql import SparkSession

from tests.integration.support.probes import ANSWER, SPARK, answer, events, record, task

HOME = Path(pyspark.__file__).parent
SPECULATION = {"interval": "50ms", "multiplier": "1.1", "quantile": "0.1", "minTaskRuntime": "1s"}


@contextmanager
def daemon(name: str, *arguments: str, work: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Start one of Spark's daemons, its log in a file, and end it at the end."""
    environment = {**os.environ, "SPARK_HOME": str(HOME), "SPARK_WORKER_DIR": str(work), "SPARK_DAEMON_MEMORY": "256m"}
    command = [str(HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}", "--port", "0", "--webui-port", "0"]
    with (work / f"{name}.log").open("ab") as log:
        process = subprocess.Popen([*command, *arguments], stderr=log, stdout=log, env=environment)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(timeout=30)


def address(log: Path) -> str:
    """Return the URL that a master writes into its log when it is up."""
    deadline = time.monotonic() + 180
    while time.monotonic() < deadline:
        if found := re.search(r"Starting Spark master at (spark://\S+)", log.read_text()):
            return found[1]
        time.sleep(0.05)
    raise TimeoutError(log.read_text())


def speculate(session: SparkSession, log: str) -> None:
    """Have the first attempt of one task finish only when its copy has finished too."""

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        (row,) = answer(batches)
        retry, deadline = task().attemptNumber(), time.monotonic() + 120
        while task().partitionId() == 0 and retry == 0 and not events(log, "copy written"):
            if time.monotonic() > deadline:
                raise TimeoutError("Spark started no copy of this task")
            time.sleep(0.01)
        record(log, "copy written" if retry else "written", partition=task().partitionId())
        yield row

    delivered = session.range(20).repartition(2).mapInArrow(write, ANSWER).collect()
    record(log, "delivered", partitions=sorted(row["partition"] for row in delivered))


@contextmanager
def cluster(work: Path) -> Iterator[str]:
    """Start a cluster of two hosts with a core each, and yield the URL of its master."""
    with ExitStack() as stack:
        stack.enter_context(daemon("master.Master", "--host", "127.0.0.1", work=work))
        master = address(work / "master.Master.log")
        for host in ("127.0.0.2", "127.0.0.3"):
            limits = ("--host", host, "--cores", "1", "--memory", "1g")
            stack.enter_context(daemon("worker.Worker", *limits, master, work=work))
        yield master


def main(source: str, work: Path) -> None:
    with ExitStack() as stack:
        builder = SparkSession.builder.master(stack.enter_context(cluster(work))).config("spark.ui.enabled", "false")
        builder = builder.config("spark.executor.memory", "512m").config("spark.speculation", "true")
        for name, value in SPECULATION.items():
            builder = builder.config(f"spark.speculation.{name}", value)
        session = builder.getOrCreate()
        stack.callback(session.stop)
        session.sparkContext.setLogLevel("ERROR")
        speculate(session, str(work / "speculation"))
        if SPARK >= (4, 1):
            facts = session.readStream.schema("id int").json(source).repartition(2).writeStream.format("facts")
            facts = facts.option("log", str(work / "retry")).option("fail", "once")
            facts = facts.option("checkpointLocation", str(work / "chk"))
            facts.trigger(availableNow=True).start().awaitTermination()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
