"""One producer against librdkafka's own mock cluster and a broker of the tests: what is confirmed, refused or lost."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from outfall.errors import ConfigurationError, TransientError, ValueRefusedError
from outfall.kafka.options import ProducerOptions
from outfall.kafka.producer import transactions
from outfall.kafka.producer.cache import Producers
from outfall.kafka.producer.rows import RowProducer
from outfall.kafka.producer.transactions import ProducerFencedError, TransactionalProducer
from outfall.kafka.records import KafkaRecords
from tests.integration.support.kafka_broker import ModelBroker
from tests.integration.support.kafka_mock import PRODUCE, MockCluster
from tests.integration.support.kafka_topics import ModelTopic
from tests.integration.support.waiting import until
from tests.one_each import thorough

INIT_PRODUCER_ID, END_TXN = 22, 26


@pytest.fixture
def cluster() -> Iterator[MockCluster]:
    mock = MockCluster()
    mock.make("t")
    yield mock
    mock.close()


def producer(address: str, timeout: float = 20, options: dict[str, Any] | None = None) -> RowProducer:
    return RowProducer(address, ProducerOptions(options or {}), timeout).open()


def transactional(address: str, timeout: float = 20, **more: Any) -> TransactionalProducer:
    return TransactionalProducer(address, ProducerOptions({}), timeout, **more).open()


def values(*records: bytes | None, **more: Any) -> KafkaRecords:
    return KafkaRecords("t", list(records), **more)


def model_topic(model: ModelBroker, name: str, partitions: int = 1) -> None:
    model.topics[name] = ModelTopic(partitions, {})


def test_a_full_queue_waits(cluster: MockCluster) -> None:
    made = producer(cluster.address, options={"queue.buffering.max.messages": "10", "linger.ms": "50"})
    made.send(values(*[b"x"] * 200))
    made.flush()
    assert made.peaks()["max_queue"] >= 10
    made.shut()


@pytest.mark.thorough
def test_librdkafkas_counts_become_peaks(cluster: MockCluster) -> None:
    made = producer(cluster.address)
    made.send(values(b"x"))
    made.flush()
    found: dict[str, int] = {}

    def counted() -> bool:
        made.poll()
        found.update(made.peaks())
        return "max_rtt_ms" in found

    until(counted, "librdkafka's counts", 20)
    assert found["max_queue"] == 1
    made.idle = True
    made._count("what nobody reads")
    made.shut()


def test_statistics_from_before_a_producer_rests_are_no_evidence(
    model: ModelBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They wait in the client's queue, and may have been made before a request was sent."""
    monkeypatch.setattr(transactions, "_PROOFS", 1.0)  # no others come in between
    model_topic(model, "t")
    made = transactional(model.address, 10, transactional_id="id")
    made.init("t")
    until(lambda: len(made._producer), "statistics in the queue", 20)
    made.rest()
    assert not made.reusable()
    made.rest()
    until(lambda: len(made._producer), "statistics in the queue", 20)
    assert made.reusable()
    made.shut()


