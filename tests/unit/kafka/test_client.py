"""What connections to Kafka say, and what is made of it in the requests that come after; no broker is asked."""

from __future__ import annotations

import logging
from collections import deque
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from outfall.errors import ConfigurationError, TransientError
from outfall.kafka.client import KafkaClients, _Repeated
from outfall.kafka.options import ClientOptions
from outfall.kafka.partition import DeliveryUnknownError, KafkaPartition, TopicRecord
from outfall.retry_log import INTERVAL

AWAY = KafkaError(KafkaError._TRANSPORT)
REFUSED = KafkaError(KafkaError.SASL_AUTHENTICATION_FAILED)


class Client:
    """A consumer and a producer that say next what they are told to: an error of a connection, or a message."""

    def __init__(self, clients: KafkaClients) -> None:
        self.clients = clients
        self.next: deque[Any] = deque()
        self.answers: list[Any] = []
        self.topics: dict[str, Any] = {}
        self.watermarks: deque[Any] = deque()
        self.assigned: list[Any] = [Message(AWAY)]

    def poll(self, seconds: float) -> Any:
        while self.answers:
            self.answers.pop()(KafkaError(KafkaError._MSG_TIMED_OUT), None)
        said = self.next.popleft() if self.next else None
        if isinstance(said, KafkaError):
            self.clients._note(said)
            return None
        return said

    def assign(self, partitions: Any) -> None:
        self.next.extend(self.assigned)

    def list_topics(self, topic: str, *, timeout: float) -> Any:
        return SimpleNamespace(topics=self.topics)

    def get_watermark_offsets(self, partition: Any, seconds: float) -> Any:
        said = self.watermarks.popleft()
        if isinstance(said, KafkaError):
            raise KafkaException(said)
        return said

    def unassign(self) -> None:
        """Nothing is assigned any more."""

    def produce(self, topic: str, value: Any, key: str, *, partition: int, on_delivery: Any) -> None:
        self.answers.append(on_delivery)

    def purge(self) -> None:
        """Nothing is queued."""

    def flush(self, seconds: float) -> int:
        return 0


class Message:
    """One that is only an error."""

    def __init__(self, error: KafkaError) -> None:
        self._error = error

    def error(self) -> KafkaError:
        return self._error

    def offset(self) -> None:
        """It concerns no record."""


class Data:
    """A record at offset 0."""

    def error(self) -> None:
        """It is none."""

    def offset(self) -> int:
        return 0

    def key(self) -> bytes:
        return b"key"

    def value(self) -> bytes:
        return b"value"


def waiting(seconds: float) -> Client:
    clients = KafkaClients("127.0.0.1:1", ClientOptions({}), seconds)
    made: Any = Client(clients)
    clients._consumer = clients._producer = made
    return made  # type: ignore[no-any-return]


@pytest.fixture
def client() -> Client:
    return waiting(30)


@pytest.fixture
def impatient() -> Client:
    """For what never comes."""
    return waiting(0.3)


def told(client: Client, when: str) -> None:
    """A connection is refused, before the next call; the client knows, or has not been asked."""
    if when == "known":
        client.clients._note(REFUSED)
    else:
        client.next.append(REFUSED)


@pytest.mark.parametrize("when", ["known", "not yet heard"])
def test_a_request_is_not_blamed_on_what_was_refused_before_it(client: Client, when: str) -> None:
    told(client, when)
    outcomes = iter([AWAY, None])

    def request(seconds: float) -> str:
        if (error := next(outcomes)) is not None:
            raise KafkaException(error)
        return "answered"

    assert client.clients.ask("asking", request) == "answered"


@pytest.mark.parametrize(("given", "shown"), [({}, "PLAINTEXT"), ({"security.protocol": "sasl_ssl"}, "SASL_SSL")])
def test_brokers_that_close_a_connection_of_another_protocol_have_it_named(given: dict[str, str], shown: str) -> None:
    clients = KafkaClients("127.0.0.1:1", ClientOptions(given), 1)
    assert f"a listener for security.protocol={shown}" in str(clients.explain(AWAY, "asking"))


def test_the_guess_of_librdkafka_about_the_protocol_is_shown_once_it_is_made(client: Client) -> None:
    guess = "ssl://h:1/bootstrap: SSL connection closed by peer: connecting to a PLAINTEXT broker listener?"
    client.clients._note(KafkaError(KafkaError._TRANSPORT, guess))
    client.clients._note(KafkaError(KafkaError._TRANSPORT, "ssl://h:1/bootstrap: SSL connection closed by peer"))
    assert guess in str(client.clients.explain(AWAY, "asking"))
    client.clients.listen()
    assert guess not in str(client.clients.explain(AWAY, "asking")), "the next request may fail for another reason"


