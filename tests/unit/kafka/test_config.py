"""Where a log in Kafka is: brokers, topics and the client's options, which hold secrets."""

from __future__ import annotations

import importlib
import pickle
import subprocess
import sys
from typing import Any

import pytest

import outfall.kafka
from outfall.errors import ConfigurationError
from outfall.kafka import KafkaRecoveryConfig
from outfall.recovery import recovery_config

SECRET = "hunter2"


@pytest.mark.thorough
def test_recovery_is_imported_without_the_client() -> None:
    code = "import sys, outfall.kafka, outfall.recovery; sys.exit('confluent_kafka' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_missing_client_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    with pytest.raises(ImportError, match=r"pip install 'outfall\[kafka\]'"):
        importlib.reload(outfall.kafka)


@pytest.mark.parametrize("brokers", ["a:1,b:2", ["a:1", "b:2"], " a:1 , b:2 ", ("a:1", "b:2")])
def test_brokers_may_be_text_or_a_list(brokers: Any) -> None:
    config = KafkaRecoveryConfig(brokers, "prefix")
    assert config.brokers == "a:1,b:2"
    assert config.topics() == ("prefix-progress", "prefix-state")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"brokers": ""}, "not host:port"),
        ({"brokers": f"user:{SECRET}@host:9092"}, "not host:port"),
        ({"brokers": "host:port"}, "not host:port"),
        ({"topic_prefix": ""}, "not a valid prefix"),
        ({"topic_prefix": "a/b"}, "not a valid prefix"),
        ({"topic_prefix": "x" * 201}, "not a valid prefix"),
        ({"replication_factor": 0}, "replication factor is 0"),
        ({"replication_factor": True}, "replication factor is True"),
        ({"timeout": "soon"}, "timeout is invalid"),
        ({"timeout": "11 minutes"}, "at most 10 minutes"),
        ({"client_options": "acks=1"}, "not a mapping"),
        ({"client_options": {"acks": "1"}}, "'acks' is not allowed"),
        ({"client_options": {"enable.idempotence": False}}, "'enable.idempotence' is not allowed"),
        ({"client_options": {"transactional.id": "x"}}, "'transactional.id' is not allowed"),
        ({"client_options": {"auto.offset.reset": "latest"}}, "'auto.offset.reset' is not allowed"),
        ({"client_options": {"sasl_password": SECRET}}, "did you mean 'sasl.password'"),
        ({"client_options": {"sasl.password": ""}}, "has no value"),
        ({"client_options": {"sasl.password": "***"}}, "has no value"),
    ],
)
def test_what_will_not_do_is_refused_without_its_secret(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message) as refused:
        KafkaRecoveryConfig(**{"brokers": "host:9092", "topic_prefix": "prefix"} | given)
    assert SECRET not in str(refused.value)


SECRETS = [
    "sasl.password", "ssl.key.password", "ssl.key.pem", "ssl.keystore.password", "sasl.oauthbearer.client.secret",
    "sasl.oauthbearer.config",
]  # fmt: skip


@pytest.mark.parametrize("name", SECRETS)
def test_a_secret_is_in_no_text_and_no_url(name: str) -> None:
    config = KafkaRecoveryConfig("host:9092", "prefix", {name: SECRET, "sasl.username": "me"})
    for text in (
        repr(config),
        str(config),
        config.url(),
        repr(config.client_options),
        str(dict(config.client_options)),
    ):
        assert SECRET not in text
    assert config.options().resolved()[name] == SECRET
    assert config.options().masked(f"no {SECRET} here") == "no *** here"
    assert "me" in repr(config)


def test_a_secret_by_reference_is_resolved_where_it_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    config = KafkaRecoveryConfig("host:9092", "prefix", {"sasl.password": "env:OUTFALL_TEST_SECRET"})
    copy = pickle.loads(pickle.dumps(config))
    with pytest.raises(ConfigurationError, match="OUTFALL_TEST_SECRET"):
        copy.options().resolved()
    monkeypatch.setenv("OUTFALL_TEST_SECRET", SECRET)
    assert SECRET not in repr(pickle.dumps(config))
    assert copy.options().resolved()["sasl.password"] == SECRET


@pytest.mark.parametrize(
    "config",
    [
        KafkaRecoveryConfig("host:9092", "prefix"),
        KafkaRecoveryConfig("a:1,b:2", "p.q-r_s", replication_factor=1, timeout="5 s"),
        KafkaRecoveryConfig("[::1]:9092", "p", {"ssl.ca.location": "/etc/ca.pem", "security.protocol": "SASL_SSL"}),
        KafkaRecoveryConfig("a:1", "p", {"sasl.password": "env:NAME", "sasl.username": "a&b=c"}),
    ],
    ids=str,
)
def test_a_url_gives_an_equal_configuration(config: KafkaRecoveryConfig) -> None:
    assert recovery_config(config.url()) == config


def test_a_user_name_in_a_url_may_contain_an_at_sign() -> None:
    found = recovery_config("kafka://host:9092/p?sasl.username=me@corp&sasl.password=env:NAME")
    assert isinstance(found, KafkaRecoveryConfig)
    assert found.client_options["sasl.username"] == "me@corp"


@pytest.mark.parametrize(
    "url",
    [
        "kafka://host:9092", "kafka:///prefix", "kafka://host:9092/a/b", f"kafka://me:{SECRET}@host:9092/prefix",
        f"kafka://host:9092/prefix?sasl.password={SECRET}", "kafka://host:9092/prefix?acks=1", "kafka://host:x/prefix",
        f"kafka://host:9092/prefix#{SECRET}", "kafka://host:9092/prefix?replication_factor=none",
    ],
)  # fmt: skip
def test_a_url_that_will_not_do_is_refused_without_its_secret(url: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        recovery_config(url)
    assert SECRET not in str(refused.value)


def test_a_step_that_cannot_be_a_name_is_refused_before_a_broker_is_asked() -> None:
    with pytest.raises(ConfigurationError, match="is not a valid step id"):
        KafkaRecoveryConfig("host:9092", "prefix").open("a/b")


def test_properties_that_the_client_does_not_take_are_refused_without_their_secret() -> None:
    options = {"security.protocol": "TELEPATHY", "ssl.key.pem": SECRET}
    with pytest.raises(ConfigurationError, match=r"Kafka client for host:9092.*security.protocol") as refused:
        KafkaRecoveryConfig("host:9092", "prefix", options).open("sink").read()
    assert SECRET not in str(refused.value)