def test_a_request_that_is_answered_later_is_answered(model: ModelBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one for metadata, which librdkafka sends by itself."""
    monkeypatch.setattr(transactions, "_PROOFS", 3600.0)
    made = transactional(model.address, transactional_id="id")
    for responses in (0, 1):
        made.rest()
        made._count(json.dumps({"brokers": {"b": {"rx": 0, "req": {"Metadata": 1}}}}))
        made._count(json.dumps({"brokers": {"b": {"rx": responses, "req": {"Metadata": 1}}}}))
        assert made.reusable() == bool(responses)
    made.shut()


@pytest.mark.thorough
def test_a_queue_that_stays_full_ends_in_time(model: ModelBroker) -> None:
    made = producer(model.address, 1, {"queue.buffering.max.messages": "10"})
    model.silent.add(22)
    with pytest.raises(TransientError, match=r"writing to t at .* failed") as caught:
        made.send(values(*[b"x"] * 200))
    assert "sent again with the epoch" in str(caught.value)
    made.shut()


@pytest.mark.thorough
def test_what_the_brokers_do_not_confirm_in_time_is_an_error_and_the_next_producer_is_well(model: ModelBroker) -> None:
    model_topic(model, "t")
    kept = Producers()
    arguments = (model.address, ProducerOptions({}), 2.0)
    made = kept.take(RowProducer(*arguments))
    model.silent.add(0)
    made.send(values(b"x"))
    with pytest.raises(TransientError, match="check that the brokers are up"):
        made.flush()
    model.silent.clear()
    kept.keep(made)
    again = kept.take(RowProducer(*arguments))
    assert again is not made
    kept.drop(again)
    fresh = kept.take(RowProducer(model.address, ProducerOptions({}), 20.0))
    fresh.send(values(b"y"))
    fresh.flush()
    kept.drop(fresh)


@pytest.mark.parametrize("told", [False, thorough(True)])
def test_a_record_that_is_too_large(cluster: MockCluster, told: bool) -> None:
    """The client's own limit."""
    made, refused = producer(cluster.address, options={"message.max.bytes": "1000"}), []
    records = values(b"a", b"x" * 2000, b"b")
    if not told:
        with pytest.raises(ValueRefusedError, match=r"MSG_SIZE_TOO_LARGE.*raise message\.max\.bytes"):
            made.send(records)
        assert made.broken
    else:
        made.send(records, lambda *report: refused.append(report))
        made.flush()
        assert [report[:2] for report in refused] == [(1, "MSG_SIZE_TOO_LARGE")]
        assert not made.broken
    made.shut()


def test_a_record_that_the_broker_refuses_is_reported(cluster: MockCluster) -> None:
    made, refused = producer(cluster.address, options={"linger.ms": "0"}), []
    made.send(values(b"a"))
    made.flush()
    cluster.answer(PRODUCE, [KafkaError.INVALID_RECORD])
    made.send(values(b"bad"), lambda *report: refused.append(report))
    made.flush()
    made.send(values(b"b"))
    made.flush()
    assert [report[:2] for report in refused] == [(0, "INVALID_RECORD")]
    made.shut()


def test_an_unknown_topic_is_of_the_row_that_names_it(model: ModelBroker) -> None:
    options = {"topic.metadata.propagation.max.ms": "100"}
    model_topic(model, "t")
    made, refused = producer(model.address, options=options), []
    made.send(KafkaRecords(["t", "nowhere"], [b"a", b"b"]), lambda *report: refused.append(report))
    made.flush()
    assert [report[:2] for report in refused] == [(1, "UNKNOWN_TOPIC_OR_PART")]
    made.send(KafkaRecords("elsewhere", [b"a"]), lambda *report: None)
    with pytest.raises(ValueRefusedError, match=r"UNKNOWN_TOPIC_OR_PART.*create the topic"):
        made.flush()
    made.shut()


def test_a_partition_that_was_added_is_found(model: ModelBroker) -> None:
    model_topic(model, "t")
    made = producer(model.address)
    made.send(values(b"x", partitions=[0]))
    made.flush()
    model.topics["t"].grow(2)
    made.send(values(b"y", partitions=[1]))
    made.flush()
    with pytest.raises(ValueRefusedError, match="_UNKNOWN_PARTITION"):
        made.send(values(b"z", partitions=[2]))
    made.shut()


def test_no_right_to_the_topic_stops(cluster: MockCluster) -> None:
    made = producer(cluster.address, options={"linger.ms": "0"})
    cluster.answer(PRODUCE, [KafkaError.TOPIC_AUTHORIZATION_FAILED])
    made.send(values(b"x"), lambda *report: pytest.fail("not of the record"))
    with pytest.raises(ConfigurationError, match="TOPIC_AUTHORIZATION_FAILED"):
        made.flush()
    made.shut()


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "ids that begin with transactional_id_prefix"),
        (KafkaError.INVALID_TRANSACTION_TIMEOUT, r"transaction_timeout is 60 s.*transaction\.max\.timeout\.ms"),
    ],
)
def test_a_transactional_id_that_is_refused(cluster: MockCluster, code: int, message: str) -> None:
    made = transactional(cluster.address, transactional_id="outfall-1", transaction_timeout=60)
    cluster.answer(INIT_PRODUCER_ID, [code])
    with pytest.raises(ConfigurationError, match=message):
        made.init("t")
    made.shut()


def test_transactions(cluster: MockCluster) -> None:
    made = transactional(cluster.address, transactional_id="outfall-1", transaction_timeout=60)
    made.init("t")
    offsets = []
    for _ in range(2):
        made.begin()
        made.send(values(b"a", b"b"))
        offsets.append(made.produce_one("t", b"part", b"state", 0))
        made.commit()
    # In the mock cluster of newer clients a commit takes an offset, too.
    assert offsets in ([2, 5], [2, 6])
    made.begin()
    made.send(values(b"a"))
    made.abort()
    assert made.broken
    made.shut()


