"""A bare producer loop, the peer of the Kafka sink. It has no guarantee, and an error ends the task."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
from confluent_kafka import Producer
from pyspark.sql import DataFrame


def send(df: DataFrame, brokers: str, topic: str) -> None:
    """Send the columns `key` and `value` of each row with the sink's producer settings, and wait for all."""

    def sent(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pydict({"rows": pa.array([_sent(batches, brokers, topic)], pa.int64())})

    df.mapInArrow(sent, "rows long").collect()


def _sent(batches: Iterable[pa.RecordBatch], brokers: str, topic: str) -> int:
    producer = Producer({
        "bootstrap.servers": brokers, "enable.idempotence": True, "acks": "all", "partitioner": "murmur2_random",
        "on_delivery": _failed, "delivery.report.only.error": True,
    })  # fmt: skip
    rows = 0
    for batch in batches:
        for key, value in zip(batch.column("key").to_pylist(), batch.column("value").to_pylist(), strict=True):
            while True:
                try:
                    producer.produce(topic, value, key)
                    break
                except BufferError:
                    producer.poll(0.05)
        producer.poll(0)
        rows += batch.num_rows
    producer.flush()
    return rows


def _failed(error: Any, message: Any) -> None:
    raise RuntimeError(str(error))
