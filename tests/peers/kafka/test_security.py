"""TLS and passwords: all of the sink's clients bring them, and what is wrong is said before the first row."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from outfall.errors import ConfigurationError
from outfall.file import FileSink
from outfall.kafka import KafkaRecoveryConfig, KafkaSink
from outfall.testing import LocalDriver
from tests.integration.support.certificates import self_signed
from tests.integration.support.kafka_parts import PartsTopic, rows_of
from tests.peers.support.apache_kafka import NEWEST, PASSWORD, ApacheKafka, own_cluster

WRONG: dict[str, tuple[dict[str, str], str]] = {
    "password": ({"sasl.password": "another"}, "_AUTHENTICATION"),
    "user": ({"sasl.username": "another"}, "_AUTHENTICATION"),
    "mechanism": ({"sasl.mechanism": "PLAIN"}, "_AUTHENTICATION|UNSUPPORTED_SASL_MECHANISM"),
    "authority": ({"ssl.ca.location": "other.pem"}, "_SSL"),
}

SLICE = {("parts", "password"), ("rows", "authority"), ("recovery", "mechanism")}


@pytest.fixture(scope="module")
def secure() -> Iterator[ApacheKafka]:
    with own_cluster(NEWEST, secure=True) as cluster:
        yield cluster


@pytest.fixture
def topic(secure: ApacheKafka, tmp_path: Path) -> PartsTopic:
    return PartsTopic(secure.address, tmp_path, security=secure.security)


def test_rows_arrive_once(topic: PartsTopic) -> None:
    query = topic.query(client_options=topic.security)
    query.epoch(0)
    topic.query(client_options=topic.security | {"client.id": "second"}).epoch(1)
    assert topic.holds(rows_of(0), rows_of(1))


@pytest.mark.parametrize(
    ("of", "wrong"),
    [
        pytest.param(*case, marks=() if case in SLICE else pytest.mark.long)
        for case in product(("parts", "rows", "recovery"), WRONG)
    ],
)
def test_access_that_is_denied_is_an_error_before_the_first_row(
    topic: PartsTopic, of: str, wrong: str, tmp_path: Path
) -> None:
    (tmp_path / "other.pem").write_bytes(self_signed("127.0.0.1"))
    given, code = WRONG[wrong]
    options = topic.security | given
    if "ssl.ca.location" in given:
        options["ssl.ca.location"] = str(tmp_path / "other.pem")
    with pytest.raises(ConfigurationError, match=code) as caught:
        write_one_row(topic, of, options, tmp_path)
    said = str(caught.value)
    assert "set the protocol, mechanism, user and certificate that the brokers require in client_options" in said
    assert PASSWORD not in said
    assert topic.found().total() == 0


def write_one_row(topic: PartsTopic, of: str, options: dict[str, str], tmp_path: Path) -> None:
    if of == "parts":
        topic.query(client_options=options).epoch(0)
        return
    recovery: Any = str(tmp_path / "recovery")
    sink: Any = FileSink(tmp_path / "out")
    if of == "rows":
        sink = KafkaSink(topic.address, topic.name, delivery_timeout=10, client_options=options)
    else:
        recovery = KafkaRecoveryConfig(topic.address, topic.name, timeout=10, client_options=options)
    LocalDriver(sink, recovery).run_epoch(0, [[{"value": "a row"}]])


def test_a_recovery_store_over_tls(secure: ApacheKafka, topic: PartsTopic, tmp_path: Path) -> None:
    recovery = KafkaRecoveryConfig(secure.address, topic.name, timeout=20, client_options=secure.security)
    for epoch in range(3):
        LocalDriver(FileSink(tmp_path / "out"), recovery).run_epoch(epoch, [[{"n": epoch}]])
    assert len(list((tmp_path / "out").glob("part-*"))) == 3
