"""One librdkafka producer, with acknowledgments, rejections and transactions, and the cache of producers.

Only failed deliveries are reported: a call into Python for each record would cost a fifth of the speed.
`Producer.produce_batch` is not used: it drops headers and has no timestamps, and a loop was as fast.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from outfall.errors import ConfigurationError, OutfallError, TransientError, ValueRefusedError, missing_extra
from outfall.kafka.client import KafkaClients, error_of
from outfall.kafka.idle import Idle
from outfall.kafka.options import ProducerOptions
from outfall.kafka.records import KafkaRecords

try:
    from confluent_kafka import KafkaError, KafkaException, Message, Producer
except ImportError as error:
    raise missing_extra("confluent-kafka", "kafka") from error


Refused = Callable[[int, str, str], None]
"""Called with a permanently rejected record: its index in its batch, Kafka's error name, and the error text."""

_OF_RECORD = {
    KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE, KafkaError.INVALID_MSG_SIZE,
    KafkaError.INVALID_RECORD, KafkaError.INVALID_TIMESTAMP, KafkaError._UNKNOWN_PARTITION,
}  # fmt: skip
_OF_TOPIC = {KafkaError._UNKNOWN_TOPIC, KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.TOPIC_EXCEPTION}
"""Errors of one record if rows have their own topics, else of all records."""
_RAISED = (KafkaException, SystemError)
"""Exceptions that a client call may raise for an error that ends the producer.

Reports on records are delivered in the same call, with that error already set. Their callbacks then fail with a
`SystemError`, which has the error as its cause or has lost it.
"""
_FENCED = {KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH}
_SLICE = 0.5
"""Seconds of one wait for the brokers; errors are checked between waits."""
_ABANDONED = 5.0
"""Seconds after its own deadline until a producer that does not report is given up."""
_STATISTICS = 1.0
"""Seconds between two statistics of librdkafka."""
_PROOFS = 0.1
"""The same with transactions: the next one should find statistics that were made after the last one."""


class ProducerFencedError(TransientError):
    """Another producer with the same transactional id was registered later. The transaction of this one is aborted."""


