"""librdkafka's clients: created on first use, with retries under a deadline and translated errors."""

from __future__ import annotations

import logging
import re
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Literal, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from outfall.errors import ConfigurationError, OutfallError, TransientError
from outfall.first_contact import UnexpectedProtocolError
from outfall.kafka.options import ClientOptions
from outfall.retry_log import INTERVAL, Retry, RetryLog
from outfall.retry_loop import retried
from outfall.tls import system_authorities

T = TypeVar("T")

_log = logging.getLogger(__name__)
_retries = RetryLog(_log)


class _Repeated(logging.Filter):
    """Passes one line of librdkafka per kind, broker and interval: each client logs each attempt to connect."""

    _KIND = re.compile(r"(\w+) \[[^]]*#(?:producer|consumer)-\d+\](?: (\[thrd:[^]]*\]))?")

    def __init__(self) -> None:
        super().__init__()
        self._passed: dict[object, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        found, now = self._KIND.match(record.getMessage()), time.monotonic()
        if found is None:
            return True
        passes = now - self._passed.get(found.groups(), -INTERVAL) >= INTERVAL
        if passes:
            self._passed[found.groups()] = now
        return passes


_log.addFilter(_Repeated())

MISSING = {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION}
"""The topic does not exist (yet), or the client's metadata is older than a change of leader."""

_RIGHTS = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
}  # fmt: skip
ACCESS = {
    KafkaError._AUTHENTICATION, KafkaError._SSL, KafkaError.SASL_AUTHENTICATION_FAILED,
    KafkaError.UNSUPPORTED_SASL_MECHANISM,
}  # fmt: skip
"""The brokers permanently deny access."""

_REFUSED = {
    KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE, KafkaError.INVALID_REPLICATION_FACTOR,
    KafkaError.POLICY_VIOLATION, KafkaError.INVALID_CONFIG, KafkaError.INVALID_PARTITIONS, KafkaError.INVALID_MSG,
    KafkaError._INVALID_ARG, KafkaError.TOPIC_EXCEPTION, KafkaError.UNSUPPORTED_VERSION,
    KafkaError._UNSUPPORTED_FEATURE,
}  # fmt: skip

# librdkafka has just dropped the broker of the request. Clients before about 2.6 have no name for this code.
_DESTROY_BROKER = -137
_PASSING = {
    KafkaError._TRANSPORT, KafkaError._TIMED_OUT, KafkaError._TIMED_OUT_QUEUE, KafkaError._ALL_BROKERS_DOWN,
    _DESTROY_BROKER,
    KafkaError._RESOLVE, KafkaError._WAIT_COORD, KafkaError.LEADER_NOT_AVAILABLE, KafkaError.REQUEST_TIMED_OUT,
    KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.BROKER_NOT_AVAILABLE, KafkaError.REPLICA_NOT_AVAILABLE,
    KafkaError.NOT_ENOUGH_REPLICAS, KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND, KafkaError.NETWORK_EXCEPTION,
    KafkaError.NOT_CONTROLLER, KafkaError.KAFKA_STORAGE_ERROR, KafkaError.UNKNOWN_LEADER_EPOCH,
    KafkaError.FENCED_LEADER_EPOCH, KafkaError.OFFSET_NOT_AVAILABLE,
}  # fmt: skip

_RECONNECT = 20
"""Milliseconds before a client reconnects for the first time; the pause grows with each attempt.

The client also waits half of it before it connects to a second broker. Every client does so: it drops the first
connection once that connection reports the broker's name.
"""
_REQUEST = 5.0
"""Seconds until one request is repeated."""


