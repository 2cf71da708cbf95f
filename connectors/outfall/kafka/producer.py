"""One librdkafka producer: records in, each confirmed or refused; transactions; and producers kept between epochs.

Deliveries are reported where they fail only: a call into Python for each record would cost a fifth of the speed.
`Producer.produce_batch` is not used: it drops headers and takes no timestamps, and a loop was as fast.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
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
"""Is told of a record that is refused for good: its index in its batch, Kafka's name of the error, and its text."""

_OF_RECORD = {
    KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE, KafkaError.INVALID_MSG_SIZE,
    KafkaError.INVALID_RECORD, KafkaError.INVALID_TIMESTAMP, KafkaError._UNKNOWN_PARTITION,
}  # fmt: skip
_OF_TOPIC = {KafkaError._UNKNOWN_TOPIC, KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.TOPIC_EXCEPTION}
"""Of the record where rows name their topics, and else of all of them."""
_RAISED = (KafkaException, SystemError)
"""What a call of the client may raise of an error that ends it. Reports on records come in the same call, with that
error set already: what they do fails with a `SystemError`, whose cause it is, or which has lost it."""
_FENCED = {KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH}
_SLICE = 0.5
"""Seconds that one wait for the brokers takes, between which errors are looked at."""
_ABANDONED = 5.0
"""Seconds beyond its own deadline after which a producer is given up that does not report."""
_STATISTICS = 1.0
"""Seconds between two of librdkafka's own counts."""


class ProducerFencedError(TransientError):
    """Another producer has the same transactional id and was registered later: what this one began is aborted."""


