"""Throughput into Kafka: `KafkaSink` without and with parts, and a bare producer loop; Avro beside JSON; epochs of 100
rows.

    python -m benchmarks.bench_kafka --rows 1000000 --pairs 5

Starts its own broker, noida-db: one process, in memory, on the same cores. `OUTFALL_TEST_KAFKA=host:port` selects
another broker.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from benchmarks.common import Given, machine, main, seconds, throughput
from benchmarks.inputs import mixed
from benchmarks.kafka_loop import send
from benchmarks.results import Line, Result, now
from outfall.kafka import KafkaSink
from outfall.testing.benchmark import EmptySink, in_turn
from outfall.testing.benchmark.apis import PythonApi
from outfall.testing.benchmark.rows import Scratch, seconds_per_epoch, small_epochs
from outfall.testing.benchmark.runs import Job, rounds
from outfall.testing.benchmark.session import cpu_seconds
from tests.integration.support.kafka_server import kafka_server
from tests.integration.support.schema_registry import model_registry

DEFAULT = Given(rows=1_000_000, pairs=5)
PARTS = 16
PARTITIONS = 4
EPOCH_ROWS, EPOCHS = 100, 12
AS_RECORDS = ("name AS key", "to_json(struct(*)) AS value")

SINK, ROUTED, LOOP = "KafkaSink", f"KafkaSink, {PARTS} parts", "bare producer loop"
ONE, NEW = f"{SINK}, 1 part", "{}, new producers"
EMPTY = "empty sink"
JSON, AVRO, SLOW_AVRO = "columns as JSON", "columns as Avro", "columns as Avro, one of them binary"
WANTED = {
    LOOP: f"≥ 0.9, and ≥ 0.7 with {PARTS} parts", EMPTY: "≤ 1.5", JSON: "≥ 0.9 by CPU, and ≥ 0.3 with a binary column"
}  # fmt: skip

Stream = Callable[[DataFrame, str, Scratch], DataStreamWriter]


def measure(spark: SparkSession, given: Given, scratch: Scratch) -> Result:
    """Write the rows with all jobs alternately, then run streams of small epochs alternately."""
    started = now()
    with kafka_server() as brokers:
        topics = Topics(brokers)
        lines = [
            *_throughput(spark, given, topics, scratch),
            *_formats(spark, given, topics, scratch),
            *_epochs(spark, given.pairs, topics, scratch),
        ]
    return Result(
        benchmark="kafka",
        title="Kafka",
        unit="rows/s; s per epoch",
        wanted=WANTED,
        lines=lines,
        pairs=given.pairs,
        started=started,
        machine=machine(),
    )


class Topics:
    """The topics of a broker. Each run uses a new topic; old topics are deleted to free the broker's memory."""

    def __init__(self, brokers: str) -> None:
        """Create the first topic."""
        self.brokers = brokers
        settings: dict[str, Any] = {"bootstrap.servers": brokers, "logger": logging.getLogger(__name__)}
        self._admin = AdminClient(settings)
        self._made = 0
        self._new()

    def change(self) -> None:
        """Delete the topic and its ledger, and create the next topic."""
        known = self._admin.list_topics(timeout=10).topics
        _wait(self._admin.delete_topics([name for name in known if name.startswith(self.name)]))
        self._new()

    def _new(self) -> None:
        self._made += 1
        self.name = f"bench-{time.time_ns()}-{self._made}"
        _wait(self._admin.create_topics([NewTopic(self.name, PARTITIONS, 1)]))

    def count(self) -> int:
        """Return the number of records of the last topic, read with `read_committed`."""
        consumer = Consumer({
            "bootstrap.servers": self.brokers, "group.id": self.name, "isolation.level": "read_committed",
            "enable.partition.eof": True, "enable.auto.commit": False,
            # noida-db returns all records of a partition in one response.
            "receive.message.max.bytes": 2_000_000_000,
        })  # fmt: skip
        consumer.assign([TopicPartition(self.name, partition, 0) for partition in range(PARTITIONS)])
        found, ended = 0, set[int | None]()
        try:
            while len(ended) < PARTITIONS:
                for message in consumer.consume(10_000, 1.0):
                    if message.error() is None:
                        found += 1
                    else:
                        ended.add(message.partition())
        finally:
            consumer.close()
        return found


def _wait(answers: Mapping[str, Any]) -> None:
    for answer in answers.values():
        answer.result(30)


