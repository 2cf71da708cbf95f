"""Facts about sinks for the tables of the documentation that their code does not declare."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from outfall.delta import DeltaSink
from outfall.dynamodb import DynamoDBSink
from outfall.file import FileSink
from outfall.http import HttpSink
from outfall.iceberg import IcebergSink
from outfall.kafka import KafkaSink
from outfall.kinesis import FirehoseSink, KinesisSink
from outfall.mysql import MySQLSink
from outfall.opensearch import OpenSearchSink
from outfall.postgres import PostgresSink
from outfall.redis import RedisSink
from outfall.s3 import S3Sink


@dataclass(frozen=True)
class SinkFacts:
    """The sinks of one package, as objects under the options that change what they can do.

    Guarantee, save modes, output modes, write modes, dead letters and APIs are read from the objects.
    """

    title: str
    """The destination's name, such as `PostgreSQL`."""
    destination: str
    """What the rows become, such as `rows of a PostgreSQL table`, in Markdown."""
    sinks: Mapping[str, Any] = field(default_factory=dict)
    """Sinks by the words that follow what differs under their options, such as "with `parts=N`", in Markdown. The first
    one has default options and no words. Empty for sinks around other sinks, which have what those have."""


FACTS = {
    "file": SinkFacts(
        title="Files",
        destination="files on a shared disk, in HDFS or in an object store",
        sinks={
            "": FileSink("/data/rows"),
            "with `parts=N`": FileSink("/data/rows", parts=4),
            'with `writer="spark"`': FileSink("/data/rows", format="parquet", writer="spark"),
        },
    ),
    "postgres": SinkFacts(
        title="PostgreSQL",
        destination="rows of a PostgreSQL table",
        sinks={
            "": PostgresSink("postgresql://app@db/warehouse", "rows"),
            'with `write_mode="upsert"`': PostgresSink(
                "postgresql://app@db/warehouse", "rows", write_mode="upsert", key_columns=["id"]
            ),
            "with `parts=N`": PostgresSink("postgresql://app@db/warehouse", "rows", parts=4),
            "with `offset_columns`": PostgresSink(
                "postgresql://app@db/warehouse", "rows", offset_columns=["partition", "offset"]
            ),
            "with `allow_unlogged`": PostgresSink("postgresql://app@db/warehouse", "rows", allow_unlogged=True),
        },
    ),
    "mysql": SinkFacts(
        title="MySQL, MariaDB",
        destination="rows of a MySQL or MariaDB table",
        sinks={
            "": MySQLSink("mysql://app@db/warehouse", "rows"),
            'with `write_mode="upsert"`': MySQLSink(
                "mysql://app@db/warehouse", "rows", write_mode="upsert", key_columns=["id"]
            ),
            "with `parts=N`": MySQLSink("mysql://app@db/warehouse", "rows", parts=4),
        },
    ),
    "s3": SinkFacts(
        title="S3",
        destination="objects in S3 and compatible stores: fewer requests and larger files than the file sink",
        sinks={
            "": S3Sink("bucket"),
            "with `roll_bytes`, `roll_interval` or `roll_rows`": S3Sink("bucket", roll_bytes="1 GiB"),
        },
    ),
    "http": SinkFacts(
        title="HTTP",
        destination="requests to a web service",
        sinks={
            "": HttpSink("https://api.example.com/rows"),
            "with idempotency keys": HttpSink(
                "https://api.example.com/rows", body="record", idempotency="row", key_column="id"
            ),
            "with item ids": HttpSink("https://api.example.com/rows", idempotency="item", key_column="id"),
            'with `idempotency="content"`': HttpSink(
                "https://api.example.com/rows", body="record", idempotency="content"
            ),
            "with `across_epochs`": HttpSink("https://api.example.com/rows", across_epochs=True),
        },
    ),
    "kinesis": SinkFacts(
        title="Kinesis, Firehose",
        destination="records in Kinesis streams and Firehose",
        sinks={
            "": KinesisSink("rows"),
            "into Firehose": FirehoseSink("rows"),
            "with `across_epochs`": KinesisSink("rows", across_epochs=True),
        },
    ),
    "dynamodb": SinkFacts(
        title="DynamoDB",
        destination="items of a DynamoDB table",
        sinks={
            "": DynamoDBSink("rows"),
            "with `versions=False`": DynamoDBSink("rows", versions=False),
            'with `deletes="remove"`': DynamoDBSink("rows", delete_marker="deleted", deletes="remove"),
        },
    ),
    "kafka": SinkFacts(
        title="Kafka",
        destination="records in Kafka topics; with `parts=N` in transactions, for `read_committed` readers",
        sinks={"": KafkaSink("broker:9092", "rows"), "with `parts=N`": KafkaSink("broker:9092", "rows", parts=4)},
    ),
    "redis": SinkFacts(
        title="Redis",
        destination="hashes and strings in Redis or Valkey",
        sinks={
            "": RedisSink("rediss://cache.example.com", "row:{id}"),
            "with `versions=False`": RedisSink("rediss://cache.example.com", "row:{id}", versions=False),
        },
    ),
    "opensearch": SinkFacts(
        title="OpenSearch, Elasticsearch",
        destination="documents of OpenSearch or Elasticsearch",
        sinks={
            "": OpenSearchSink("https://search.example.com:9200", index="rows", key_columns=["id"]),
            "for data streams": OpenSearchSink("https://search.example.com:9200", index="rows", data_stream=True),
            "with `versions=False`": OpenSearchSink(
                "https://search.example.com:9200", index="rows", key_columns=["id"], versions=False
            ),
            'with `deletes="remove"`': OpenSearchSink(
                "https://search.example.com:9200",
                index="rows",
                key_columns=["id"],
                delete_marker="deleted",
                deletes="remove",
            ),
        },
    ),
    "iceberg": SinkFacts(
        title="Iceberg",
        destination="one snapshot of an Iceberg table per epoch, without JARs",
        sinks={
            "": IcebergSink("analytics.rows"),
            'with `write_mode="upsert"`': IcebergSink("analytics.rows", write_mode="upsert", key_columns=["id"]),
        },
    ),
    "delta": SinkFacts(
        title="Delta",
        destination="one version of a Delta table per epoch, without JARs",
        sinks={
            "": DeltaSink("/data/rows"),
            'with `write_mode="upsert"`': DeltaSink("/data/rows", write_mode="upsert", key_columns=["id"]),
        },
    ),
    "fanout": SinkFacts(
        title="Fan-out, batching, deduplication",
        destination="several sinks at once, larger batches, rows that a source repeats, dead letters in any sink",
    ),
}
"""By the name of the entry point in `outfall.sinks`."""
