"""A driver process that streams flights somewhere, made to be killed. Run by tests, never imported."""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
from pathlib import Path
from typing import Any

os.environ["PYSPARK_PYTHON"] = sys.executable

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from outfall.file import FileSink
from outfall.spark import arrow_batches, write, write_stream
from tests.integration.support.flights import SCHEMA

STATEFUL = ("stateful", "stateful in rocksdb")
SMALL = 100
STATE = "org.apache.spark.sql.execution.streaming.state.{}StateStoreProvider"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    for name in ("input", "out", "checkpoint", "mode", "api", "master", "shuffle", "split", "local"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--dsn", help="of the database that has a table t, or the URL of a server, in place of files")
    parser.add_argument("--s3", help="options of S3Sink as JSON, in place of files")
    parser.add_argument("--kafka", help="options of KafkaSink as JSON, in place of files")
    parser.add_argument("--lake", help="options of a sink of tables as JSON, `sink` among them, in place of files")
    parser.add_argument("--recovery", help="where the log is, in place of the checkpoint")
    parser.add_argument("--until", help="a file: the query goes on until it is there, and no input is left")
    parser.add_argument("--batch", help="of a batch job, the number of its epoch, in place of a stream")
    parser.add_argument("--said", help="a directory for what Python logs, by process, which needs no JVM to be read")
    return parser.parse_args()


def join_batches() -> None:
    """Have batches of 100 rows, so that a task of some hundred rows joins them, as one of many rows does."""
    for name in ("MOST_ROWS", "MOST_UNKNOWN_ROWS", "_MOST_UNKNOWN_ROWS_OF_MANY_COLUMNS"):
        assert getattr(arrow_batches, name) > SMALL
        setattr(arrow_batches, name, SMALL)


def session(given: argparse.Namespace) -> SparkSession:
    builder = (
        SparkSession.builder.master(given.master)
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.local.dir", given.local)
        .config("spark.sql.warehouse.dir", given.local)
        .config("spark.sql.shuffle.partitions", given.shuffle)
        .config("spark.sql.files.maxPartitionBytes", given.split)
        .config("spark.task.maxFailures", "6")
        .config(
            "spark.sql.streaming.stateStore.providerClass",
            STATE.format("RocksDB" if "rocksdb" in given.mode else "HDFSBacked"),
        )
    )
    if given.master != "yarn":
        # There the containers of two hosts have an address each.
        builder = builder.config("spark.driver.bindAddress", "127.0.0.1")
        builder = builder.config("spark.executorEnv.PYTHONPATH", os.environ.get("PYTHONPATH", ""))
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    return spark


def writer(df: DataFrame, given: argparse.Namespace) -> DataStreamWriter:
    if given.s3:
        return bucket_writer(df, given)
    if given.kafka:
        return topic_writer(df, given)
    if given.lake:
        return lake_writer(df, given)
    if not given.dsn:
        return file_writer(df, given)
    return http_writer(df, given) if given.dsn.startswith("http") else table_writer(df, given)


def http_writer(df: DataFrame, given: argparse.Namespace) -> DataStreamWriter:
    from outfall.http import HttpSink

    if given.mode == "content":
        sink = HttpSink(given.dsn, body="record", idempotency="content")
    else:
        sink = HttpSink(given.dsn, idempotency="item", key_column="id")
    return write_stream(df, sink, checkpoint=given.checkpoint)


def bucket_writer(df: DataFrame, given: argparse.Namespace) -> DataStreamWriter:
    from outfall.s3 import S3Sink

    options = json.loads(given.s3)
    if given.api == "options":
        writer = df.writeStream.format("outfall").option("sink", "s3").option("checkpointLocation", given.checkpoint)
        return writer.options(**options)
    return write_stream(df, S3Sink(**options), checkpoint=given.checkpoint)


def topic_writer(df: DataFrame, given: argparse.Namespace) -> DataStreamWriter:
    from outfall.kafka import KafkaSink

    return write_stream(df, KafkaSink(**json.loads(given.kafka)), key="carrier", checkpoint=given.checkpoint)


def lake_writer(df: DataFrame, given: argparse.Namespace) -> DataStreamWriter:
    options = json.loads(given.lake)
    if given.mode == "many tables":
        # As many names as the first entry allows, which ends with a star.
        df = df.selectExpr("*", f"concat('{options['allowed_tables'].rstrip('*')}', pmod(id, 20)) AS place")
    if given.api == "options":
        writer = df.writeStream.format("outfall").options(**options)
        return writer.option("checkpointLocation", given.checkpoint)
    if options.pop("sink") == "delta":
        from outfall.delta import DeltaSink

        return write_stream(df, DeltaSink(**options), checkpoint=given.checkpoint)
    from outfall.iceberg import IcebergSink

    return write_stream(df, IcebergSink(**options), checkpoint=given.checkpoint)


def table_writer(df: DataFrame, given: argparse.Namespace) -> DataStreamWriter:
    sink_class, name = _database(given.dsn)
    if given.api == "options":
        options = {"sink": name, "dsn": given.dsn, "table": "t", "checkpointLocation": given.checkpoint}
        return df.writeStream.format("outfall").options(**options)
    if given.mode == "upsert":
        counts = df.groupBy("carrier").agg(sf.count("id").alias("flights"), sf.sum("distance").alias("distance"))
        sink = sink_class(given.dsn, "t", write_mode="upsert", key_columns="carrier")
        return write_stream(counts, sink, checkpoint=given.checkpoint).outputMode("update")
    if given.mode == "changes":
        rows = df.selectExpr("coalesce(tailnum, '') AS tailnum", "id", "distance", "IF(id % 7 = 0, 'd', 'u') AS op")
        sink = sink_class(
            given.dsn,
            "t",
            write_mode="changes",
            key_columns="tailnum",
            operation_column="op",
            sequence_column="id",
        )
        return write_stream(rows, sink, checkpoint=given.checkpoint)
    if given.mode == "many tables":
        routed = df.selectExpr("*", "concat('t', pmod(id, 50)) AS place")
        sink = sink_class(given.dsn, table_column="place", allowed_tables="t*")
        return write_stream(routed, sink, checkpoint=given.checkpoint, recovery=given.recovery)
    if given.mode == "source offsets":
        sink = sink_class(given.dsn, "t", offset_columns="id")
        return write_stream(df, sink, checkpoint=given.checkpoint)
    if given.mode == "parts":
        sink = sink_class(given.dsn, "t", parts=5, offset_keys="ledger")
        return write_stream(df, sink, key="carrier", checkpoint=given.checkpoint)
    return write_stream(df, sink_class(given.dsn, "t"), checkpoint=given.checkpoint, recovery=given.recovery)


def _database(dsn: str) -> tuple[Any, str]:
    """Return the sink of a database, and its name as an option."""
    if dsn.startswith("mysql:"):
        from outfall.mysql import MySQLSink

        return MySQLSink, "mysql"
    from outfall.postgres import PostgresSink

    return PostgresSink, "postgres"


def file_writer(df: DataFrame, given: argparse.Namespace) -> DataStreamWriter:
    if given.api == "options":
        options = {"sink": "file", "path": given.out, "checkpointLocation": given.checkpoint}
        if given.recovery:
            options["recovery"] = given.recovery
        return df.writeStream.format("outfall").options(**options)
    if given.mode in {"growing", "rolling"}:
        sink = FileSink(given.out, parts=5, roll_bytes="20 KiB" if given.mode == "rolling" else None)
        recovery = f"sqlite://{given.checkpoint}-recovery" if given.api == "sqlite" else given.recovery
        return write_stream(df, sink, key="carrier", checkpoint=given.checkpoint, recovery=recovery)
    by_spark: dict[str, Any] = {"format": "parquet", "writer": "spark"} if given.mode == "by spark" else {}
    sink = FileSink(given.out, **by_spark)
    return write_stream(df, sink, checkpoint=given.checkpoint, recovery=given.recovery)


def write_batch(spark: SparkSession, given: argparse.Namespace) -> None:
    df = spark.read.schema(SCHEMA).csv(given.input)
    key = "carrier" if given.mode == "growing" else None
    write(df, sink_of(given), key=key, epoch=int(given.batch), recovery=given.checkpoint)


def sink_of(given: argparse.Namespace) -> Any:
    if given.dsn:
        from outfall.postgres import PostgresSink

        return PostgresSink(given.dsn, "t")
    return FileSink(given.out, parts=5) if given.mode == "growing" else FileSink(given.out)


def await_end(query: StreamingQuery, until: Path) -> None:
    """Let the query go on until a file appears, and then until it has no input left."""
    while not until.exists():
        if query.awaitTermination(1):
            return
    query.processAllAvailable()
    query.stop()


def main() -> None:
    given = arguments()
    if given.said:
        logging.basicConfig(filename=f"{given.said}/{os.getpid()}", level=logging.WARNING)
    join_batches()
    spark = session(given)
    if given.batch:
        write_batch(spark, given)
        spark.stop()
        return
    df = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).csv(given.input)
    if given.mode in STATEFUL:
        df = df.dropDuplicates(["id"])
    if given.until:
        query = writer(df, given).trigger(processingTime="100 milliseconds").start()
        await_end(query, Path(given.until))
    query = writer(df, given).trigger(availableNow=True).start()
    print("started", flush=True)
    query.awaitTermination()
    print("finished", flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
