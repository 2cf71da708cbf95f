"""A driver that applies the changes of topics to tables, until it is killed: `python -m … OPTIONS`, as JSON.

The options are `kafka`, `columns`, of one table or by table, `checkpoint` and the offsets that it is `starting` at, how
many of them an epoch has at most (`per_epoch`), the name of the `sink` and its `options`, whether deletes are `marked`,
`lives` of the topics, as `TopicGenerations` takes them, and `on_truncate`.
"""

from __future__ import annotations

import json
import re
import sys
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as sql

from outfall.delta import DeltaSink
from outfall.iceberg import IcebergSink
from outfall.kafka import TopicGenerations
from outfall.mysql import MySQLSink
from outfall.opensearch import OpenSearchSink
from outfall.postgres import PostgresSink
from outfall.redis import RedisSink
from outfall.spark import write_stream
from outfall.spark.debezium import changes
from tests.peers.support.jars import jars

SINKS: dict[str, Any] = {
    "postgres": PostgresSink, "mysql": MySQLSink, "delta": DeltaSink, "iceberg": IcebergSink, "redis": RedisSink,
    "opensearch": OpenSearchSink,
}  # fmt: skip


def main(given: dict[str, Any]) -> None:
    """Run the query."""
    settings = {
        "spark.driver.bindAddress": "127.0.0.1", "spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2",
        "spark.ui.showConsoleProgress": "false", "spark.driver.extraClassPath": f"{jars('spark-4.1')}/*",
    }  # fmt: skip
    builder = SparkSession.builder.master("local[2]")
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    records = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", given["kafka"])
        .option("subscribePattern", "|".join(map(re.escape, given["lives"])))
        .option("startingOffsets", given["starting"])
        .option("maxOffsetsPerTrigger", given["per_epoch"])
        .option("kafka.isolation.level", "read_committed")
        .load()
    )
    order = TopicGenerations(given["kafka"], given["lives"])
    # A sink that keeps no values would write what stands for them.
    rows = changes(
        records,
        given["columns"],
        order=order,
        on_truncate=given["on_truncate"],
        on_unavailable="fail" if given["marked"] else "keep",
    )
    if given["marked"]:
        rows = rows.withColumn("deleted", rows.op == "d").drop("op")
    if "table" in rows.columns:
        # The schema of the source is another one in the target.
        rows = rows.withColumn("table", sql.substring_index("table", ".", -1))
    sink = SINKS[given["sink"]](**given["options"])
    write_stream(rows, sink, checkpoint=given["checkpoint"]).start().awaitTermination()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
