"""The producer of transactions (KIP-98), and the rule for using it again."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message

from outfall.errors import ConfigurationError, OutfallError, TransientError
from outfall.kafka.client import error_of
from outfall.kafka.options import ProducerOptions
from outfall.kafka.producer.base import OF_RECORD, OF_TOPIC, KafkaProducer, Record
from outfall.kafka.records import KafkaRecords

_FENCED = {KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH}
_PROOFS = 0.1
"""Seconds between two statistics: the next transaction should find some that were made after the last one."""


_OWN_THREAD = 5
"""Seconds that the client's own thread has for an answer without a broker."""


class ProducerFencedError(TransientError):
    """Another producer with the same transactional id was registered later. The transaction of this one is aborted."""


class TransactionalProducer(KafkaProducer):
    """Sends records in transactions: `init` once, then `begin`, `send`, `commit`.

    Of one `transactional_id` the brokers know one producer, the newest. `timeout` is the number of seconds until a
    record, or a transaction call, fails without acknowledgment. After `transaction_timeout` seconds the brokers abort a
    transaction.
    """

    def __init__(
        self,
        brokers: str,
        options: ProducerOptions,
        timeout: float,
        *,
        transactional_id: str,
        transaction_timeout: float = 600.0,
    ) -> None:
        super().__init__(brokers, options, timeout)
        self.transactional_id = transactional_id
        self.transaction_timeout = transaction_timeout
        self.key = (self.key, transactional_id, transaction_timeout)
        self.note: Any = None
        """A note of its user, kept in the cache, such as its last commit."""
        self._began = 0.0
        self._commits = 0
        self._answered: bool | None = None
        """Whether any statistics since `rest` show that its requests were answered; `None` before the first."""

    def _settings(self) -> dict[str, Any]:
        # A transaction with a failed record cannot be committed, so the failure need not be reported earlier.
        return {
            "transactional.id": self.transactional_id,
            "transaction.timeout.ms": int(self.transaction_timeout * 1000),
            "statistics.interval.ms": int(1000 * _PROOFS),
        }

    def init(self, topic: str) -> None:
        """Register the transactional id: fence older producers with it and abort their transactions.

        `topic` exists, and is used to connect. Raises `ConfigurationError` if there is no permission for the id, or its
        timeout exceeds the brokers' maximum, and `TransientError` if the brokers did not respond in time.
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

    def produce_one(self, topic: str, key: bytes, value: bytes | None, partition: int) -> int:
        """Send one record after all others, wait for all of them, and return its offset.

        Raises the errors of `flush`.
        """
        reports: list[tuple[KafkaError | None, Message]] = []
        collect = reports.append  # looked up before an error is set, see _RAISED
        more = {"on_delivery": lambda error, message: collect((error, message))}
        self.send(KafkaRecords(topic, [value], [key], [partition], [more]))
        self.flush()
        if not reports:
            raise self._break(self._clients.explain(KafkaError(KafkaError._TIMED_OUT), f"writing to {topic}"))
        ((error, message),) = reports
        if error is not None:
            self._failed(error, message)
            self._check()
        return message.offset() or 0

    def commit(self) -> None:
        """Commit the transaction after all its records are acknowledged.

        Nothing is committed after `ProducerFencedError` (another producer was registered meanwhile), or after another
        `OutfallError` (a record was rejected). After `TransientError` it may be committed if the text says so; else it
        is not.
        """
        self._transaction("committing", self._producer.commit_transaction)
        self._commits += 1

    def abort(self, within: float = math.inf) -> None:
        """Abort the transaction and drop the records in the local queue. The producer is dropped afterwards.

        Waits at most `within` seconds, if that is less than the timeout. Raises `OutfallError` if it could not be
        aborted; the brokers then abort it after its timeout.
        """
        self.broken = True
        self._transaction("aborting", self._producer.abort_transaction, within)

    # In the cache.

    def rest(self) -> None:
        # librdkafka's main thread makes statistics and processes responses to commits. What it made before the last
        # response is in the queue, and no evidence.
        super().rest()
        self._answered = None

    def reusable(self) -> bool:
        """Whether another transaction may begin, after `rest`.

        A request without a response may still be on its way. If it arrives in the next transaction, which has the same
        producer epoch, it takes effect there: `EndTxn` would commit half of it (KIP-890). It cannot if a new producer
        is registered.
        """
        return super().reusable() and self._answered is True

    def _count(self, statistics: str) -> None:
        if self.idle and not self._answered:
            self._answered = all_answered(json.loads(statistics), self._commits)
        super()._count(statistics)

    # Errors.

    def _transaction(self, doing: str, call: Callable[[float], None], within: float = math.inf) -> None:
        self._clients.listen()
        deadline = time.monotonic() + min(self.timeout, within)
        while True:
            try:
                return call(max(0.1, deadline - time.monotonic()))
            except KafkaException as error:
                known = error_of(error)
                if known is None or not known.retriable() or time.monotonic() >= deadline:
                    raise self._break(self._transaction_error(known or KafkaError(KafkaError._FAIL), doing)) from None
                self._serve(0.05)

    def _rejected(self, record: Record, more: dict[str, Any], error: KafkaError) -> None:
        if error.code() == KafkaError._STATE:
            # An earlier record of the transaction was rejected. The commit fails too, with the reason.
            self.commit()
        super()._rejected(record, more, error)

    def _fatal(self) -> KafkaError | None:
        # The client has no call for it. This one is always refused to a registered producer, before any request:
        # because of the fatal error, else because of its state. With a time of 0 the answer of the client's own thread
        # could come too late.
        try:
            self._producer.init_transactions(_OWN_THREAD)
        except KafkaException as refused:
            known = error_of(refused)
            return known if known is not None and known.fatal() else None
        return None

    def _transaction_error(self, error: KafkaError, doing: str) -> OutfallError:
        what = f"{doing} a transaction of {self.transactional_id}"
        code, where = error.code(), f"at {self.where}"
        why = self._why(error)
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
        if doing != "registering" and self._took_too_long():
            return self._expired(error, f"{what} {where}")
        if code in _FENCED:
            return self._fenced(error, f"{what} {where}")
        if self._failure is not None and not self._failure[0].fatal():
            return self._translated(*self._failure)
        if code in OF_RECORD | OF_TOPIC:
            return self._translated(error, None)
        translated = self._clients.explain(error, what)
        if doing == "committing" and isinstance(translated, TransientError) and not error.txn_requires_abort():
            return TransientError(
                translated.what, why=f"{translated.why}; it may or may not be committed", do=translated.do
            )
        return translated

    def _translated(self, error: KafkaError, topic: str | None) -> OutfallError:
        if error.code() not in _FENCED:
            return super()._translated(error, topic)
        what = f"writing to {topic or 'Kafka'} at {self.where}"
        # Brokers that abort a transaction respond to its next record as if another producer were registered.
        return self._expired(error, what) if self._took_too_long() else self._fenced(error, what)

    def _took_too_long(self) -> bool:
        return time.monotonic() - self._began >= self.transaction_timeout

    def _expired(self, error: KafkaError, what: str) -> TransientError:
        return TransientError(
            f"{what} failed",
            why=f"it took {time.monotonic() - self._began:.0f} s, and the brokers abort it after transaction_timeout,"
            f" which is {self.transaction_timeout:g} s ({self._why(error)})",
            do="raise transaction_timeout, or reduce the size of epochs (for example with maxOffsetsPerTrigger)",
        )

    def _fenced(self, error: KafkaError, what: str) -> ProducerFencedError:
        return ProducerFencedError(
            f"{what} failed",
            why=f"{self._why(error)}: a newer producer was registered under this id",
            do="if another attempt of this task is running, nothing; else check that no other query uses this"
            " checkpoint",
        )


def all_answered(statistics: Mapping[str, Any], commits: int) -> bool:
    """Whether each request of a producer was answered on its connection, and each commit was a single request.

    librdkafka counts a request once it is completely sent (`req`), and each response (`rx`). It reads `req` after `rx`,
    so a request that is in flight at that moment counts as unanswered.
    """
    brokers = statistics.get("brokers", {}).values()
    ends = sum(broker.get("req", {}).get("EndTxn", 0) for broker in brokers)
    return ends == commits and all(sum(broker.get("req", {}).values()) == broker.get("rx") for broker in brokers)