class KafkaProducer:
    """Sends records in order and each once, as far as one producer can tell (idempotence, acks of all in sync).

    All methods are called in one thread. After an error it is `broken`: drop it, and make another one.

    Args:
        brokers: `host:port`, several with commas between them.
        options: how they are reached, and how fast is sent.
        timeout: seconds until a record, or a call of a transaction, fails that the brokers do not confirm.
        transactional_id: where it has transactions; `init` is called first then.
        transaction_timeout: seconds after which the brokers abort a transaction.

    Raises:
        ConfigurationError: librdkafka does not take the options, or a secret does not exist here.
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
        """Whether nobody uses it: what is counted then is not of interest."""
        self.note: Any = None
        """What its user wants to find again when it was kept, as its last commit."""
        self._key = (brokers, options, timeout, transactional_id, transaction_timeout)
        self._secrets = options.resolved()
        self._clients = KafkaClients(
            brokers, options, timeout, role="Kafka", then="what was not confirmed is sent again when the epoch is"
        )
        self._failure: tuple[KafkaError, str | None] | None = None
        self._refused: list[tuple[Refused, int, KafkaError]] = []
        self._peaks: dict[str, int] = {}
        self._began = 0.0
        self._producer: Any = self._clients.made(lambda: Producer(self._clients.settings(**self._settings())))

    def _settings(self) -> dict[str, Any]:
        settings = {
            "enable.idempotence": True,
            "acks": "all",
            "partitioner": "murmur2_random",
            "message.timeout.ms": max(1, int(self.timeout * 1000)),
            "statistics.interval.ms": int(_STATISTICS * 1000),
            "stats_cb": self._count,
        }
        if self.transactional_id is None:
            return settings | {"on_delivery": self._failed, "delivery.report.only.error": True}
        # A transaction with a record that failed cannot be committed: nobody has to be told of it before.
        return settings | {
            "transactional.id": self.transactional_id,
            "transaction.timeout.ms": int(self.transaction_timeout * 1000),
        }

    # KafkaRecords.

    def send(self, records: KafkaRecords, refused: Refused | None = None) -> None:
        """Put records into the local queue, which sends them in this order; waits while it is full.

        Args:
            records: of one batch.
            refused: is told, in this or a later call, of each record that the brokers will never take. Without it such
                a record is an error of this or a later call.

        Raises:
            ValueRefusedError: a record was refused, and `refused` was not given.
            TransientError: the brokers did not confirm what was sent before, in time.
            ConfigurationError: they do not let us in, or not to the topic.
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
        """Wait until the brokers have confirmed every record that was sent, or refused it.

        Raises:
            OutfallError: as `send`. Where the answer is missing (`TransientError`), records may be there, or come.
        """
        self._check()
        deadline = time.monotonic() + self.timeout + _ABANDONED
        while self._left(_SLICE):
            self._check()
            if time.monotonic() >= deadline:
                raise self._break(self._clients.explain(KafkaError(KafkaError._TIMED_OUT), "waiting for answers"))
        self._check()

    def produce_one(self, topic: str, key: bytes, value: bytes | None, partition: int) -> int:
        """Send one record behind all others, wait for all of them, and return its offset. Only in a transaction.

        Raises:
            OutfallError: as `flush`.
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

        `max_queue`: records in the local queue. As librdkafka counts them once a second: `max_in_flight`, records that
        were sent and not confirmed yet, and `max_rtt_ms`, the longest that a request took.
        """
        peaks, self._peaks = self._peaks, {}
        return peaks

    # Transactions.

    def init(self, topic: str) -> None:
        """Register the transactional id: what older producers with it have begun is aborted, and they are fenced.

        Args:
            topic: one that is there, to connect by.

        Raises:
            ConfigurationError: no right to the id, or its timeout is longer than the brokers take.
            TransientError: the brokers did not answer in time.
        """
        # librdkafka looks for the coordinator at once, and where no broker is connected again after half a second. The
        # first answer comes over a connection that is then dropped, since it tells the broker's name; the second does
        # not.
        for _ in range(2):
            self._clients.ask(f"asking for the topic {topic}", partial(self._refresh, topic))
        self._transaction("registering", self._producer.init_transactions)

    def begin(self) -> None:
        """Begin a transaction."""
        self._began = time.monotonic()
        self._transaction("beginning", lambda seconds: self._producer.begin_transaction())

    def commit(self) -> None:
        """Commit the transaction, when all its records are confirmed.

        Raises:
            ProducerFencedError: another producer was registered meanwhile; nothing is committed.
            TransientError: it may be committed, or not, where the text says so; else it is not.
            OutfallError: a record was refused; nothing is committed.
        """
        self._transaction("committing", self._producer.commit_transaction)

    def abort(self) -> None:
        """Abort the transaction, and what is still in the local queue. The producer is dropped afterwards.

        Raises:
            OutfallError: it could not be aborted; the brokers will do so after its timeout.
        """
        self.broken = True
        self._transaction("aborting", self._producer.abort_transaction)

    def shut(self) -> None:
        """Let go of it. What is under way may still arrive, unless it is in a transaction."""
        producer, self._producer, self.broken = self._producer, None, True
        if producer is not None:
            with suppress(KafkaException):  # nobody is told any more
                producer.purge()
                producer.flush(0)

    def poll(self) -> None:
        """Take in what librdkafka has to say. Called now and then while nobody uses it: its counts would pile up."""
        producer = self._producer
        if producer is not None:
            with suppress(*_RAISED):  # who takes it will be told
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
                do="let this user write and describe the transactional ids that begin with transactional_id_prefix",
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
                do="raise transaction_timeout, or have smaller epochs (as by maxOffsetsPerTrigger)",
            )
        if code in _FENCED:
            return self._fenced(error, f"{what} {where}")
        if self._failure is not None and not self._failure[0].fatal():
            return self._explained(*self._failure)
        if code in _OF_RECORD | _OF_TOPIC:
            return self._explained(error, None)
        told = self._clients.explain(error, what)
        if doing == "committing" and isinstance(told, TransientError) and not error.txn_requires_abort():
            return TransientError(told.what, why=f"{told.why}; whether it was committed is not known", do=told.do)
        return told

    def _fenced(self, error: KafkaError, what: str) -> ProducerFencedError:
        return ProducerFencedError(
            f"{what} failed",
            why=f"{error.name()}: {self._masked(error)}: a newer producer was registered under this id",
            do="nothing, where another attempt of this task runs; else see that no other query has this checkpoint",
        )

    # Deliveries.

    def _again(self, record: tuple[Any, ...], more: dict[str, Any], error: Exception) -> None:
        """Put a record into the queue that did not take it, when there is room, or when its topic is known anew."""
        deadline = time.monotonic() + self.timeout + _ABANDONED
        asked = False
        while True:
            known = error_of(error)
            if isinstance(error, BufferError):
                # Each record in the queue is confirmed in time or fails, and so there will be room.
                if time.monotonic() >= deadline:
                    raise self._break(self._full())
                self._peak("max_queue", len(self._producer))
                self._serve(0.05)
                self._check()
            elif known is not None and known.code() == KafkaError._UNKNOWN_PARTITION and not asked:
                # The topic may have grown since it was last asked for.
                asked = True
                self._clients.ask(f"asking for the topic {record[0]}", partial(self._refresh, record[0]))
            elif self.transactional_id and known is not None and known.code() == KafkaError._STATE and not asked:
                # An earlier record of the transaction was refused. To commit is refused too, with the reason.
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
        """Take in the report on one record. Called wherever librdkafka is given the time."""
        if error is None:
            return
        if error.code() in (_OF_RECORD | _OF_TOPIC if by_row else _OF_RECORD):
            self._refused.append((refused, row, error))
        else:
            self._failed(error, message)

    def _failed(self, error: KafkaError, message: Message | None, topic: str | None = None) -> None:
        # What ends the producer explains what else is reported, before or after.
        if self._failure is None or (error.fatal() and not self._failure[0].fatal()):
            self._failure = (error, topic if message is None else message.topic())

    def _left(self, seconds: float) -> int:
        """Wait until all is reported, or no longer, and return how many records are not."""
        try:
            return int(self._producer.flush(seconds))
        except _RAISED as ended:
            self._ended(ended)
            return 0

    def _ended(self, ended: KafkaException | SystemError) -> None:
        """Take in what ends this producer, as being fenced does."""
        cause = ended.__cause__ if isinstance(ended, SystemError) else ended
        error = error_of(cause) if cause is not None else self._fatal()
        if error is None:
            raise ended
        self._failed(error, None)

    def _fatal(self) -> KafkaError | None:
        """Ask for the error that has ended this producer: all calls of its transaction are refused with it."""
        try:
            if self.transactional_id is not None:
                self._producer.begin_transaction()
        except KafkaException as refused:
            known = error_of(refused)
            return known if known is not None and known.fatal() else None
        return None

    def _serve(self, seconds: float) -> None:
        """Let librdkafka report, and pass on in this thread what it says of records."""
        try:
            self._producer.poll(seconds)
        except _RAISED as ended:
            self._ended(ended)
        reports, self._refused = self._refused, []
        for refused, row, error in reports:
            refused(row, error.name(), self._masked(error))

    def _check(self) -> None:
        """Raise what was reported."""
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
            f"{what} at {self.where}: a record was refused",
            why=f"{error.name()}: {self._masked(error)}",
            do=_REMEDIES.get(error.code(), "correct the row, leave it out, or keep such rows elsewhere (dead_letter=)"),
        )

    def _full(self) -> TransientError:
        return TransientError(
            f"writing to Kafka at {self.where} failed",
            why=f"the client's queue was full for {self.timeout:g} s",
            do="see that the brokers take records, or raise queue.buffering.max.messages in client_options",
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
        """Take in librdkafka's counts (its STATISTICS.md)."""
        if self.idle:
            return
        found = json.loads(statistics)
        brokers = found.get("brokers", {}).values()
        self._peak("max_queue", found.get("msg_cnt", 0))
        self._peak("max_in_flight", sum(broker.get("waitresp_msg_cnt", 0) for broker in brokers))
        longest = max((broker.get("rtt", {}).get("max", 0) for broker in brokers), default=0)
        self._peak("max_rtt_ms", -(-longest // 1000))


_LIMITS = (
    "raise message.max.bytes in client_options and max.message.bytes of the topic, lower batch.size below that, leave"
    " such rows out, or keep them elsewhere (dead_letter=)"
)
_NO_TOPIC = "make the topic, or correct its name; rows that name it may be kept elsewhere (dead_letter=)"
_REMEDIES = {
    KafkaError.MSG_SIZE_TOO_LARGE: _LIMITS,
    KafkaError.RECORD_LIST_TOO_LARGE: _LIMITS,
    KafkaError._UNKNOWN_TOPIC: _NO_TOPIC,
    KafkaError.UNKNOWN_TOPIC_OR_PART: _NO_TOPIC,
    KafkaError.TOPIC_EXCEPTION: _NO_TOPIC,
    KafkaError._UNKNOWN_PARTITION: "correct the column 'partition', or give the topic more partitions",
}

LEAST = 8
"""Idle producers that a process may keep in any case. Each has threads and connections of its own."""


class Producers:
    """The producers of a process: those in use, and those kept for the next epoch.

    As many are kept as were in use at one time, so that each part of a task finds its own again.
    """

    def __init__(self, least: int = LEAST) -> None:
        """Keep nothing yet."""
        self._idle: Idle[KafkaProducer] = Idle(least)
        self._in_use = 0
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def take(self, brokers: str, options: ProducerOptions, timeout: float, **transactional: Any) -> KafkaProducer:
        """Return a producer that was kept, else a new one; the arguments are those of `KafkaProducer`.

        The caller gives it back by `keep` or `drop`.
        """
        kept = self.kept(brokers, options, timeout, **transactional)
        return self.make(brokers, options, timeout, **transactional) if kept is None else kept

    def kept(
        self, brokers: str, options: ProducerOptions, timeout: float, **transactional: Any
    ) -> KafkaProducer | None:
        """Return a producer that was kept, if there is one, as `take`."""
        defaults = {"transactional_id": None, "transaction_timeout": 600.0} | transactional
        key = (brokers, options, timeout, defaults["transactional_id"], defaults["transaction_timeout"])
        kept = self._idle.take(key, options.resolved())
        if kept is not None:
            kept.idle = False
            self._use(1)
        return kept

    def make(self, brokers: str, options: ProducerOptions, timeout: float, **transactional: Any) -> KafkaProducer:
        """Return a new producer, as `take` else."""
        made = KafkaProducer(brokers, options, timeout, **transactional)
        self._use(1)
        return made

    def keep(self, producer: KafkaProducer) -> None:
        """Take back a producer that has flushed, or committed. A broken one is dropped."""
        if producer.broken:
            self.drop(producer)
            return
        self._use(-1)
        producer.idle = True
        self._idle.keep(producer._key, producer._secrets, producer)
        self._tend()

    def drop(self, producer: KafkaProducer) -> None:
        """Take back a producer that nobody may use again, with what it has not sent."""
        self._use(-1)
        producer.shut()

    def close(self) -> None:
        """Shut all that are kept."""
        for producer in self._idle.clear():
            producer.shut()

    def _use(self, more: int) -> None:
        with self._lock:
            self._in_use += more
            self._idle.most = max(self._idle.most, self._in_use)

    def _tend(self) -> None:
        """Have a thread listen to those that are kept: each counts once a second, and would store all of it."""
        with self._lock:
            # In a child process that of the parent is not alive.
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
"""Those of this process."""