class KafkaClients:
    """One producer, one consumer and, to create or describe topics, an admin client of one cluster.

    One call waits at most `timeout` seconds for the brokers. With the default `isolation` the consumer also returns
    records of open or aborted transactions. Texts name the purpose of the cluster by `role`, and by `then` what happens
    once the brokers are available.
    """

    def __init__(
        self,
        brokers: str,
        options: ClientOptions,
        timeout: float,
        *,
        isolation: Literal["read_uncommitted", "read_committed"] = "read_uncommitted",
        role: str = "the recovery store",
        then: str = "the next run continues from the log",
    ) -> None:
        """Connect to nothing yet."""
        self._isolation = isolation
        self._role = role
        self._then = then
        self.where = brokers
        self.timeout = timeout
        self._options = options
        self._producer: Producer | None = None
        self._consumer: Consumer | None = None
        self._admin: AdminClient | None = None
        self._refused: KafkaError | None = None
        self._wrong: dict[str, KafkaError] = {}
        """By address, what no outage explains."""
        self._hint: KafkaError | None = None
        """librdkafka's guess that the listener has another protocol."""

    def settings(self, **more: Any) -> dict[str, Any]:
        """Return the properties of a client that logs to this module's logger."""
        given = self._options.resolved()
        encrypted = "ssl" in given.get("security.protocol", "").lower()
        # librdkafka's OpenSSL would look for them itself, in places of its own.
        authorities = (
            system_authorities() if encrypted and not any(name.startswith("ssl.ca") for name in given) else None
        )
        return {
            "reconnect.backoff.ms": _RECONNECT,
            **({} if authorities is None else {"ssl.ca.location": authorities}),
            **given,
            "bootstrap.servers": self.where,
            "error_cb": self._note,
            "logger": _log,
            **more,
        }

    def producer(self) -> Producer:
        """Return the producer: records in order, exactly once, acknowledged by all in-sync replicas."""
        if self._producer is None:
            settings = {
                "enable.idempotence": True,
                "acks": "all",
                "linger.ms": 0,
                "message.timeout.ms": max(1, int(self.timeout * 1000)),
            }
            self._producer = self.made(lambda: Producer(self.settings(**settings)))
        return self._producer

    def consumer(self) -> Consumer:
        """Return the consumer, which belongs to no group and commits nothing."""
        if self._consumer is None:
            settings = {
                "group.id": "outfall",
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "auto.offset.reset": "error",
                "allow.auto.create.topics": False,
                "enable.partition.eof": True,
                # The recovery store does not use transactions, and another writer's must not block it.
                "isolation.level": self._isolation,
                # A broker processes a connection's requests in order, so the next request waits behind this one.
                "fetch.wait.max.ms": 5,
                "fetch.error.backoff.ms": 50,
                "check.crcs": True,
            }
            self._consumer = self.made(lambda: Consumer(self.settings(**settings)))
        return self._consumer

    def admin(self) -> AdminClient:
        """Return the admin client. It gets few requests and is dropped after them, because it holds threads too."""
        if self._admin is None:
            self._admin = self.made(lambda: AdminClient(self.settings()))
        return self._admin

    def made(self, make: Callable[[], T]) -> T:
        """Create a client. Raises `ConfigurationError` if librdkafka rejects its properties."""
        try:
            return make()
        except (KafkaException, ValueError, TypeError) as error:
            raise ConfigurationError(
                f"cannot create the Kafka client for {self.where}",
                why=self._options.masked(str(error)),
                do="correct client_options",
            ) from None

    def ask(self, doing: str, request: Callable[[float], T]) -> T:
        """Send a request, and retry it after transient errors until the deadline.

        The request is called with its timeout in seconds.
        """
        self.listen()
        try:
            return retried(
                lambda: request(min(_REQUEST, self.timeout)),
                passes=self._try_again,
                deadline=self.timeout,
                first_wait=0.05,
                longest_wait=2,
                log=_retries,
                describe=lambda error: self._failed(doing, error),
            )
        except KafkaException as error:
            raise self.explain(error, doing) from None

    def _failed(self, doing: str, error: BaseException) -> Retry:
        known = error_of(error)
        return Retry(f"{self._role} at {self.where}", doing, self.masked(known.str() if known else str(error)))

    def listen(self) -> None:
        """Forget the previous reports of the connections. Called before each request, read or write.

        A client is used for many epochs, and access that was denied may be granted later, for example after a
        certificate change.
        """
        self._hear()
        self._refused = None
        self._wrong = {}
        self._hint = None

    def explain(self, error: KafkaException | KafkaError, doing: str) -> OutfallError:
        """Convert a client error to an Outfall error."""
        known = error if isinstance(error, KafkaError) else error_of(error)
        if known is None:
            return TransientError(f"{doing} at {self.where} failed", why=self._options.masked(str(error)))
        if self._refused is not None and not is_permanent(known):
            known = self._refused
        elif is_transient(known):
            known = self._wrong_address() or self._hint or known
        # Brokers close a connection of another protocol without a word.
        protocol = self._options.get("security.protocol", "plaintext").upper()
        then = f"if they are, check that they have a listener for security.protocol={protocol} there; {self._then}"
        return translated(known, doing, where=self.where, text=self.masked(known.str()), then=then)

    def masked(self, text: str) -> str:
        """Return a text of the client with secrets masked."""
        return self._options.masked(text)

    def waits_for(self, error: KafkaError) -> bool:
        """Whether an error is transient, as far as the connections report."""
        return is_transient(error) and self._refused is None

    def drop_producer(self) -> None:
        """Drop the producer with its unsent records. Records in flight may still arrive."""
        producer, self._producer = self._producer, None
        if producer is not None:
            producer.purge()
            producer.flush(0)

    def drop_admin(self) -> None:
        """Drop the admin client."""
        self._admin = None

    def close(self) -> None:
        """Close all clients."""
        if self._producer is not None:
            self.drop_producer()
        self.drop_admin()
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            consumer.close()

    def shut(self) -> None:
        """Close all clients permanently."""
        self.close()

    def _try_again(self, error: BaseException) -> bool:
        self._hear()
        known, wrong = error_of(error), self._wrong_address()
        if wrong is not None:
            error.__cause__ = _as_os_error(wrong)
        return known is not None and self.waits_for(known)

    def _wrong_address(self) -> KafkaError | None:
        """Return why none of the brokers can ever be reached, if no outage explains it."""
        return next(iter(self._wrong.values())) if len(self._wrong) > self.where.count(",") else None

    def _hear(self) -> None:
        """Let the clients report on their connections."""
        with suppress(KafkaException, RuntimeError):
            if self._consumer is not None:
                self._consumer.poll(0)
            if self._producer is not None:
                self._producer.poll(0)

    def _note(self, error: KafkaError) -> None:
        """Store the reports of the connections: a request that fails because of them only reports a timeout."""
        if error.code() in ACCESS:
            self._refused = error
        if _as_os_error(error) is not None:
            self._wrong[error.str().partition("/bootstrap")[0]] = error
        if "listener?" in error.str() or "security.protocol" in error.str():
            self._hint = error
        _log.info("Kafka at %s: %s", self.where, self._options.masked(str(error)))


