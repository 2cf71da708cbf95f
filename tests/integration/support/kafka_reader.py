"""What a reader finds in a topic: kafka-python's consumer, which is not the client under test.

It ends a fetch where the broker ends it, and leaves out markers and, by the list that the broker gives it, the records
of aborted transactions, as the Java consumer does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import NamedTuple

from kafka import KafkaConsumer, TopicPartition

from tests.integration.support.waiting import until

Security = Mapping[str, str] | None
"""The properties that librdkafka needs to connect, if any."""


class Read(NamedTuple):
    """One record."""

    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]]


def read(
    address: str, topic: str, *, isolation: str = "read_committed", seconds: float = 30, security: Security = None
) -> list[Read]:
    """Return all records up to the high watermark that the topic has now, by partition and offset.

    Raises:
        AssertionError: it was not reached in time, as behind a transaction that stays open.
    """
    return _read(address, topic, isolation, ends(address, topic, security=security), seconds, security)


def read_visible(address: str, topic: str, *, seconds: float = 30) -> list[Read]:
    """Return what a `read_committed` reader can have now: what is before the first transaction that is open."""
    return _read(address, topic, "read_committed", ends(address, topic, isolation="read_committed"), seconds, None)


def ends(address: str, topic: str, *, isolation: str = "read_uncommitted", security: Security = None) -> dict[int, int]:
    """Return where each partition ends: the high watermark, or for `read_committed` the last stable offset."""
    consumer = _consumer(address, isolation, security)
    try:
        found = consumer.end_offsets(_partitions(consumer, topic))
    finally:
        consumer.close()
    return {partition.partition: offset for partition, offset in found.items()}


class TopicReader:
    """A reader that goes on where it was, and keeps its connections."""

    def __init__(self, address: str, topic: str, isolation: str = "read_committed", security: Security = None) -> None:
        """Begin at the beginning."""
        self._topic = topic
        self._consumer = _consumer(address, isolation, security)
        self._partitions = _partitions(self._consumer, topic)
        self._consumer.assign(self._partitions)
        self._consumer.seek_to_beginning(*self._partitions)
        self._beyond: list[Read] = []

    def read(self, end: dict[int, int] | None = None, seconds: float = 30) -> list[Read]:
        """Return what has come since, up to where each partition ends: by default for this reader now."""
        consumer, found = self._consumer, self._beyond
        if end is None:
            end = {each.partition: offset for each, offset in consumer.end_offsets(self._partitions).items()}

        def at_end() -> bool:
            for records in consumer.poll(timeout_ms=100).values():
                found.extend(
                    Read(each.partition, each.offset, each.timestamp, each.key, each.value, tuple(each.headers))
                    for each in records
                )
            # The position passes markers and aborted records too.
            return all(consumer.position(each) >= end[each.partition] for each in self._partitions)

        until(at_end, f"reading {self._topic} up to {end}", seconds)
        # What came since may be a part of a transaction.
        self._beyond = [record for record in found if record.offset >= end[record.partition]]
        return [record for record in found if record.offset < end[record.partition]]

    def close(self) -> None:
        self._consumer.close()


def _read(
    address: str, topic: str, isolation: str, end: dict[int, int], seconds: float, security: Security
) -> list[Read]:
    with closing(TopicReader(address, topic, isolation, security)) as reader:
        return sorted(reader.read(end, seconds), key=lambda record: (record.partition, record.offset))


_NAMES = {
    "security.protocol": "security_protocol", "sasl.mechanism": "sasl_mechanism", "ssl.ca.location": "ssl_cafile",
    "sasl.username": "sasl_plain_username", "sasl.password": "sasl_plain_password",
}  # fmt: skip


def _consumer(address: str, isolation: str, security: Security) -> KafkaConsumer:
    made = KafkaConsumer(
        bootstrap_servers=address, isolation_level=isolation, group_id=None, enable_auto_commit=False,
        auto_offset_reset="earliest", check_crcs=False, max_poll_records=10_000, fetch_max_wait_ms=50,
        **{_NAMES[name]: value for name, value in (security or {}).items()},
    )  # fmt: skip
    # It would ask for the topic no sooner than 100 ms after it has connected, and has no option for that.
    made._cluster.config["retry_backoff_ms"] = 0
    return made


def _partitions(consumer: KafkaConsumer, topic: str) -> list[TopicPartition]:
    indexes = until(lambda: consumer.partitions_for_topic(topic), f"the topic {topic} being known", 30)
    return [TopicPartition(topic, index) for index in sorted(indexes or ())]
