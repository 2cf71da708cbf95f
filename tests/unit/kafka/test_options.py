"""The options of `KafkaSink`: what goes together, what librdkafka may be told, and that no secret is shown."""

from __future__ import annotations

import pickle
from datetime import timedelta
from typing import Any

import pytest

from outfall.errors import ConfigurationError
from outfall.kafka.options import KafkaOptions
from outfall.options import make_options, parse_options


def options(**given: Any) -> KafkaOptions:
    return make_options(KafkaOptions, {"brokers": "kafka:9092", "topic": "events"} | given)


REGISTRY = "https://registry.example.com"
AVRO: dict[str, Any] = {"value_format": "avro", "schema_registry": REGISTRY}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"brokers": "kafka:port"}, "brokers are not host:port"),
        ({"brokers": "me:hunter2@kafka:9092"}, "brokers are not host:port"),
        ({"topic": "a/b"}, "letters, digits"),
        ({"topic": ".."}, "letters, digits"),
        ({"topic": "orders-outfall-ledger"}, "topic is a ledger"),
        ({"topic": "commits", "parts": 2, "ledger_topic": "commits"}, "topic is a ledger"),
        ({"parts": 0}, "greater than or equal to 1"),
        ({"key_column": "id"}, "key_column requires value_format; without it the column must have the name 'key'"),
        ({"value_format": "xml"}, "'json', 'csv', 'text', 'avro', 'json_schema' or 'protobuf'"),
        ({"value_format": "avro"}, "value_format=avro requires schema_registry"),
        ({"value_format": "json", "key_format": "avro", "schema_registry": REGISTRY}, "key_format requires key_column"),
        (
            {"value_format": "json", "schema_registry": REGISTRY},
            "schema_registry requires value_format avro, json_schema or protobuf",
        ),
        (
            {"value_format": "json", "value_schema": 3},
            "value_schema requires value_format avro, json_schema or protobuf",
        ),
        (AVRO | {"key_schema": 3}, "key_schema requires key_format avro, json_schema or protobuf"),
        (AVRO | {"value_schema": "newest"}, "latest, the number of a version, or an id such as id:17"),
        (AVRO | {"value_schema": "id:0"}, "latest, the number of a version, or an id such as id:17"),
        (AVRO | {"value_schema": 3, "register_schemas": True}, "register_schemas and value_schema exclude each other"),
        (AVRO | {"subject_strategy": "record"}, 'subject_strategy="record" requires value_record'),
        (AVRO | {"value_record": "a-b"}, "must be a name of Avro"),
        (AVRO | {"schema_registry": {"url": "https://x", "pasword": "hunter2"}}, "did you mean password"),
        ({"value_format": "json", "topic": None}, "topic or topic_column is required"),
        ({"value_format": "json", "topic_column": "to"}, "topic and topic_column exclude each other"),
        ({"value_format": "json", "topic": None, "topic_column": "a", "key_column": "a"}, "must be different columns"),
        ({"partitions": 3}, 'set create_topic="if_missing" too'),
        ({"create_topic": "if_missing", "topic": None}, "create_topic requires topic"),
        ({"transaction_timeout": 60}, "transaction_timeout requires parts"),
        ({"ledger_topic": "l"}, "ledger_topic requires parts"),
        ({"on_existing": "resume"}, "on_existing requires parts"),
        ({"parts": 2, "delivery_timeout": "11 minutes"}, "the brokers would abort the transaction first"),
        ({"parts": 2, "topic": "x" * 240}, "ledger_topic is required"),
        ({"transactional_id_prefix": "a b", "parts": 2}, "up to 100 ASCII letters"),
        ({"topics": "x"}, "did you mean topic"),
    ],
)
def test_what_does_not_go_together_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message) as caught:
        options(**given)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("acks", "rows could be lost"),
        ("enable.idempotence", "an idempotent producer"),
        ("max.in.flight.requests.per.connection", "an idempotent producer"),
        ("retries", "an idempotent producer"),
        ("transactional.id", "creates its transactional ids"),
        ("transaction.timeout.ms", "transaction_timeout sets it"),
        ("message.timeout.ms", "timeout sets it"),
        ("partitioner", "murmur2_random"),
        ("delivery.report.only.error", "its own reports and counters"),
        ("bootstrap.servers", "brokers sets it"),
        ("group.id", "not a librdkafka property, or the guarantees of the sink depend on it"),
    ],
)
def test_what_breaks_the_sink_is_refused_with_the_reason(name: str, reason: str) -> None:
    with pytest.raises(ConfigurationError, match=reason) as caught:
        options(client_options={name: "hunter2"})
    assert name in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_librdkafkas_own_names_are_taken() -> None:
    text = '{"linger.ms": 20, "batch.size": "500000", "compression.type": "zstd", "ssl.ca.location": "/ca.pem"}'
    parsed = parse_options(KafkaOptions, {"brokers": "a:1, b:2", "topic": "t", "clientOptions": text})
    assert parsed.brokers == "a:1,b:2"
    assert parsed.client.resolved() == {
        "batch.size": "500000", "compression.type": "zstd", "linger.ms": "20", "ssl.ca.location": "/ca.pem",
    }  # fmt: skip
    assert options(client_options={"enable.ssl.certificate.verification": False}).client.resolved() == {
        "enable.ssl.certificate.verification": "false"
    }


def test_no_secret_is_shown_and_references_are_resolved_late(monkeypatch: pytest.MonkeyPatch) -> None:
    made = options(client_options={"sasl.password": "hunter2", "ssl.key.password": "env:KEY_PASSWORD"})
    kept = pickle.loads(pickle.dumps(made))
    assert "hunter2" not in repr(made) + str(made) + repr(made.client)
    with pytest.raises(ConfigurationError, match="KEY_PASSWORD"):
        kept.client.resolved()
    monkeypatch.setenv("KEY_PASSWORD", "hunter3")
    assert kept.client.resolved() == {"sasl.password": "hunter2", "ssl.key.password": "hunter3"}


def test_the_defaults() -> None:
    made = options(parts=4)
    assert (made.delivery_timeout, made.transaction_timeout) == (timedelta(minutes=2), timedelta(minutes=10))
    assert (made.ledger, options(parts=4, topic=None).ledger) == ("events-outfall-ledger", "outfall-ledger")