def error_of(error: BaseException) -> KafkaError | None:
    """Return librdkafka's own error of an exception."""
    first: Any = error.args[0] if isinstance(error, KafkaException) and error.args else None
    return first if isinstance(first, KafkaError) else None


def _as_os_error(error: KafkaError) -> OSError | None:
    """Return a report of an address that no outage explains as other drivers report it; otherwise `None`."""
    if error.code() == KafkaError._RESOLVE and any(text in error.str() for text in _UNKNOWN_NAME):
        return socket.gaierror(socket.EAI_NONAME, error.str())
    if error.code() == KafkaError._BAD_MSG and "Invalid response size" in error.str():
        return UnexpectedProtocolError(error.str())
    return None


_UNKNOWN_NAME = ("Name or service not known", "nodename nor servname", "No address associated with hostname")
"""How C libraries say that a name does not exist."""


def is_transient(error: KafkaError) -> bool:
    """Whether the same request may succeed later.

    A missing topic counts as transient: callers check whether the topic exists before they send a request.
    """
    return error.code() in _PASSING | MISSING or error.retriable()


def is_permanent(error: KafkaError) -> bool:
    """Whether the broker has permanently rejected the record, so that it is certainly not in the topic."""
    return error.code() in _RIGHTS | ACCESS | _REFUSED


def translated(error: KafkaError, what: str, *, where: str, text: str, then: str) -> OutfallError:
    """Return the error that states the operation, the brokers, the reason and the remedy.

    `what` is the operation, such as `"reading events-progress"`. `text` is the text of the error, without secrets.
    `then` is what happens once the brokers are available.
    """
    why = f"{error.name()}: {text}"
    if error.code() in _RIGHTS:
        do = "permit this user to describe, create, read and write the topics, and to describe their configuration"
    elif error.code() in ACCESS:
        do = "set the protocol, mechanism, user and certificate that the brokers require in client_options"
    elif error.code() in _REFUSED:
        do = "correct the rejected setting, here or in the brokers' configuration"
    else:
        do = f"check that the brokers are up and reachable; {then}"
        return TransientError(f"{what} at {where} failed", why=why, do=do)
    return ConfigurationError(f"{what} at {where} failed", why=why, do=do)
