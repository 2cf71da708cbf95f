"""Streams rows into files on several executors, slowly, so that a test can kill or stop them. Never imported."""

from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ["PYSPARK_PYTHON"] = sys.executable

from pyspark.sql import SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from outfall.file import FileSink
from outfall.spark import write_stream
from tests.integration.support.reading import read_stream


def session(root: Path) -> SparkSession:
    spark = (
        SparkSession.builder.master("local-cluster[2,1,1024]")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.local.dir", str(root / "local"))
        .config("spark.sql.warehouse.dir", str(root / "local"))
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.execution.arrow.maxRecordsPerBatch", "100")
        .config("spark.task.maxFailures", "20")
        .config("spark.network.timeout", "6s")
        .config("spark.executor.heartbeatInterval", "1s")
        .config("spark.network.timeoutInterval", "2s")
        .config("spark.executorEnv.PYTHONPATH", os.environ["PYTHONPATH"])
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    return spark


def writer(spark: SparkSession, root: Path, mode: str) -> DataStreamWriter:
    df = read_stream(spark, root / "source")
    if mode == "growing":
        return write_stream(df, FileSink(root / "out", parts=2), key="k", checkpoint=root / "checkpoint")
    return write_stream(df.repartition(2), FileSink(root / "out"), checkpoint=root / "checkpoint")


def main(root: Path, mode: str) -> None:
    spark = session(root)
    query = writer(spark, root, mode).trigger(availableNow=True).start()
    print("started", flush=True)
    query.awaitTermination()
    print("finished", flush=True)
    sys.stdin.read()  # the executors live on until the test has looked at them
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
