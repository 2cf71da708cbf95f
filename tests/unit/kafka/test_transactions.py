"""The producer of transactions: with librdkafka's own mock of a broker, and with errors that only a script has."""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from outfall.errors import ConfigurationError, OutfallError, TransientError, ValueRefusedError
from outfall.kafka.options import ProducerOptions
from outfall.kafka.producer.transactions import ProducerFencedError, TransactionalProducer
from outfall.kafka.records import KafkaRecords

PASSING = KafkaError(KafkaError._TIMED_OUT, "no answer yet", retriable=True)
PERMANENT = KafkaError(KafkaError._TIMED_OUT, "no answer")
FENCED = KafkaError(KafkaError._FENCED, "fenced", fatal=True)
REJECTED = KafkaError(KafkaError.MSG_SIZE_TOO_LARGE, "too large")


class MockOptions(ProducerOptions):
    """With those of librdkafka's mock, which runs in its own threads."""

    _allowed = ".*"


def producer(timeout: float = 5, options: dict[str, str] | None = None) -> TransactionalProducer:
    return TransactionalProducer(
        "brokers", MockOptions(options or {}), timeout, transactional_id="p/x", transaction_timeout=60
    )


@pytest.fixture
def mocked() -> Iterator[TransactionalProducer]:
    found = producer(options={"test.mock.num.brokers": "1"}).open()
    found.init("t")
    yield found
    found.shut()


class Scripted:
    """librdkafka's producer, whose calls answer what the script says: an error, or nothing."""

    def __init__(self, *script: KafkaError | Exception | None) -> None:
        self.script = deque(script)
        self.calls: list[str] = []
        self.seconds: list[float] = []
        self.fatal: Exception | None = KafkaException(KafkaError(KafkaError._STATE))
        self.polled: list[float] = []
        self.report: Callable[[], None] | None = None

    def _call(self, name: str, seconds: float) -> None:
        self.calls.append(name)
        self.seconds.append(seconds)
        said = self.script.popleft() if self.script else None
        if said is not None:
            raise KafkaException(said) if isinstance(said, KafkaError) else said

    def begin_transaction(self) -> None:
        self._call("begin", 0)

    def commit_transaction(self, seconds: float) -> None:
        self._call("commit", seconds)

    def abort_transaction(self, seconds: float) -> None:
        self._call("abort", seconds)

    def init_transactions(self, seconds: float) -> None:
        self.calls.append("init")
        if self.fatal is not None:
            raise self.fatal

    def produce(self, *record: Any, **more: Any) -> None:
        self._call("produce", 0)

    def poll(self, seconds: float) -> None:
        self.polled.append(seconds)
        if self.report is not None:
            report, self.report = self.report, None
            report()

    def flush(self, seconds: float) -> int:
        return 0

    def __len__(self) -> int:
        return 1


def scripted(*script: KafkaError | Exception | None, timeout: float = 5) -> tuple[TransactionalProducer, Scripted]:
    found, client = producer(timeout), Scripted(*script)
    found._producer = client
    return found, client


def test_each_record_has_its_offset_and_each_transaction_begins_anew(mocked: TransactionalProducer) -> None:
    for first in (0, 4):  # a commit is a record too, in a broker and in the mock
        mocked.begin()
        mocked.send(KafkaRecords("t", [b"a", b"b"], [b"k"] * 2, [0] * 2))
        assert mocked.produce_one("t", b"k", None, 0) == first + 2
        mocked.commit()
    assert not mocked.broken


def test_a_transaction_that_never_began_cannot_be_committed(mocked: TransactionalProducer) -> None:
    with pytest.raises(OutfallError, match="committing a transaction of p/x"):
        mocked.commit()
    assert mocked.broken


def test_an_aborted_producer_is_not_used_again(mocked: TransactionalProducer) -> None:
    mocked.begin()
    mocked.send(KafkaRecords("t", [b"a"], [b"k"], [0]))
    mocked.abort()
    assert mocked.broken
    with pytest.raises(OutfallError, match="committing"):  # it is over
        mocked.commit()


def test_a_record_for_no_partition_is_refused_and_spoils_the_transaction(mocked: TransactionalProducer) -> None:
    mocked.begin()
    with pytest.raises(ValueRefusedError, match="writing to Kafka at brokers: a record was rejected"):
        mocked.produce_one("t", b"k", b"v", 77)
    assert mocked.broken


