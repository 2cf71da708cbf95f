"""Streams rows into a sink on several executors, slowly, so that a test can kill or stop them. Never imported."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ["PYSPARK_PYTHON"] = sys.executable

from pyspark.sql import SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from outfall.file import FileSink
from outfall.kafka import KafkaSink
from outfall.postgres import PostgresSink
from outfall.s3 import S3Sink
from outfall.spark import drain, write_stream
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
        .config("spark.task.maxFailures", "20")
        .config("spark.network.timeout", "6s")
        .config("spark.executor.heartbeatInterval", "1s")
        .config("spark.network.timeoutInterval", "2s")
        .config("spark.executorEnv.PYTHONPATH", os.environ["PYTHONPATH"])
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    return spark


def make_sink(mode: str, options: dict[str, Any]) -> Any:
    if mode == "growing":
        return FileSink(**options, parts=2)
    if mode == "postgres":
        return PostgresSink(**options)
    if mode == "postgres parts":
        return PostgresSink(**options, parts=2, offset_keys="ledger")
    if mode == "kafka parts":
        return KafkaSink(**options, parts=2, value_format="json")
    if mode == "s3":
        return S3Sink(**options, inline_bytes=0)
    if mode == "s3 rolling":
        return S3Sink(**options, inline_bytes=0, roll_rows=2500)
    if mode == "by spark":
        return FileSink(**options, format="parquet", writer="spark")
    return FileSink(**options)


def writer(spark: SparkSession, root: Path, mode: str, sink: Any) -> DataStreamWriter:
    df = read_stream(spark, root / "source")
    if mode in ("growing", "postgres parts", "kafka parts"):
        return write_stream(df, sink, key="k", checkpoint=root / "checkpoint")
    if mode == "s3 rolling":
        return write_stream(df, sink, workers=2, checkpoint=root / "checkpoint")
    return write_stream(df.repartition(2), sink, checkpoint=root / "checkpoint")


def main(root: Path, mode: str, options: dict[str, Any]) -> None:
    spark, sink = session(root), make_sink(mode, options)
    query = writer(spark, root, mode, sink).trigger(availableNow=True).start()
    print("started", flush=True)
    query.awaitTermination()
    if mode == "s3 rolling":
        drain(sink, checkpoint=root / "checkpoint")
    print("finished", flush=True)
    sys.stdin.read()  # the executors live on until the test has looked at them
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3]))
