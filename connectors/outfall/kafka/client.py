"""The clients of a log: librdkafka's, made when they are first used."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from tenacity import RetryCallState, Retrying, retry_if_exception, stop_after_delay, wait_random_exponential

from outfall.errors import ConfigurationError, OutfallError, RecordError, TransientError, missing_extra
from outfall.kafka.failures import ACCESS, MISSING, error_of, explained, may_pass, will_not_pass
from outfall.kafka.partition import DeliveryUnknownError, Partition, Record, Write
from outfall.retry_log import RetryLog

try:
    from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
except ImportError as error:
    raise missing_extra("confluent-kafka", "kafka") from error

if TYPE_CHECKING:
    from outfall.kafka.config import KafkaRecoveryConfig

T = TypeVar("T")

_log = logging.getLogger(__name__)
_retries = RetryLog(_log)

_REQUEST = 5.0
"""Seconds that one request may take before it is sent again."""
_ABANDONED = 5.0
"""Seconds beyond its own deadline after which a producer is given up that does not report."""


class KafkaClients:
    """One producer and one consumer of one topic."""

    def __init__(self, config: KafkaRecoveryConfig) -> None:
        """Connect to nothing yet."""
        self.config = config
        self.timeout = config.seconds()
        self.where = config.brokers
        self._options = config.options()
        self._producer: Producer | None = None
        self._consumer: Consumer | None = None
        self._refused: KafkaError | None = None

    def settings(self, **more: Any) -> dict[str, Any]:
        """Return the properties of a client, whose own texts go to this module's log."""
        return {
            **self._options.resolved(),
            "bootstrap.servers": self.config.brokers,
            "error_cb": self._note,
            "logger": _log,
            **more,
        }

    def producer(self) -> Producer:
        """Return the producer: records in order and each once, when all replicas in sync have it."""
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
        """Return the consumer, which is in no group and commits nothing."""
        if self._consumer is None:
            settings = {
                "group.id": "outfall",
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "auto.offset.reset": "error",
                "allow.auto.create.topics": False,
                "enable.partition.eof": True,
                # Nothing here is in a transaction, and another's must not hold us up.
                "isolation.level": "read_uncommitted",
                # A broker answers a connection's requests in turn, and so the next question waits behind this one.
                "fetch.wait.max.ms": 5,
                "fetch.error.backoff.ms": 50,
                "check.crcs": True,
            }
            self._consumer = self.made(lambda: Consumer(self.settings(**settings)))
        return self._consumer

    def made(self, make: Callable[[], T]) -> T:
        """Make a client.

        Raises:
            ConfigurationError: librdkafka does not take its properties.
        """
        try:
            return make()
        except (KafkaException, ValueError, TypeError) as error:
            raise ConfigurationError(
                f"the Kafka client for {self.where} cannot be made",
                why=self._options.masked(str(error)),
                do="correct client_options",
            ) from None

    def ask(self, doing: str, request: Callable[[float], T]) -> T:
        """Send a request, again after errors that may pass, until the deadline.

        Args:
            doing: for texts.
            request: is given the seconds it may take.
        """
        self.listen()
        try:
            for attempt in Retrying(
                retry=retry_if_exception(self._try_again),
                stop=stop_after_delay(self.timeout),
                wait=wait_random_exponential(multiplier=0.05, max=2),
                before_sleep=lambda state: self._warn(doing, state),
                reraise=True,
            ):
                with attempt:
                    return request(min(_REQUEST, self.timeout))
        except KafkaException as error:
            raise self.explain(error, doing) from None
        raise AssertionError("tenacity returns or raises")

    def _warn(self, doing: str, state: RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome else None
        known = None if error is None else error_of(error)
        _retries.retry(
            f"the recovery store at {self.where}",
            doing,
            attempt=state.attempt_number,
            reason=self._options.masked(known.str() if known else str(error)),
            left=self.timeout - (state.seconds_since_start or 0.0),
        )

    def listen(self) -> None:
        """Forget what the connections said before now. Called before each request, or reading, or writing.

        A client outlives many epochs, and what is refused may be let in later, as after a change of certificates.
        """
        self._hear()
        self._refused = None

    def explain(self, error: KafkaException | KafkaError, doing: str) -> OutfallError:
        """Make our error of the client's."""
        known = error if isinstance(error, KafkaError) else error_of(error)
        if known is None:
            return TransientError(f"{doing} at {self.where} failed", why=self._options.masked(str(error)))
        if self._refused is not None and not will_not_pass(known):
            known = self._refused
        return explained(known, doing, where=self.where, text=self._options.masked(known.str()))

    def waits_for(self, error: KafkaError) -> bool:
        """Whether an error may pass, as far as the connections tell."""
        return may_pass(error) and self._refused is None

    def drop_producer(self) -> None:
        """Forget the producer, what it has not sent with it. What is under way may still arrive."""
        producer, self._producer = self._producer, None
        if producer is not None:
            producer.purge()
            producer.flush(0)

    def close(self) -> None:
        """Close what is open."""
        if self._producer is not None:
            self.drop_producer()
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            consumer.close()

    def _try_again(self, error: BaseException) -> bool:
        self._hear()
        known = error_of(error)
        return known is not None and self.waits_for(known)

    def _hear(self) -> None:
        """Let the clients tell what they know of their connections."""
        with suppress(KafkaException, RuntimeError):
            if self._consumer is not None:
                self._consumer.poll(0)
            if self._producer is not None:
                self._producer.poll(0)

    def _note(self, error: KafkaError) -> None:
        """Remember what the connections say: a request that fails for it says only that it took too long."""
        if error.code() in ACCESS:
            self._refused = error
        _log.info("Kafka at %s: %s", self.where, self._options.masked(str(error)))


class KafkaPartition(Partition):
    """The one partition of a topic."""

    def __init__(self, clients: KafkaClients, topic: str) -> None:
        """Ask nothing yet. The clients are this partition's alone."""
        self._clients = clients
        self._topic = topic
        self._exists = False

    @property
    def name(self) -> str:
        return self._topic

    def prepare(self) -> None:
        from outfall.kafka.topics import prepare_topic

        prepare_topic(self._clients, self._topic)
        self._exists = True

    def bounds(self) -> tuple[int, int]:
        if not self._exists and not self._look():
            return 0, 0
        consumer, here = self._clients.consumer(), TopicPartition(self._topic, 0)

        def ask(seconds: float) -> tuple[int, int]:
            try:
                low, high = consumer.get_watermark_offsets(here, seconds)
            except KafkaException as error:
                known = error_of(error)
                if known is not None and known.code() in MISSING and not self._look():
                    return 0, 0
                raise
            return int(low), int(high)

        return self._clients.ask(f"asking for the end of {self._topic}", ask)

    def records(self, start: int, end: int) -> Generator[Record]:
        if start >= end:
            return
        deadline = time.monotonic() + self._clients.timeout
        consumer = self._clients.consumer()
        self._clients.listen()
        consumer.assign([TopicPartition(self._topic, 0, start)])
        try:
            position = start
            waited_for = KafkaError(KafkaError._TIMED_OUT)
            while position < end:
                if time.monotonic() >= deadline:
                    raise self._clients.explain(waited_for, f"reading {self._topic}")
                message = consumer.poll(0.1)
                if message is None:
                    continue
                # An error that concerns no record has no offset.
                offset = -1 if (at := message.offset()) is None else at
                if (news := self._news(message)) is None:
                    position = offset + 1
                    if offset < end:
                        yield _record(message, offset)
                elif news.code() != KafkaError._PARTITION_EOF:
                    waited_for = news
                elif offset >= end:
                    # What compaction took from the end is behind us too.
                    position = end
        finally:
            consumer.unassign()

    def write(self, writes: Sequence[Write]) -> list[int]:
        producer = self._clients.producer()
        self._clients.listen()
        answers: dict[int, int | KafkaError] = {}
        deadline = time.monotonic() + self._clients.timeout
        for index, (key, value) in enumerate(writes):
            self._enqueue(producer, key, value, lambda e, m, i=index: answers.__setitem__(i, e or m.offset()), deadline)
        while len(answers) < len(writes) and time.monotonic() < deadline + _ABANDONED:
            producer.poll(0.1)
        errors = [answer for answer in answers.values() if isinstance(answer, KafkaError)]
        if errors or len(answers) < len(writes):
            self._clients.drop_producer()
            raise self._undelivered(errors, len(writes))
        return [offset for _, offset in sorted(answers.items()) if isinstance(offset, int)]

    def close(self) -> None:
        self._clients.close()

    def _look(self) -> bool:
        """Whether the topic is there; one with other partitions than one is refused."""
        from outfall.kafka.topics import forget_topic, partitions

        self._exists = partitions(self._clients, self._topic) is not None
        if not self._exists:
            forget_topic(self._clients, self._topic)
        return self._exists

    def _news(self, message: Message) -> KafkaError | None:
        """Return what tells how the reading goes: that the end is reached, or what to wait for; of a record `None`.

        Raises:
            OutfallError: it says that there is nothing to wait for.
        """
        error = message.error()
        if error is None:
            return None
        if error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
            raise RecordError(
                f"the topic {self._topic} was emptied or replaced while it was read",
                do="restore the topics from a copy, or start the query with a new checkpoint and a new prefix",
            )
        if error.code() != KafkaError._PARTITION_EOF and not self._clients.waits_for(error):
            raise self._clients.explain(error, f"reading {self._topic}")
        return error

    def _enqueue(self, producer: Producer, key: str, value: bytes | None, done: Any, deadline: float) -> None:
        """Put a record into the client's queue, which sends in this order; wait while it is full."""
        while True:
            try:
                return producer.produce(self._topic, value, key, partition=0, on_delivery=done)
            except BufferError:
                if time.monotonic() >= deadline:
                    self._clients.drop_producer()
                    raise TransientError(
                        f"writing to {self._topic} at {self._clients.where} failed",
                        why=f"the client's queue was full for {self._clients.timeout:g} s",
                        do="see that the brokers take records, or raise queue.buffering.max.messages in client_options",
                    ) from None
                producer.poll(0.05)
            except KafkaException as error:
                self._clients.drop_producer()
                raise self._undelivered([known] if (known := error_of(error)) else [], 1) from None

    def _undelivered(self, errors: list[KafkaError], count: int) -> OutfallError:
        doing = f"writing {count} records to {self._topic}" if count > 1 else f"writing to {self._topic}"
        for error in errors:
            if will_not_pass(error):
                return self._clients.explain(error, doing)
        reason = self._clients.explain(errors[0] if errors else KafkaError(KafkaError._TIMED_OUT), doing)
        if isinstance(reason, ConfigurationError):
            return reason
        return DeliveryUnknownError(
            f"{doing} at {self._clients.where} was not confirmed",
            why=str(errors[0].name()) if errors else f"no answer came within {self._clients.timeout:g} s",
            do="see that the brokers are up and reachable; the next run goes on from what the log holds",
        )


def _record(message: Message, offset: int) -> Record:
    key, value = message.key(), message.value()
    return Record(
        offset,
        key.decode(errors="replace") if isinstance(key, bytes) else str(key or ""),
        value.encode() if isinstance(value, str) else value,
    )