def test_the_first_retry_of_a_request_is_a_warning(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    client.clients.where = "kafka.example:9092"
    outcomes = iter([KafkaException(AWAY)])

    def request(seconds: float) -> None:
        if (error := next(outcomes, None)) is not None:
            raise error

    client.clients.ask("looking at the topics", request)
    (warning,) = (record.getMessage() for record in caplog.records)
    assert warning == (
        "the recovery store at kafka.example:9092: looking at the topics failed (attempt 1, 30 s left) and is"
        f" retried: {AWAY.str()}"
    )


def test_a_request_that_is_refused_while_it_is_tried_is_not_tried_again(client: Client) -> None:
    def request(seconds: float) -> None:
        client.next.append(REFUSED)
        raise KafkaException(AWAY)

    with pytest.raises(ConfigurationError, match="SASL_AUTHENTICATION_FAILED"):
        client.clients.ask("asking", request)


@pytest.mark.parametrize("when", ["known", "not yet heard"])
def test_a_reading_is_not_blamed_on_what_was_refused_before_it(impatient: Client, when: str) -> None:
    told(impatient, when)
    with pytest.raises(TransientError, match="_TRANSPORT"):
        list(KafkaPartition(impatient.clients, "topic").records(0, 1))


@pytest.mark.parametrize("when", ["known", "not yet heard"])
def test_a_writing_is_not_blamed_on_what_was_refused_before_it(impatient: Client, when: str) -> None:
    told(impatient, when)
    with pytest.raises(DeliveryUnknownError):
        KafkaPartition(impatient.clients, "topic").write([("key", b"value")])


def test_a_writing_that_is_never_reported_is_unknown(impatient: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outfall.kafka.partition._ABANDONED", 0.0)
    monkeypatch.setattr(impatient, "produce", lambda *_, **__: None)
    with pytest.raises(DeliveryUnknownError, match=r"no response within 0\.3 s"):
        KafkaPartition(impatient.clients, "topic").write([("key", b"value")])


THERE = SimpleNamespace(error=None, partitions={0: None})
MISSED = [KafkaError(code) for code in (KafkaError._UNKNOWN_PARTITION, KafkaError.UNKNOWN_TOPIC_OR_PART)]


@pytest.mark.parametrize("missed", MISSED, ids=lambda error: error.name())
def test_a_topic_that_is_there_is_asked_for_its_end_again_when_the_client_misses_its_partition(
    client: Client, missed: KafkaError
) -> None:
    client.topics = {"topic": THERE}
    client.watermarks.extend([missed, missed, (3, 7)])
    assert KafkaPartition(client.clients, "topic").bounds() == (3, 7)


@pytest.mark.parametrize("missed", MISSED, ids=lambda error: error.name())
def test_a_topic_that_went_away_has_no_end(impatient: Client, missed: KafkaError) -> None:
    partition = KafkaPartition(impatient.clients, "topic")
    impatient.topics = {"topic": THERE}
    impatient.watermarks.extend([(0, 1), missed])
    assert partition.bounds() == (0, 1)
    impatient.topics = {}
    assert partition.bounds() == (0, 0)


@pytest.mark.parametrize("missed", MISSED, ids=lambda error: error.name())
def test_a_reading_goes_on_when_the_client_misses_the_partition_for_a_while(client: Client, missed: KafkaError) -> None:
    client.topics = {"topic": THERE}
    client.assigned = [Message(missed), Data()]
    assert list(KafkaPartition(client.clients, "topic").records(0, 1)) == [TopicRecord(0, "key", b"value")]


def test_a_reading_that_waited_for_a_topic_in_vain_says_so(impatient: Client) -> None:
    impatient.assigned = [Message(MISSED[1])]
    with pytest.raises(TransientError, match=r"reading topic at .* UNKNOWN_TOPIC_OR_PART"):
        list(KafkaPartition(impatient.clients, "topic").records(0, 1))


def test_a_reading_that_is_not_allowed_ends_at_once(client: Client) -> None:
    client.assigned = [Message(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED))]
    with pytest.raises(ConfigurationError, match=r"reading topic at .* TOPIC_AUTHORIZATION_FAILED"):
        list(KafkaPartition(client.clients, "topic").records(0, 1))


def test_lines_of_a_broker_that_is_down_are_logged_once_per_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    repeated = _Repeated()

    def passes(text: str) -> bool:
        return bool(repeated.filter(logging.LogRecord("", logging.ERROR, "", 0, "%s", (text,), None)))

    down = "[thrd:127.0.0.1:1/bootstrap]: 127.0.0.1:1/bootstrap: Connect to ipv4#127.0.0.1:1 failed"
    assert passes(f"FAIL [rdkafka#producer-1] {down}: Connection refused (after 0ms in state CONNECT)")
    assert not passes(f"FAIL [rdkafka#consumer-2] {down}: Connection refused (after 1ms in state CONNECT)")
    assert passes("FAIL [rdkafka#consumer-2] [thrd:127.0.0.1:2/bootstrap]: 127.0.0.1:2/bootstrap: Connect failed")
    assert passes("CONFWARN [rdkafka#producer-1] [thrd:app]: a property has no effect")
    assert [passes("of another form") for _ in range(2)] == [True, True]
    now += INTERVAL
    assert passes(f"FAIL [rdkafka#producer-1] {down}: Connection refused (after 0ms in state CONNECT)")