def test_a_last_record_that_is_refused_ends_its_transaction(cluster: MockCluster) -> None:
    options = ProducerOptions({"message.max.bytes": "1000"})
    made = TransactionalProducer(cluster.address, options, 20, transactional_id="outfall-1").open()
    made.init("t")
    made.begin()
    with pytest.raises(ValueRefusedError, match="MSG_SIZE_TOO_LARGE"):
        made.produce_one("t", b"part", b"x" * 2000, 0)
    assert made.broken
    made.shut()


def test_a_producer_that_was_fenced_says_so(cluster: MockCluster) -> None:
    made = transactional(cluster.address, transactional_id="outfall-1", transaction_timeout=60)
    made.init("t")
    made.begin()
    made.send(values(b"a"))
    made.flush()
    cluster.answer(END_TXN, [KafkaError.PRODUCER_FENCED])
    with pytest.raises(ProducerFencedError, match="a newer producer was registered"):
        made.commit()
    assert made.broken
    made.shut()


def test_a_producer_that_is_fenced_when_its_last_record_is_under_way_says_so(
    model: ModelBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client raises the fatal error and goes on to report on records, with the error set.

    The interpreter then finds no attribute of a base class, unless it has found it before on the same class.
    """
    monkeypatch.setattr(TransactionalProducer, "changed", None, raising=False)  # so it forgets what it found
    model_topic(model, "t")
    model_topic(model, "ledger")
    older, newer = (transactional(model.address, transactional_id="outfall-1") for _ in range(2))
    older.init("t")
    older.begin()
    older.send(values(*[b"a"] * 10))
    older.flush()
    newer.init("t")
    older.send(values(*[b"a"] * 10))
    with pytest.raises(ProducerFencedError, match="a newer producer was registered"):
        older.produce_one("ledger", b"part", b"state", 0)
    for made in (older, newer):
        made.shut()


def test_the_error_that_ended_a_producer_is_found_without_a_transaction(model: ModelBroker) -> None:
    """Callbacks that run while the client raises it can lose it."""
    model_topic(model, "t")
    older, newer = (transactional(model.address, transactional_id="outfall-1") for _ in range(2))
    older.init("t")
    asked = len(model.asked)
    for state in ("ready", "in a transaction"):
        with pytest.raises(SystemError, match=state):
            older._ended(SystemError(state))
        assert len(model.asked) == asked
        if state == "ready":
            older.begin()
    newer.init("t")
    older._producer.produce("t", b"a")
    with pytest.raises(KafkaException):
        older._producer.flush(10)
    older._ended(SystemError("a callback lost it"))
    with pytest.raises(ProducerFencedError, match="a newer producer was registered"):
        older.flush()
    for made in (older, newer):
        made.shut()


@pytest.mark.thorough
def test_a_commit_without_an_answer_is_unclear(cluster: MockCluster) -> None:
    made = transactional(cluster.address, 2, transactional_id="outfall-1", transaction_timeout=60)
    made.init("t")
    made.begin()
    made.send(values(b"a"))
    made.flush()
    for broker in (1, 2, 3):
        cluster.take_down(broker)
    with pytest.raises(TransientError, match="it may or may not be committed"):
        made.commit()
    made.shut()


def test_as_many_are_kept_as_were_in_use_and_none_after_an_error(cluster: MockCluster) -> None:
    kept = Producers(least=1)
    options = ProducerOptions({})
    made = [kept.take(RowProducer(cluster.address, options, 20 + part)) for part in range(3)]
    for one in made:
        kept.keep(one)
    again = [kept.take(RowProducer(cluster.address, options, 20 + part)) for part in range(3)]
    assert again == made
    again[0].broken = True
    for one in again:
        kept.keep(one)
    assert kept.take(RowProducer(cluster.address, options, 20)) is not made[0]
    kept.close()


def test_secrets_are_in_no_error_and_no_log(cluster: MockCluster, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    given = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": "hunter2"}
    made = producer(cluster.address, 1, given | {"sasl.password": "hunter3", "debug": "security,broker"})
    made.send(values(b"x"))
    with pytest.raises((TransientError, ConfigurationError)) as caught:
        made.flush()
    told = made._translated(KafkaError(KafkaError.INVALID_RECORD, "it holds hunter3"), "t")
    assert "hunter3" not in str(caught.value) + str(told) + caplog.text + repr(made)
    made.shut()