def test_a_record_that_the_broker_rejects_is_refused() -> None:
    found, client = scripted()

    class Message:
        def topic(self) -> str:
            return "t"

        def offset(self) -> int:
            return -1001

    deliver: Any = None

    def report() -> None:
        deliver(REJECTED, Message())

    def produce(*record: Any, on_delivery: Any) -> None:
        nonlocal deliver
        deliver, client.report = on_delivery, report

    client.produce = produce  # type: ignore[method-assign]
    with pytest.raises(ValueRefusedError, match="writing to t at brokers: a record was rejected"):
        found.produce_one("t", b"k", b"v", 0)
    assert found.broken


def test_a_record_without_a_report_is_not_taken_for_sent() -> None:
    found, _ = scripted()
    with pytest.raises(TransientError, match="writing to t"):
        found.produce_one("t", b"k", b"v", 0)
    assert found.broken


# Retries of calls.


def test_a_call_is_repeated_until_its_answer_is_there() -> None:
    found, client = scripted(PASSING, PASSING)
    found.begin()
    assert client.calls == ["begin"] * 3
    assert len([seconds for seconds in client.polled if seconds]) == 2  # events are served meanwhile
    assert not found.broken


@pytest.mark.parametrize(("error", "timeout"), [(PERMANENT, 5), (PASSING, 0), (RuntimeError("no error of Kafka"), 5)])
def test_a_call_is_not_repeated_after_its_deadline_or_an_error_that_stays(
    error: KafkaError | Exception, timeout: float
) -> None:
    found, client = scripted(
        error if isinstance(error, KafkaError) else KafkaException("unknown"), None, timeout=timeout
    )
    found._began = time.monotonic()
    with pytest.raises(TransientError, match="committing a transaction of p/x"):
        found.commit()
    assert client.calls == ["commit"]
    assert found.broken


def test_a_call_gets_the_time_that_is_left() -> None:
    found, client = scripted()
    found.commit()
    found.abort(within=0.5)
    found.abort(within=0)
    assert [round(seconds, 1) for seconds in client.seconds] == [5, 0.5, 0.1]


# Errors.


@pytest.mark.parametrize(
    ("code", "kind", "text"),
    [
        (KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, ConfigurationError, "describe the transactional ids"),
        (KafkaError.INVALID_TRANSACTION_TIMEOUT, ConfigurationError, "transaction_timeout is 60 s"),
        (KafkaError._FENCED, ProducerFencedError, "a newer producer was registered"),
        (KafkaError.PRODUCER_FENCED, ProducerFencedError, "a newer producer was registered"),
        (KafkaError.INVALID_PRODUCER_EPOCH, ProducerFencedError, "a newer producer was registered"),
        (KafkaError.MSG_SIZE_TOO_LARGE, ValueRefusedError, "writing to Kafka at brokers: a record was rejected"),
        (KafkaError.UNKNOWN_TOPIC_OR_PART, ValueRefusedError, "create the topic"),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, ConfigurationError, "permit this user"),
        (KafkaError._TRANSPORT, TransientError, "it may or may not be committed"),
    ],
)
def test_each_error_has_its_reason(code: int, kind: type[OutfallError], text: str) -> None:
    found, _ = scripted(KafkaError(code, "said"))
    found._began = time.monotonic()
    with pytest.raises(kind, match=text) as caught:
        found.commit()
    assert type(caught.value) is kind
    assert found.broken


def test_only_a_commit_without_an_answer_may_have_taken_effect() -> None:
    away = KafkaError(KafkaError._TRANSPORT, "said")
    aborted = KafkaError(KafkaError._TRANSPORT, "said", txn_requires_abort=True)
    for error, call in ((away, TransactionalProducer.begin), (aborted, TransactionalProducer.commit)):
        found, _ = scripted(error)
        found._began = time.monotonic()
        with pytest.raises(TransientError, match="a transaction of p/x") as caught:
            call(found)
        assert "may or may not" not in str(caught.value)


def test_the_record_that_spoiled_a_transaction_explains_why_it_fails() -> None:
    state = KafkaError(KafkaError._STATE, "erroneous state")
    found, client = scripted(state)
    found._began = time.monotonic()

    def report() -> None:
        found._failed(REJECTED, None, topic="t")

    client.report = report
    with pytest.raises(ValueRefusedError, match="writing to t at brokers: a record was rejected"):
        found.commit()

    # A fatal error has its own name in the answer.
    found, client = scripted(state)
    found._began = time.monotonic()
    found._failure = (FENCED, None)
    with pytest.raises(OutfallError, match="erroneous state"):
        found.commit()