class KafkaProducer:
    """Sends records in order and exactly once within one producer (idempotence, acks of all in-sync replicas).

    All methods are called in one thread. After an error the producer is `broken`: drop it and create another one.

    Args:
        brokers: `host:port`, several separated by commas.
        options: properties of the connection and of throughput.
        timeout: seconds until a record, or a transaction call, fails without acknowledgment.
        transactional_id: enables transactions; `init` must then be called first.
        transaction_timeout: seconds after which the brokers abort a transaction.

    Raises:
        ConfigurationError: librdkafka rejects the options, or a secret does not exist here.
    """

    def __init__(
        self,
        brokers: str,
        options: ProducerOptions,
        timeout: float,
        *,
        transactional_id: str | None = None,
        transaction_timeout: float = 600.0,
    ) -> None:
        self.where = brokers
        self.timeout = timeout
        self.transactional_id = transactional_id
        self.transaction_timeout = transaction_timeout
        self.broken = False
        self.idle = False
        """Whether it is unused: its statistics then only tell whether its requests were answered."""
        self._answered: bool | None = None
        """Whether any statistics since `rest` show that; `None` before the first."""
        self._commits = 0
        self.note: Any = None
        """A note of its user, kept in the cache, such as its last commit."""
        self._key = (brokers, options, timeout, transactional_id, transaction_timeout)
        self._secrets = options.resolved()
        self._clients = KafkaClients(
            brokers, options, timeout, role="Kafka", then="unacknowledged records are sent again with the epoch"
        )
        self._failure: tuple[KafkaError, str | None] | None = None
        self._refused: list[tuple[Refused, int, KafkaError]] = []
        self._peaks: dict[str, int] = {}
        self._counted = -_STATISTICS
        self._began = 0.0
        self._producer: Any = self._clients.made(lambda: Producer(self._clients.settings(**self._settings())))

    def _settings(self) -> dict[str, Any]:
        settings = {
            "enable.idempotence": True,
            "acks": "all",
            "partitioner": "murmur2_random",
            "message.timeout.ms": max(1, int(self.timeout * 1000)),
            "statistics.interval.ms": int(1000 * (_STATISTICS if self.transactional_id is None else _PROOFS)),
            "stats_cb": self._count,
        }
        if self.transactional_id is None:
            return settings | {"on_delivery": self._failed, "delivery.report.only.error": True}
        # A transaction with a failed record cannot be committed, so the failure need not be reported earlier.
        return settings | {
            "transactional.id": self.transactional_id,
            "transaction.timeout.ms": int(self.transaction_timeout * 1000),
        }

    # KafkaRecords.

    def send(self, records: KafkaRecords, refused: Refused | None = None) -> None:
        """Add records to the local queue, which sends them in this order; blocks while the queue is full.

        Args:
            records: the records of one batch.
            refused: called for each permanently rejected record, in this or a later call. Without it such a record
                raises an error in this or a later call.

        Raises:
            ValueRefusedError: a record was rejected, and `refused` was not given.
            TransientError: the brokers did not acknowledge earlier records in time.
            ConfigurationError: the brokers deny access, or access to the topic.
        """
        self._check()
        if refused is None and records.more is None:
            produce = self._producer.produce
            for record in records:
                try:
                    produce(*record)
                except (BufferError, KafkaException) as error:
                    self._again(record, {}, error)
        else:
            by_row = not isinstance(records.topics, str)
            reported = None if refused is None else partial(self._reported, refused, by_row)
            for row, record in enumerate(records):
                more = {} if records.more is None else records.more[row]
                if reported is not None:
                    more["on_delivery"] = partial(reported, row)
                try:
                    self._producer.produce(*record, **more)
                except (BufferError, KafkaException) as error:
                    self._again(record, more, error)
        self._peak("max_queue", len(self._producer))

    def flush(self) -> None:
        """Wait until the brokers have acknowledged or rejected every record.

        Raises:
            OutfallError: like `send`. If the response is missing (`TransientError`), records may be in the topic, or
                may still arrive.
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

    def produce_one(self, topic: str, key: bytes, value: bytes | None, partition: int) -> int:
        """Send one record after all others, wait for all of them, and return its offset. Only in a transaction.

        Raises:
            OutfallError: like `flush`.
        """
        offsets: list[int] = []

        def reported(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                self._failed(error, message)
            else:
                offsets.append(message.offset() or 0)

        record, more = (topic, value, key, partition), {"on_delivery": reported}
        try:
            self._producer.produce(*record, **more)
        except (BufferError, KafkaException) as error:
            self._again(record, more, error)
        self.flush()
        if not offsets:
            raise self._break(self._clients.explain(KafkaError(KafkaError._TIMED_OUT), f"writing to {topic}"))
        return offsets[0]

    def peaks(self) -> dict[str, int]:
        """Return the largest counts since the last call, for `Metrics.peak`.

        `max_queue`: records in the local queue. From librdkafka's statistics, once per second: `max_in_flight`, sent
        records without an acknowledgment, and `max_rtt_ms`, the longest request.
        """
        peaks, self._peaks = self._peaks, {}
        return peaks

    # Transactions.

    def init(self, topic: str) -> None:
        """Register the transactional id: fence older producers with it and abort their transactions.

        Args:
            topic: an existing topic, to connect with.

        Raises:
            ConfigurationError: no permission for the id, or its timeout exceeds the brokers' maximum.
            TransientError: the brokers did not respond in time.
        """
        # librdkafka looks for the coordinator at once, and after half a second if no broker is connected. It drops the
        # first connection once that connection reports the broker's name; the second response arrives over a connection
        # that stays.
        for _ in range(2):
            self._clients.ask(f"querying the topic {topic}", partial(self._refresh, topic))
        self._transaction("registering", self._producer.init_transactions)

    def begin(self) -> None:
        """Begin a transaction."""
        self._began = time.monotonic()
        self._transaction("beginning", lambda seconds: self._producer.begin_transaction())

    def commit(self) -> None:
        """Commit the transaction after all its records are acknowledged.

        Raises:
            ProducerFencedError: another producer was registered meanwhile; nothing is committed.
            TransientError: it may be committed if the text says so; else it is not.
            OutfallError: a record was rejected; nothing is committed.
        """
        self._transaction("committing", self._producer.commit_transaction)
        self._commits += 1

    def abort(self) -> None:
        """Abort the transaction and drop the records in the local queue. The producer is dropped afterwards.

        Raises:
            OutfallError: it could not be aborted; the brokers abort it after its timeout.
        """
        self.broken = True
        self._transaction("aborting", self._producer.abort_transaction)

    def shut(self) -> None:
        """Close the producer. Records in flight may still arrive, unless they are in a transaction."""
        producer, self._producer, self.broken = self._producer, None, True
        if producer is not None:
            with suppress(KafkaException):  # no callback runs any more
                producer.purge()
                producer.flush(0)

    def rest(self) -> None:
        """Be unused from now on, until `reusable` is asked."""
        # librdkafka's main thread makes statistics and processes responses to commits. What it made before the last
        # response is in the queue.
        self.poll()
        self.idle, self._answered = True, None

    def reusable(self) -> bool:
        """Whether another transaction may begin, after `rest`.

        A request without a response may still be on its way. If it arrives in the next transaction, which has the same
        producer epoch, it takes effect there: `EndTxn` would commit half of it (KIP-890). It cannot if a new producer
        is registered.
        """
        self.poll()
        self.idle = False
        return self.transactional_id is None or self._answered is True

    def poll(self) -> None:
        """Process librdkafka's events.

        Called regularly while the producer is unused: its statistics would accumulate.
        """
        producer = self._producer
        if producer is not None:
            with suppress(*_RAISED):  # reported to the next user
                producer.poll(0)

    def _transaction(self, doing: str, call: Callable[[float], None]) -> None:
        self._clients.listen()
        deadline = time.monotonic() + self.timeout
        while True:
            try:
                return call(max(0.1, deadline - time.monotonic()))
            except KafkaException as error:
                known = error_of(error)
                if known is None or not known.retriable() or time.monotonic() >= deadline:
                    raise self._break(self._transaction_error(known or KafkaError(KafkaError._FAIL), doing)) from None
                self._serve(0.05)

    def _transaction_error(self, error: KafkaError, doing: str) -> OutfallError:
        what = f"{doing} a transaction of {self.transactional_id}"
        code, where = error.code(), f"at {self.where}"
        why = f"{error.name()}: {self._masked(error)}"
        self._serve(0)
        if code == KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
            return ConfigurationError(
                f"{what} {where} failed",
                why=why,
                do="permit this user to write and describe the transactional ids that begin with"
                " transactional_id_prefix",
            )
        if code == KafkaError.INVALID_TRANSACTION_TIMEOUT:
            return ConfigurationError(
                f"{what} {where} failed",
                why=f"{why}; transaction_timeout is {self.transaction_timeout:g} s, and the brokers'"
                " transaction.max.timeout.ms is less",
                do="lower transaction_timeout, or raise transaction.max.timeout.ms on the brokers",
            )
        took = time.monotonic() - self._began
        if doing != "registering" and took >= self.transaction_timeout:
            return TransientError(
                f"{what} {where} failed",
                why=f"it took {took:.0f} s, and the brokers abort it after transaction_timeout, which is"
                f" {self.transaction_timeout:g} s ({why})",
                do="raise transaction_timeout, or reduce the size of epochs (for example with maxOffsetsPerTrigger)",
            )
        if code in _FENCED:
            return self._fenced(error, f"{what} {where}")
        if self._failure is not None and not self._failure[0].fatal():
            return self._explained(*self._failure)
        if code in _OF_RECORD | _OF_TOPIC:
            return self._explained(error, None)
        told = self._clients.explain(error, what)
        if doing == "committing" and isinstance(told, TransientError) and not error.txn_requires_abort():
            return TransientError(told.what, why=f"{told.why}; it may or may not be committed", do=told.do)
        return told

    def _fenced(self, error: KafkaError, what: str) -> ProducerFencedError:
        return ProducerFencedError(
            f"{what} failed",
            why=f"{error.name()}: {self._masked(error)}: a newer producer was registered under this id",
            do="if another attempt of this task is running, nothing; else check that no other query uses this"
            " checkpoint",
        )

    # Deliveries.

    def _again(self, record: tuple[Any, ...], more: dict[str, Any], error: Exception) -> None:
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
            elif self.transactional_id and known is not None and known.code() == KafkaError._STATE and not asked:
                # An earlier record of the transaction was rejected. The commit fails too, with the reason.
                asked = True
                self.commit()
            else:
                told = more.get("on_delivery") or partial(self._failed, topic=record[0])
                told(known or KafkaError(KafkaError._FAIL), None)
                return self._check()
            try:
                return self._producer.produce(*record, **more)  # type: ignore[no-any-return]
            except (BufferError, KafkaException) as latest:
                error = latest

    def _refresh(self, topic: str, seconds: float) -> None:
        self._producer.list_topics(topic, timeout=seconds)

    def _reported(self, refused: Refused, by_row: bool, row: int, error: KafkaError | None, message: Any) -> None:
        """Process the report on one record. Called when librdkafka serves its events."""
        if error is None:
            return
        if error.code() in (_OF_RECORD | _OF_TOPIC if by_row else _OF_RECORD):
            self._refused.append((refused, row, error))
        else:
            self._failed(error, message)

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

    def _ended(self, ended: KafkaException | SystemError) -> None:
        """Process an error that ends this producer, such as fencing."""
        cause = ended.__cause__ if isinstance(ended, SystemError) else ended
        error = error_of(cause) if cause is not None else self._fatal()
        if error is None:
            raise ended
        self._failed(error, None)

    def _fatal(self) -> KafkaError | None:
        """Query the error that has ended this producer: all calls of its transaction fail with it."""
        try:
            if self.transactional_id is not None:
                self._producer.begin_transaction()
        except KafkaException as refused:
            known = error_of(refused)
            return known if known is not None and known.fatal() else None
        return None

    def _serve(self, seconds: float) -> None:
        """Serve librdkafka's events, and process the reports on records in this thread."""
        try:
            self._producer.poll(seconds)
        except _RAISED as ended:
            self._ended(ended)
        reports, self._refused = self._refused, []
        for refused, row, error in reports:
            refused(row, error.name(), self._masked(error))

    def _check(self) -> None:
        """Raise the reported error."""
        self._serve(0)
        if self._failure is not None:
            raise self._break(self._explained(*self._failure))

    def _explained(self, error: KafkaError, topic: str | None) -> OutfallError:
        what = f"writing to {topic}" if topic else "writing to Kafka"
        if error.code() in _FENCED:
            return self._fenced(error, f"{what} at {self.where}")
        if error.code() not in _OF_RECORD | _OF_TOPIC:
            return self._clients.explain(error, what)
        return ValueRefusedError(
            f"{what} at {self.where}: a record was rejected",
            why=f"{error.name()}: {self._masked(error)}",
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

    def _masked(self, error: KafkaError) -> str:
        return self._clients.masked(error.str())

    def _peak(self, name: str, amount: int) -> None:
        if amount > self._peaks.get(name, 0):
            self._peaks[name] = amount

    def _count(self, statistics: str) -> None:
        """Process librdkafka's statistics (its STATISTICS.md)."""
        if self.idle:
            if self.transactional_id is not None and not self._answered:
                self._answered = all_answered(json.loads(statistics), self._commits)
            return
        if (now := time.monotonic()) < self._counted + _STATISTICS:
            return
        self._counted = now
        found = json.loads(statistics)
        brokers = found.get("brokers", {}).values()
        self._peak("max_queue", found.get("msg_cnt", 0))
        self._peak("max_in_flight", sum(broker.get("waitresp_msg_cnt", 0) for broker in brokers))
        longest = max((broker.get("rtt", {}).get("max", 0) for broker in brokers), default=0)
        self._peak("max_rtt_ms", -(-longest // 1000))


def all_answered(statistics: Mapping[str, Any], commits: int) -> bool:
    """Whether each request of a producer was answered on its connection, and each commit was a single request.

    librdkafka counts a request once it is completely sent (`req`), and each response (`rx`). It reads `req` after `rx`,
    so a request that is in flight at that moment counts as unanswered.
    """
    brokers = statistics.get("brokers", {}).values()
    ends = sum(broker.get("req", {}).get("EndTxn", 0) for broker in brokers)
    return ends == commits and all(sum(broker.get("req", {}).values()) == broker.get("rx") for broker in brokers)


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

LEAST = 8
"""Minimum size of the cache of idle producers. Each has its own threads and connections."""


class Producers:
    """The producers of a process: those in use, and those cached for the next epoch.

    The cache holds as many as were in use at one time, so that each part of a task finds its own again.
    """

    def __init__(self, least: int = LEAST) -> None:
        """Start empty."""
        self._idle: Idle[KafkaProducer] = Idle(least)
        self._in_use = 0
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def take(self, brokers: str, options: ProducerOptions, timeout: float, **transactional: Any) -> KafkaProducer:
        """Return a cached producer, else a new one; the arguments are those of `KafkaProducer`.

        The caller returns it with `keep` or `drop`.
        """
        kept = self.kept(brokers, options, timeout, **transactional)
        return self.make(brokers, options, timeout, **transactional) if kept is None else kept

    def kept(
        self, brokers: str, options: ProducerOptions, timeout: float, **transactional: Any
    ) -> KafkaProducer | None:
        """Return a cached producer that may be used again, if there is one, like `take`."""
        defaults = {"transactional_id": None, "transaction_timeout": 600.0} | transactional
        key = (brokers, options, timeout, defaults["transactional_id"], defaults["transaction_timeout"])
        kept = self._idle.take(key, options.resolved())
        if kept is None:
            return None
        self._use(1)
        if kept.reusable():
            return kept
        self.drop(kept)
        return None

    def make(self, brokers: str, options: ProducerOptions, timeout: float, **transactional: Any) -> KafkaProducer:
        """Return a new producer, otherwise like `take`."""
        made = KafkaProducer(brokers, options, timeout, **transactional)
        self._use(1)
        return made

    def keep(self, producer: KafkaProducer) -> None:
        """Cache a producer that has flushed or committed. A broken one is dropped."""
        if producer.broken:
            self.drop(producer)
            return
        self._use(-1)
        producer.rest()
        self._idle.keep(producer._key, producer._secrets, producer)
        self._tend()

    def drop(self, producer: KafkaProducer) -> None:
        """Close a producer that must not be used again, with its unsent records."""
        self._use(-1)
        producer.shut()

    def close(self) -> None:
        """Close all cached producers."""
        for producer in self._idle.clear():
            producer.shut()

    def _use(self, more: int) -> None:
        with self._lock:
            self._in_use += more
            self._idle.most = max(self._idle.most, self._in_use)

    def _tend(self) -> None:
        """Serve the events of cached producers in a thread, because their statistics would accumulate."""
        with self._lock:
            # In a child process, the thread of the parent does not run.
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._listen, name="outfall-idle-producers", daemon=True)
                self._thread.start()

    def _listen(self) -> None:
        while True:
            with self._lock:
                kept = self._idle.all()
                if not kept:
                    self._thread = None
                    return
            for producer in kept:
                producer.poll()
            del kept, producer
            time.sleep(_STATISTICS)


PRODUCERS = Producers()
"""The producers of this process."""
