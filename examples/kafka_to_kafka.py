"""Kafka → Spark → Kafka, each record exactly once for readers with `isolation.level=read_committed`.

    docker compose -f examples/compose.yaml up --wait   # Apache Kafka on localhost:9092; or use your own broker
    python examples/kafka_to_kafka.py                   # kill it at any time, also with kill -9, and start it again
    python examples/kafka_to_kafka.py kafka-1:9092 --rows 100000 --name trial --replication-factor 3

The job is in `start`. The rest fills a topic, reads it into Spark without Spark's own Kafka jar, and checks the result
with an independent consumer. Requires `pip install 'outfall[spark,kafka]'`, Spark 4.0 or later and Java.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, SimpleDataSourceStreamReader
from pyspark.sql.streaming.query import StreamingQuery

from outfall.kafka import KafkaSink
from outfall.recovery import history
from outfall.spark import write_stream

PARTITIONS = 2
PARTS = 4
Place = tuple[int, int]
"""Partition and offset of a record, its unique key."""


# --- The job


def start(rows: DataFrame, given: argparse.Namespace) -> StreamingQuery:
    """Write partition, offset and value of each record, routed by its key."""
    records = rows.selectExpr("key", "to_json(struct(partition, offset, value)) AS value")
    sink = KafkaSink(
        given.brokers,
        f"{given.name}-out",
        parts=PARTS,
        create_topic="if_missing",
        replication_factor=given.replication_factor,
    )
    return write_stream(records, sink, checkpoint=given.directory / given.name).start()


def read(spark: SparkSession, given: argparse.Namespace) -> DataFrame:
    """Read the topic as a stream. A replayed epoch gets the same offsets, and therefore the same rows.

    With Spark's own source (spark.jars.packages=org.apache.spark:spark-sql-kafka-0-10_2.13:VERSION), use
    spark.readStream.format("kafka").option("kafka.bootstrap.servers", brokers).option("subscribe", topic).load()
    """
    spark.dataSource.register(TopicSource)
    options = {"brokers": given.brokers, "topic": f"{given.name}-in", "most": str(given.rows_per_epoch)}
    return spark.readStream.format("topic").options(**options).load()


def main() -> int:
    """Run or continue the job to the end of the topic, then check the result."""
    given = parse()
    fill(given)
    os.environ["PYSPARK_PYTHON"] = sys.executable  # by default, Spark uses the first python3 on the PATH
    done = history(str(given.directory / given.name))
    print(f"Continuing after epoch {done[-1].epoch}." if done else "Starting with epoch 0.")
    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", False).getOrCreate()
    spark.conf.set("spark.sql.shuffle.partitions", "2")
    query = start(read(spark, given), given)
    query.processAllAvailable()
    query.stop()
    for epoch in history(str(given.directory / given.name))[len(done) :]:
        print(f"epoch {epoch.epoch}: {epoch.rows:,} rows in {epoch.seconds:.2f} s")
    spark.stop()
    return 0 if check(given) else 1


def check(given: argparse.Namespace) -> bool:
    """Compare the committed records of both topics."""
    came = {(message.partition(), message.offset()) for message in consumed(given.brokers, f"{given.name}-in")}
    went: Counter[Place] = Counter()
    for message in consumed(given.brokers, f"{given.name}-out"):
        row = json.loads(message.value() or b"")
        went[row["partition"], row["offset"]] += 1
    doubled = sum(count - 1 for count in went.values())
    lost = len(came - went.keys())
    print(f"rows in {len(came):,}, rows out {went.total():,}, duplicates {doubled}, lost {lost}")
    return not doubled and not lost and came == went.keys()


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Copy a topic through Spark, each record exactly once.")
    parser.add_argument("brokers", nargs="?", default="localhost:9092", help="(default: localhost:9092)")
    parser.add_argument("--rows", type=int, default=2000, help="number of records in a new topic (default: 2,000)")
    parser.add_argument("--rows-per-epoch", type=int, default=500, help="of a partition (default: 500)")
    parser.add_argument("--name", default="outfall-demo", help="prefix of the topics (default: outfall-demo)")
    parser.add_argument("--replication-factor", type=int, default=1, help="of new topics (default: 1)")
    parser.add_argument("--directory", type=Path, default=Path("outfall-demo"), help="directory of the checkpoint")
    return parser.parse_args()


# --- Topics without Spark


def fill(given: argparse.Namespace) -> None:
    """Create the input topic with numbered records, unless it exists."""
    topic = f"{given.name}-in"
    admin = AdminClient({"bootstrap.servers": given.brokers})
    if topic in admin.list_topics(timeout=30).topics:
        return
    admin.create_topics([NewTopic(topic, PARTITIONS, given.replication_factor)])[topic].result(30)
    producer = confluent_kafka.Producer({"bootstrap.servers": given.brokers, "enable.idempotence": True})
    for number in range(given.rows):
        producer.produce(topic, f"row {number}", f"key {number % 100}")
        if number % 1000 == 0:
            producer.flush()
    if producer.flush(60):
        sys.exit("The records were not confirmed within a minute.")
    print(f"Wrote {given.rows:,} records into {topic}.")


def consumed(
    brokers: str, topic: str, begin: dict[int, int] | None = None, most: int | None = None
) -> Iterator[confluent_kafka.Message]:
    """Yield committed records from the offsets to the current end of the topic, with a limit per partition.

    `begin` is advanced to the end of the read, also past aborted records.
    """
    settings = {
        "bootstrap.servers": brokers,
        "group.id": "outfall-demo",
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "isolation.level": "read_committed",
    }
    consumer = confluent_kafka.Consumer(settings)
    try:
        place = {} if begin is None else begin
        for number in consumer.list_topics(topic, timeout=30).topics[topic].partitions:
            place.setdefault(number, 0)
        ends = {
            number: consumer.get_watermark_offsets(confluent_kafka.TopicPartition(topic, number), 30)[1]
            for number in place
        }
        if most is not None:
            ends = {number: min(end, place[number] + most) for number, end in ends.items()}
        yield from up_to(consumer, topic, place, ends)
    finally:
        consumer.close()


def up_to(consumer: Any, topic: str, place: dict[int, int], ends: dict[int, int]) -> Iterator[confluent_kafka.Message]:
    """Yield the records between offsets, and advance `place` to the ends."""
    left = {number for number in place if place[number] < ends[number]}
    consumer.assign([confluent_kafka.TopicPartition(topic, number, place[number]) for number in left])
    while left:
        for message in consumer.consume(1000, 1.0):
            error, number, offset = message.error(), message.partition(), message.offset()
            if error is not None and error.code() != confluent_kafka.KafkaError._PARTITION_EOF:
                raise confluent_kafka.KafkaException(error)
            if number in left and error is None and offset < ends[number]:
                yield message
            # The end offset is the offset of the next record.
            if number in left and offset + (error is None) >= ends[number]:
                left.discard(number)
    place.update(ends)


# --- A source for Spark without a jar. It reads on the driver, in one process, which is sufficient for a demonstration.


class TopicSource(DataSource):
    """Options: `brokers`, `topic`, and `most`, the maximum number of records per partition and epoch."""

    @classmethod
    def name(cls) -> str:
        """Return the name for `format(…)`."""
        return "topic"

    def schema(self) -> str:
        """Return the columns."""
        return "key string, value string, partition int, offset long"

    def simpleStreamReader(self, schema: Any) -> TopicReader:  # noqa: N802
        """Make a reader."""
        return TopicReader(self.options["brokers"], self.options["topic"], int(self.options["most"]))


class TopicReader(SimpleDataSourceStreamReader):
    """Its offsets are those of the topic: the next offset of each partition."""

    def __init__(self, brokers: str, topic: str, most: int) -> None:
        self.brokers, self.topic, self.most = brokers, topic, most

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        """Start at the first record."""
        return {str(number): 0 for number in range(PARTITIONS)}

    def read(self, start: dict[str, int]) -> tuple[Iterator[tuple[Any, ...]], dict[str, int]]:
        """Read the next epoch, and return its end offsets."""
        place = {int(number): offset for number, offset in start.items()}
        rows = [row_of(message) for message in consumed(self.brokers, self.topic, place, self.most)]
        return iter(rows), {str(number): offset for number, offset in place.items()}

    def readBetweenOffsets(self, start: dict[str, int], end: dict[str, int]) -> Iterator[tuple[Any, ...]]:  # noqa: N802
        """Read an epoch again."""
        place = {int(number): offset for number, offset in start.items()}
        for message in consumed(self.brokers, self.topic, place):
            if (message.offset() or 0) < end[str(message.partition())]:
                yield row_of(message)


def row_of(message: confluent_kafka.Message) -> tuple[Any, ...]:
    key, value = message.key(), message.value()
    return key and key.decode(), value and value.decode(), message.partition(), message.offset()


if __name__ == "__main__":
    sys.exit(main())
