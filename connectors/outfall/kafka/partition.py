"""The only partition of a topic: a totally ordered sequence of records that may be compacted.

The log needs no more than the interface `Partition`. `KafkaPartition` implements it in a cluster, and creates or checks
its topic.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer, TopicPartition

from outfall.errors import ConfigurationError, OutfallError, RecordError, TransientError
from outfall.kafka.client import MISSING, KafkaClients, error_of, is_permanent
from outfall.kafka.topics import BROKERS_CHOICE, Topics

CHUNK = 512 * 1024
"""Maximum bytes of an entry or a state per record; larger ones are split. Brokers accept 1 MiB by default."""
_KEY = 4096
"""Maximum overhead in bytes of a record, in addition to its value."""
_TOMBSTONES = 3_600_000
"""Milliseconds for which created topics keep tombstones.

Longer than any read takes, and no longer, because a new reader reads all of them.
"""
_MADE_WITH = {
    "cleanup.policy": "compact",
    "delete.retention.ms": f"{_TOMBSTONES}",
    # Only closed segments are compacted. With small segments a new reader reads little.
    "segment.ms": "600000",
    "segment.bytes": f"{16 << 20}",
    "min.cleanable.dirty.ratio": "0.1",
}
_ABANDONED = 5.0
"""Seconds after its own deadline until a producer that does not report is given up."""

_checked: set[tuple[str, str]] = set()
"""Clusters and topics that this process has checked."""

Write = tuple[str, bytes | None]
"""A key and its value; `None` is a tombstone, which allows compaction to remove the key."""


class DeliveryUnknownError(TransientError):
    """The response to a sent record is missing. The record may be in the topic, or may still arrive."""


@dataclass(frozen=True)
class TopicRecord:
    """One record that was read."""

    offset: int
    key: str
    value: bytes | None


class Partition(ABC):
    """One partition. Compaction may remove a record only after a later record has its key."""

    @property
    @abstractmethod
    def name(self) -> str:
        """Its name in texts."""

    @abstractmethod
    def prepare(self) -> None:
        """Create the topic if it is missing, and check it. Called before the first write.

        Raises `ConfigurationError`, with the reason, if the topic is not suitable for a log.
        """

    @abstractmethod
    def bounds(self) -> tuple[int, int]:
        """Return the broker's current first offset and the one after the last; equal if there are no records.

        A missing topic has no records.
        """

    @abstractmethod
    def records(self, start: int, end: int) -> Generator[TopicRecord]:
        """Yield the records from `start` up to before `end` in the order of their offsets, without compacted ones.

        One read at a time: a caller that does not read to the end must close it. Raises `RecordError` if `start` is no
        longer in the partition, and `TransientError` if the broker did not return the records in time.
        """

    @abstractmethod
    def write(self, writes: Sequence[Write]) -> list[int]:
        """Write records in this order, once each, and return their offsets when all in-sync replicas have them.

        Raises `DeliveryUnknownError` if a response is missing: each record may be in the topic, or may still arrive.
        Raises `ConfigurationError` if the broker rejects such records.
        """

    @abstractmethod
    def close(self) -> None:
        """Release resources. The partition can be used again."""


class KafkaPartition(Partition):
    """The one partition of a topic."""

    def __init__(
        self,
        clients: KafkaClients,
        topic: str,
        *,
        replication_factor: int | None = None,
        named_by: str = "topic_prefix",
    ) -> None:
        """Connect to nothing yet. The clients belong to this partition.

        `replication_factor` applies if the topic is created here; by default the brokers choose. `named_by` is the
        option with the topic's name, for texts.
        """
        self._clients = clients
        self._topic = Topic(clients, topic, replication_factor, named_by)
        self._exists = False

    @property
    def name(self) -> str:
        return self._topic.name

    def prepare(self) -> None:
        self._topic.prepare()
        self._exists = True

    def bounds(self) -> tuple[int, int]:
        if not self._exists and not self._look():
            return 0, 0
        consumer, here = self._clients.consumer(), TopicPartition(self.name, 0)

        def ask(seconds: float) -> tuple[int, int]:
            try:
                low, high = consumer.get_watermark_offsets(here, seconds)
            except KafkaException as error:
                known = error_of(error)
                if known is not None and known.code() in MISSING and not self._look():
                    return 0, 0
                raise
            return int(low), int(high)

        return self._clients.ask(f"querying the end of {self.name}", ask)

    def records(self, start: int, end: int) -> Generator[TopicRecord]:
        if start >= end:
            return
        deadline = time.monotonic() + self._clients.timeout
        consumer = self._clients.consumer()
        self._clients.listen()
        consumer.assign([TopicPartition(self.name, 0, start)])
        try:
            position = start
            waited_for = KafkaError(KafkaError._TIMED_OUT)
            while position < end:
                if time.monotonic() >= deadline:
                    raise self._clients.explain(waited_for, f"reading {self.name}")
                message = consumer.poll(0.1)
                if message is None:
                    continue
                # An error that does not concern a record has no offset.
                offset = -1 if (at := message.offset()) is None else at
                if (news := self._news(message)) is None:
                    position = offset + 1
                    if offset < end:
                        yield _record(message, offset)
                elif news.code() != KafkaError._PARTITION_EOF:
                    waited_for = news
                elif offset >= end:
                    # Records that compaction removed at the end count as read too.
                    position = end
        finally:
            consumer.unassign()

    def write(self, writes: Sequence[Write]) -> list[int]:
        producer = self._clients.producer()
        self._clients.listen()
        reports: dict[int, int | KafkaError] = {}
        deadline = time.monotonic() + self._clients.timeout
        for index, (key, value) in enumerate(writes):
            self._enqueue(producer, key, value, lambda e, m, i=index: reports.__setitem__(i, e or m.offset()), deadline)
        while len(reports) < len(writes) and time.monotonic() < deadline + _ABANDONED:
            producer.poll(0.1)
        errors = [report for report in reports.values() if isinstance(report, KafkaError)]
        if errors or len(reports) < len(writes):
            self._clients.drop_producer()
            raise self._undelivered(errors, len(writes))
        return [offset for _, offset in sorted(reports.items()) if isinstance(offset, int)]

    def close(self) -> None:
        self._clients.close()

    def _look(self) -> bool:
        """Whether the topic exists. A topic with more than one partition is rejected."""
        self._exists = self._topic.exists()
        if not self._exists:
            self._topic.forget()
        return self._exists

    def _news(self, message: Message) -> KafkaError | None:
        """Return the state of the read: that the end is reached, or the cause of a wait; `None` for a record.

        Raises the translated `OutfallError` if waiting is useless.
        """
        error = message.error()
        if error is None:
            return None
        if error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
            raise RecordError(
                f"the topic {self.name} was emptied or replaced while it was read",
                do="restore the topics from a copy, or start the query with a new checkpoint and a new prefix",
            )
        if error.code() != KafkaError._PARTITION_EOF and not self._clients.waits_for(error):
            raise self._clients.explain(error, f"reading {self.name}")
        return error

    def _enqueue(self, producer: Producer, key: str, value: bytes | None, done: Any, deadline: float) -> None:
        """Add a record to the client's queue, which sends in this order; block while the queue is full."""
        while True:
            try:
                return producer.produce(self.name, value, key, partition=0, on_delivery=done)
            except BufferError:
                if time.monotonic() >= deadline:
                    self._clients.drop_producer()
                    raise TransientError(
                        f"writing to {self.name} at {self._clients.where} failed",
                        why=f"the queue of the client was full for {self._clients.timeout:g} s",
                        do="check that the brokers accept records, or raise queue.buffering.max.messages in"
                        " client_options",
                    ) from None
                producer.poll(0.05)
            except KafkaException as error:
                self._clients.drop_producer()
                raise self._undelivered([known] if (known := error_of(error)) else [], 1) from None

    def _undelivered(self, errors: list[KafkaError], count: int) -> OutfallError:
        doing = f"writing {count} records to {self.name}" if count > 1 else f"writing to {self.name}"
        for error in errors:
            if is_permanent(error):
                return self._clients.explain(error, doing)
        reason = self._clients.explain(errors[0] if errors else KafkaError(KafkaError._TIMED_OUT), doing)
        if isinstance(reason, ConfigurationError):
            return reason
        return DeliveryUnknownError(
            f"{doing} at {self._clients.where} was not acknowledged",
            why=str(errors[0].name()) if errors else f"there was no response within {self._clients.timeout:g} s",
            do="check that the brokers are up and reachable; the next run continues from the log",
        )


