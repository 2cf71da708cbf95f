"""What every producer does: fill librdkafka's queue, wait for acknowledgments, and explain errors.

Only failed deliveries are reported: a call into Python for each record would cost a fifth of the speed.
`Producer.produce_batch` is not used: it drops headers and has no timestamps, and a loop was as fast.
"""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable
from contextlib import suppress
from functools import partial
from typing import Any, Self

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from outfall.errors import OutfallError, TransientError, ValueRefusedError
from outfall.idle import Secrets
from outfall.kafka.client import KafkaClients, error_of
from outfall.kafka.options import ProducerOptions
from outfall.kafka.records import KafkaRecords

Record = tuple[Any, ...]
"""Topic, value, key and partition: the first arguments of librdkafka's `produce`."""

_DIFFERENT_RECORD = -138
"""Another record of the batch is invalid (`_INVALID_DIFFERENT_RECORD`). Clients before 2.6 have no name for it."""
OF_RECORD = {
    KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE, KafkaError.INVALID_MSG_SIZE,
    KafkaError.INVALID_RECORD, _DIFFERENT_RECORD, KafkaError.INVALID_TIMESTAMP, KafkaError._UNKNOWN_PARTITION,
}  # fmt: skip
"""Errors of one record, or of a batch with one faulty record."""
OF_TOPIC = {KafkaError._UNKNOWN_TOPIC, KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.TOPIC_EXCEPTION}
"""Errors of one record if rows have their own topics, else of all records."""
_RAISED = (KafkaException, SystemError, AttributeError)
"""Exceptions that a client call may raise for an error that ends the producer.

Reports on records and statistics are delivered in the same call, with that error already set. Their callbacks then fail
with a `SystemError`, which has the error as its cause or has lost it: a look-up of an attribute may clear it. The
look-up of a method of a base class even fails.
"""
_SLICE = 0.5
"""Seconds of one wait for the brokers; errors are checked between waits."""
_ABANDONED = 5.0
"""Seconds after its own deadline until a producer that does not report is given up."""
STATISTICS = 1.0
"""Seconds between two statistics of librdkafka."""