def _throughput(spark: SparkSession, given: Given, topics: Topics, scratch: Scratch) -> list[Line]:
    df = records(spark, given.rows, scratch)
    rows = df.count()

    def between() -> None:
        if (found := topics.count()) != rows:
            sys.exit(f"{found} records are in the topic, of {rows}")
        topics.change()
        scratch.clear()

    def written(api: PythonApi, **options: Any) -> Job:
        return lambda: api.write(df, sink(topics.brokers, topics.name, **options), scratch.new())

    jobs: dict[str, Job] = {
        SINK: written(PythonApi()),
        ROUTED: written(PythonApi(key="key"), parts=PARTS),
        LOOP: lambda: send(df, topics.brokers, topics.name),
    }
    runs = in_turn(jobs, rows, pairs=given.pairs, cpu_seconds=cpu_seconds, between=between)
    group = f"{rows:,} mixed rows as JSON"
    return [throughput(group, job, runs, {} if job == LOOP else {LOOP: LOOP}) for job in jobs]


def _formats(spark: SparkSession, given: Given, topics: Topics, scratch: Scratch) -> list[Line]:
    """Columns as values: with schemas of a registry, whose tasks have them from the driver, and as JSON."""
    df = mixed(spark, given.rows, scratch)
    # Only fastavro has bytes.
    with_bytes = df.withColumn("name", df["name"].cast("binary"))

    def between() -> None:
        topics.change()
        scratch.clear()

    with model_registry() as registry:
        schemas = {"schema_registry": registry.url, "register_schemas": True}

        def written(df: DataFrame, **options: Any) -> Job:
            return lambda: PythonApi().write(df, sink(topics.brokers, topics.name, **options), scratch.new())

        jobs: dict[str, Job] = {
            JSON: written(df, value_format="json"),
            AVRO: written(df, value_format="avro", **schemas),
            SLOW_AVRO: written(with_bytes, value_format="avro", **schemas),
        }
        runs = in_turn(jobs, df.count(), pairs=given.pairs, cpu_seconds=cpu_seconds, between=between)
    group = f"{given.rows:,} rows of five columns"
    return [throughput(group, job, runs, {} if job == JSON else {JSON: JSON}) for job in jobs]


def _epochs(spark: SparkSession, pairs: int, topics: Topics, scratch: Scratch) -> list[Line]:
    mixed_rows = small_epochs(spark, scratch.rows / "epochs", epochs=EPOCHS, rows=EPOCH_ROWS)
    df = mixed_rows.selectExpr(*AS_RECORDS)
    streams: dict[str, Stream] = {
        EMPTY: lambda df, topic, scratch: PythonApi().stream(df, EmptySink(), scratch.new()),
        SINK: _stream(topics.brokers),
        ONE: _stream(topics.brokers, parts=1),
        NEW.format(ONE): _stream(topics.brokers, parts=1, reuse_producers=False),
        ROUTED: _stream(topics.brokers, parts=PARTS),
        NEW.format(ROUTED): _stream(topics.brokers, parts=PARTS, reuse_producers=False),
    }
    figures: dict[str, list[float]] = {name: [] for name in streams}
    for number, name in rounds(streams, 1 + pairs):
        figure = seconds_per_epoch(streams[name](df, topics.name, scratch))
        topics.change()
        scratch.clear()
        if number > 0:  # the first warms up
            figures[name].append(figure)
    group = f"epochs of {EPOCH_ROWS} rows, {EPOCHS} a run"
    against = {NEW.format(each): {EMPTY: EMPTY, "reused producers": each} for each in (ONE, ROUTED)} | {EMPTY: {}}
    return [seconds(group, name, figures, against.get(name, {EMPTY: EMPTY})) for name in streams]


def records(spark: SparkSession, rows: int, scratch: Scratch) -> DataFrame:
    """Mixed rows as JSON values with a thousand keys, read from Parquet, so that their creation is not measured."""
    directory = scratch.rows / f"records-{rows}"
    if not directory.exists():
        mixed(spark, rows, scratch).selectExpr(*AS_RECORDS).write.parquet(str(directory))
    return spark.read.schema("key string, value string").parquet(str(directory))


def sink(brokers: str, topic: str, **options: Any) -> KafkaSink:
    return KafkaSink(brokers, topic, create_topic="if_missing", replication_factor=1, **options)


def _stream(brokers: str, **options: Any) -> Stream:
    api = PythonApi(key="key")
    return lambda df, topic, scratch: api.stream(df, sink(brokers, topic, **options), scratch.new())


if __name__ == "__main__":
    main(__doc__.splitlines()[0], DEFAULT, measure)