class Topic:
    """A topic with one partition: created if missing and otherwise checked, once per process."""

    def __init__(self, clients: KafkaClients, name: str, replication_factor: int | None, named_by: str) -> None:
        """Connect to nothing yet; the replication factor applies if the topic is created here."""
        self.name = name
        self._named_by = named_by
        self._clients = clients
        self._topics = Topics(clients)
        self._replication_factor = replication_factor

    def prepare(self) -> None:
        """Create the topic if it is missing, and check it.

        Raises `ConfigurationError` if it cannot be created, or is not suitable for a log.
        """
        if (self._clients.where, self.name) in _checked:
            return
        if not self.exists():
            self._make()
        self._check_settings(self._topics.settings(self.name))
        self._clients.drop_admin()
        _checked.add((self._clients.where, self.name))

    def forget(self) -> None:
        """Create and check the topic again, after it was deleted."""
        _checked.discard((self._clients.where, self.name))

    def exists(self) -> bool:
        """Whether the brokers have the topic. Raises `ConfigurationError` if it has more than one partition."""
        count = self._topics.partitions(self.name)
        if count not in (None, 1):
            raise self._unfit(
                f"it has {count} partitions, and must have one because the log depends on the order of its records"
            )
        return count is not None

    def _make(self) -> None:
        factor = self._replication_factor
        settings, how = dict(_MADE_WITH), "with as many replicas as the brokers choose (no replication_factor)"
        if factor is not None:
            settings["min.insync.replicas"] = f"{max(1, factor - 1)}"
            how = f"with {factor} replicas (replication_factor={factor})"
        self._topics.make(self.name, 1, factor or BROKERS_CHOICE, settings, how)

    def _check_settings(self, settings: dict[str, str]) -> None:
        policy = settings.get("cleanup.policy", "")
        if policy != "compact":
            raise self._unfit(f"its cleanup.policy is {policy!r}, which removes current entries")
        limit = int(settings.get("max.message.bytes", CHUNK + _KEY))
        if limit < CHUNK + _KEY:
            raise self._unfit(f"its max.message.bytes is {limit}, and records have up to {CHUNK + _KEY} bytes")
        kept = int(settings.get("delete.retention.ms", _TOMBSTONES))
        longest = int(2000 * self._clients.timeout)
        if kept < longest:
            raise self._unfit(
                f"its delete.retention.ms is {kept}, and a read may take {longest // 2} ms: at least {longest} is"
                " required",
            )

    def _unfit(self, why: str) -> ConfigurationError:
        return ConfigurationError(
            f"the topic {self.name} at {self._clients.where} is not suitable for a log",
            why=why,
            do=f"correct the topic, delete it if it is empty, or set another {self._named_by}; it is created on"
            " first use",
        )


def _record(message: Message, offset: int) -> TopicRecord:
    key, value = message.key(), message.value()
    return TopicRecord(
        offset,
        key.decode(errors="replace") if isinstance(key, bytes) else str(key or ""),
        value.encode() if isinstance(value, str) else value,
    )