def test_a_record_after_a_rejected_one_has_its_reason() -> None:
    # librdkafka refuses it for the state of the transaction; the commit knows why.
    state = KafkaException(KafkaError(KafkaError._STATE, "erroneous state"))
    found, client = scripted(None, state, REJECTED)
    found.begin()
    with pytest.raises(ValueRefusedError, match="too large"):
        found.send(KafkaRecords("t", [b"v"], [b"k"], [0]))
    assert client.calls == ["begin", "produce", "commit"]
    found, client = scripted(None, REJECTED)
    found.begin()
    with pytest.raises(ValueRefusedError, match="writing to t"):
        found.send(KafkaRecords("t", [b"v"], [b"k"], [0]))
    assert client.calls == ["begin", "produce"]


@pytest.mark.parametrize("code", [KafkaError._FENCED, KafkaError._TRANSPORT, KafkaError.MSG_SIZE_TOO_LARGE])
def test_after_its_timeout_a_transaction_has_expired_whatever_the_answer(code: int) -> None:
    found, _ = scripted(KafkaError(code, "said"))
    found._began = time.monotonic() - 60
    with pytest.raises(TransientError, match=r"It took 60 s, .* which is 60 s .*raise transaction_timeout") as caught:
        found.commit()
    assert type(caught.value) is TransientError


def test_a_registration_has_not_expired() -> None:
    found, client = scripted()
    found._began = time.monotonic() - 60
    client.fatal = KafkaException(KafkaError(KafkaError._FENCED, "said"))
    with pytest.raises(ProducerFencedError, match="registering a transaction of p/x"):
        found._transaction("registering", client.init_transactions)


@pytest.mark.parametrize(("age", "kind"), [(0, ProducerFencedError), (60, TransientError)])
def test_a_fenced_record_was_fenced_unless_its_transaction_has_expired(age: float, kind: type[OutfallError]) -> None:
    for topic, text in (("t", "writing to t at brokers failed"), (None, "writing to Kafka at brokers failed")):
        found, _ = scripted()
        found._began = time.monotonic() - age
        found._failure = (FENCED, topic)
        with pytest.raises(kind, match=text) as caught:
            found.flush()
        assert type(caught.value) is kind
    found._failure = (KafkaError(KafkaError._TRANSPORT), "t")
    with pytest.raises(TransientError, match="writing to t at brokers failed") as caught:
        found.flush()
    assert "took" not in str(caught.value)


@pytest.mark.parametrize("lost", [SystemError("an error was set"), AttributeError("append")])
def test_a_fatal_error_that_python_has_lost_is_asked_for(lost: Exception) -> None:
    found, client = scripted()
    found._began = time.monotonic()

    def report() -> None:
        raise lost

    client.report, client.fatal = report, KafkaException(FENCED)
    with pytest.raises(ProducerFencedError):
        found.flush()
    # Without one, what was raised is an error of ours.
    for other in (KafkaException(KafkaError(KafkaError._STATE)), KafkaException("unknown"), None):
        found, client = scripted()
        client.report, client.fatal = report, other
        with pytest.raises(type(lost)):
            found.flush()


# Using it again.

ANSWERED = {"brokers": {"b": {"rx": 3, "req": {"EndTxn": 1, "Produce": 2}}}, "msg_cnt": 7}
OPEN = {"brokers": {"b": {"rx": 2, "req": {"EndTxn": 1, "Produce": 2}}}}


@pytest.mark.parametrize(
    ("told", "reusable"), [((), False), ((OPEN,), False), ((OPEN, ANSWERED), True), ((ANSWERED, OPEN), True)]
)
def test_it_is_used_again_only_after_proof_that_nothing_is_on_its_way(told: tuple[Any, ...], reusable: bool) -> None:
    found, _ = scripted()
    found.begin()
    found.commit()
    found._count(json.dumps(ANSWERED))  # in a transaction: no proof, but a count
    assert found.peaks() == {"max_queue": 7}
    found.rest()
    for statistics in told:
        found._count(json.dumps(statistics))
    assert found.peaks() == {}  # nobody reads those of an unused one
    assert found.reusable() == reusable
    # The next transaction needs a new proof.
    found.begin()
    found.commit()
    found.rest()
    assert not found.reusable()


def test_proofs_come_often_and_the_timeout_is_the_brokers() -> None:
    settings = producer()._settings()
    assert settings["transactional.id"] == "p/x"
    assert settings["transaction.timeout.ms"] == 60_000
    assert settings["statistics.interval.ms"] <= 1000