class KafkaProducer(ABC):
    """Sends records in order and exactly once within one producer (idempotence, acks of all in-sync replicas).

    All methods are called in one thread, `open` first. After an error the producer is `broken`: drop it and open
    another one. `timeout` is the number of seconds until a record fails without acknowledgment.
    """

    def __init__(self, brokers: str, options: ProducerOptions, timeout: float) -> None:
        self.where = brokers
        self.options = options
        self.timeout = timeout
        self.key: Hashable = (type(self), brokers, options, timeout)
        """Producers of the same key replace one another."""
        self.secrets: Secrets = {}
        self.broken = False
        self.idle = False
        """Whether it is unused, so that its peaks are not read."""
        self._clients = KafkaClients(
            brokers, options, timeout, role="Kafka", then="unacknowledged records are sent again with the epoch"
        )
        self._failure: tuple[KafkaError, str | None] | None = None
        self._peaks: dict[str, int] = {}
        self._counted = -STATISTICS
        self._producer: Any = None

    def open(self) -> Self:
        """Create librdkafka's producer, which connects by itself.

        Raises `ConfigurationError` if librdkafka rejects the options, or a secret does not exist here.
        """
        self.secrets = self.options.resolved()
        settings = {
            "enable.idempotence": True,
            "acks": "all",
            "partitioner": "murmur2_random",
            "message.timeout.ms": max(1, int(self.timeout * 1000)),
            "statistics.interval.ms": int(1000 * STATISTICS),
            "stats_cb": self._count,
        } | self._settings()
        self._producer = self._clients.made(lambda: Producer(self._clients.settings(**settings)))
        return self

    @abstractmethod
    def _settings(self) -> dict[str, Any]:
        """Return further properties."""

    def send(self, records: KafkaRecords) -> None:
        """Add records to the local queue, which sends them in this order; blocks while the queue is full.

        Raises `ValueRefusedError` if a record was rejected, in this or an earlier call; `TransientError` if the brokers
        did not acknowledge earlier records in time; `ConfigurationError` if the brokers deny access, or access to the
        topic.
        """
        self._add(records, records.more)

    def _add(self, records: Iterable[Record], mores: Iterable[dict[str, Any]] | None) -> None:
        """Add records, as `send`, with further arguments of each."""
        self._check()
        produce = self._producer.produce
        if mores is None:
            for record in records:
                try:
                    produce(*record)
                except (BufferError, KafkaException) as error:
                    self._again(record, {}, error)
        else:
            for record, more in zip(records, mores, strict=True):
                try:
                    produce(*record, **more)
                except (BufferError, KafkaException) as error:
                    self._again(record, more, error)
        self._peak("max_queue", len(self._producer))

    def flush(self) -> None:
        """Wait until the brokers have acknowledged or rejected every record.

        Raises the errors of `send`. If the response is missing (`TransientError`), records may be in the topic, or may
        still arrive.
        """
        self._check()
        deadline = time.monotonic() + self.timeout + _ABANDONED
        while self._left(_SLICE):
            self._check()
            if time.monotonic() >= deadline:
                raise self._break(
                    self._clients.explain(KafkaError(KafkaError._TIMED_OUT), "waiting for acknowledgments")
                )
        self._check()

    def peaks(self) -> dict[str, int]:
        """Return the largest counts since the last call, for `Metrics.peak`.

        `max_queue`: records in the local queue. From librdkafka's statistics, once per second: `max_in_flight`, sent
        records without an acknowledgment, and `max_rtt_ms`, the longest request.
        """
        peaks, self._peaks = self._peaks, {}
        return peaks

    def shut(self) -> None:
        """Close the producer. Records in flight may still arrive, unless they are in a transaction."""
        producer, self._producer, self.broken = self._producer, None, True
        if producer is not None:
            with suppress(KafkaException):  # no callback runs any more
                producer.purge()
                producer.flush(0)

    # In the cache.

    def rest(self) -> None:
        """Mark the producer as unused, until `reusable` is called."""
        self.poll()
        self.idle = True

    def reusable(self) -> bool:
        """Whether it may be used again, after `rest`."""
        self.poll()
        self.idle = False
        return True

    def poll(self) -> None:
        """Process librdkafka's events.

        Called regularly while the producer is unused: its statistics would accumulate.
        """
        producer = self._producer
        if producer is not None:
            with suppress(*_RAISED):  # reported to the next user
                producer.poll(0)

    # Deliveries.

    def _again(self, record: Record, more: dict[str, Any], error: Exception) -> None:
        """Add a record that the queue rejected, once there is space or the topic's metadata is updated."""
        deadline = time.monotonic() + self.timeout + _ABANDONED
        asked = False
        while True:
            known = error_of(error)
            if isinstance(error, BufferError):
                # Each record in the queue is acknowledged in time or fails, so there will be space.
                if time.monotonic() >= deadline:
                    raise self._break(self._full())
                self._peak("max_queue", len(self._producer))
                self._serve(0.05)
                self._check()
            elif known is not None and known.code() == KafkaError._UNKNOWN_PARTITION and not asked:
                # The topic may have more partitions than in the metadata.
                asked = True
                self._clients.ask(f"querying the topic {record[0]}", partial(self._refresh, record[0]))
            else:
                return self._rejected(record, more, known or KafkaError(KafkaError._FAIL))
            try:
                return self._producer.produce(*record, **more)  # type: ignore[no-any-return]
            except (BufferError, KafkaException) as latest:
                error = latest

    def _rejected(self, record: Record, more: dict[str, Any], error: KafkaError) -> None:
        """Report a record that the client itself rejects, like one that the brokers reject."""
        callback = more.get("on_delivery") or partial(self._failed, topic=record[0])
        callback(error, None)
        self._check()

    def _refresh(self, topic: str, seconds: float) -> None:
        self._producer.list_topics(topic, timeout=seconds)

    def _failed(self, error: KafkaError, message: Message | None, topic: str | None = None) -> None:
        # The error that ends the producer explains the other reports, before and after it.
        if self._failure is None or (error.fatal() and not self._failure[0].fatal()):
            self._failure = (error, topic if message is None else message.topic())

    def _left(self, seconds: float) -> int:
        """Wait until all records are reported, or the time is over; return the number of unreported ones."""
        try:
            return int(self._producer.flush(seconds))
        except _RAISED as ended:
            self._ended(ended)
            return 0

    def _serve(self, seconds: float) -> None:
        """Serve librdkafka's events."""
        try:
            self._producer.poll(seconds)
        except _RAISED as ended:
            self._ended(ended)

    def _ended(self, ended: Exception) -> None:
        """Process an error that ends this producer, such as fencing."""
        cause: BaseException | None = ended
        while isinstance(cause, SystemError):
            cause = cause.__cause__
        error = (None if cause is None else error_of(cause)) or self._fatal()
        if error is None:
            raise ended
        self._failed(error, None)

    def _fatal(self) -> KafkaError | None:
        """Return the error that has ended this producer, if librdkafka can return it."""
        return None

    def _check(self) -> None:
        """Raise the reported error."""
        self._serve(0)
        if self._failure is not None:
            raise self._break(self._translated(*self._failure))

    def _translated(self, error: KafkaError, topic: str | None) -> OutfallError:
        what = f"writing to {topic}" if topic else "writing to Kafka"
        if error.code() not in OF_RECORD | OF_TOPIC:
            return self._clients.explain(error, what)
        return ValueRefusedError(
            f"{what} at {self.where}: a record was rejected",
            why=self._why(error),
            do=_REMEDIES.get(
                error.code(), "correct or remove the row, or store such rows in another sink (dead_letter=)"
            ),
        )

    def _full(self) -> TransientError:
        return TransientError(
            f"writing to Kafka at {self.where} failed",
            why=f"the queue of the client was full for {self.timeout:g} s",
            do="check that the brokers accept records, or raise queue.buffering.max.messages in client_options",
        )

    def _break(self, error: OutfallError) -> OutfallError:
        self.broken = True
        return error

    def _why(self, error: KafkaError) -> str:
        return f"{error.name()}: {self._masked(error)}"

    def _masked(self, error: KafkaError) -> str:
        return self._clients.masked(error.str())

    # Counts.

    def _peak(self, name: str, amount: int) -> None:
        if amount > self._peaks.get(name, 0):
            self._peaks[name] = amount

    def _count(self, statistics: str) -> None:
        """Process librdkafka's statistics (its STATISTICS.md)."""
        if self.idle or (now := time.monotonic()) < self._counted + STATISTICS:
            return
        self._counted = now
        found = json.loads(statistics)
        brokers = found.get("brokers", {}).values()
        self._peak("max_queue", found.get("msg_cnt", 0))
        self._peak("max_in_flight", sum(broker.get("waitresp_msg_cnt", 0) for broker in brokers))
        longest = max((broker.get("rtt", {}).get("max", 0) for broker in brokers), default=0)
        self._peak("max_rtt_ms", -(-longest // 1000))


_LIMITS = (
    "raise message.max.bytes in client_options and max.message.bytes of the topic, with batch.size below"
    " them; remove such rows, or store them in another sink (dead_letter=)"
)
_NO_TOPIC = "create the topic, or correct its name; rows with such a topic can be stored in another sink (dead_letter=)"
_REMEDIES = {
    KafkaError.MSG_SIZE_TOO_LARGE: _LIMITS,
    KafkaError.RECORD_LIST_TOO_LARGE: _LIMITS,
    KafkaError._UNKNOWN_TOPIC: _NO_TOPIC,
    KafkaError.UNKNOWN_TOPIC_OR_PART: _NO_TOPIC,
    KafkaError.TOPIC_EXCEPTION: _NO_TOPIC,
    KafkaError._UNKNOWN_PARTITION: "correct the column 'partition', or give the topic more partitions",
}
