"""Topics that are missing, wrong, compacted or gone (scenario R3), on the tests' own model of a broker."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from outfall.errors import ConfigurationError, RecordError
from outfall.kafka import KafkaRecoveryConfig
from outfall.recovery import EntryExistsError
from tests.integration.support.kafka_broker import ModelBroker
from tests.integration.support.kafka_parts import PartsTopic, rows_of
from tests.integration.support.kafka_topics import ModelTopic
from tests.one_each import thorough

CREATE_TOPICS, DESCRIBE_CONFIGS = 19, 32
TOPIC_DENIED, CLUSTER_DENIED, NOT_CONTROLLER = 29, 31, 41
GOOD = {"cleanup.policy": "compact", "max.message.bytes": "1048588", "delete.retention.ms": "3600000"}


def config(model: ModelBroker, **options: object) -> KafkaRecoveryConfig:
    given = {"replication_factor": 1, "timeout": 10} | options
    return KafkaRecoveryConfig(model.address, "p", **given)  # type: ignore[arg-type]


def test_topics_are_made_on_the_first_append_as_the_log_needs_them(model: ModelBroker) -> None:
    log = config(model).open("sink")
    log.read()
    assert model.topics == {}
    log.append(b"x", after=0)
    assert set(model.topics) == {"p-progress", "p-state"}
    for topic in model.topics.values():
        assert len(topic.partitions) == 1
        assert topic.settings["cleanup.policy"] == "compact"
        assert topic.settings["min.insync.replicas"] == "1"
        assert int(topic.settings["delete.retention.ms"]) >= 20_000
    config(model, timeout=9).open("sink").append(b"y", after=1)
    assert model.asked.count(CREATE_TOPICS) == 2


def test_the_brokers_choose_the_number_of_replicas_unless_it_is_named(model: ModelBroker, tmp_path: Path) -> None:
    """Of the recovery log's topics, and of a ledger: one broker is enough to begin with."""
    wanted: dict[str, int] = {}

    def look(number: int, request: Any) -> bool:
        if number == CREATE_TOPICS:
            wanted.update({topic.name: topic.replication_factor for topic in request.topics})
        return False

    model.held = look
    config(model, replication_factor=None).open("sink").append(b"x", after=0)
    assert "min.insync.replicas" not in model.topics["p-progress"].settings
    topics = {name: PartsTopic(model.address, tmp_path / name) for name in ("brokers", "named")}
    topics["brokers"].query(replication_factor=None).epoch(0)
    topics["named"].query(replication_factor=1).epoch(0)
    assert wanted == {
        "p-progress": -1, "p-state": -1, topics["brokers"].name: 1, topics["brokers"].ledger: -1,
        topics["named"].name: 1, topics["named"].ledger: 1,
    }  # fmt: skip
    assert topics["brokers"].holds(rows_of(0))


def test_more_replicas_than_brokers_are_refused_with_the_number(model: ModelBroker) -> None:
    with pytest.raises(ConfigurationError, match=r"p-progress with 3 replicas .*INVALID_REPLICATION_FACTOR"):
        config(model, replication_factor=3).open("sink").append(b"x", after=0)
    assert model.topics == {}


@pytest.mark.parametrize("topic", ["p-progress", "p-state"])
@pytest.mark.parametrize(
    ("settings", "partitions", "why"),
    [
        ({}, 3, "It has 3 partitions"),
        ({"cleanup.policy": "delete"}, 1, "cleanup.policy is 'delete'"),
        ({"cleanup.policy": "compact,delete"}, 1, "cleanup.policy is 'compact,delete'"),
        ({"max.message.bytes": "100000"}, 1, "max.message.bytes is 100000, and records have up to 528384 bytes"),
        ({"delete.retention.ms": "1000"}, 1, "delete.retention.ms is 1000"),
    ],
)
def test_a_topic_that_will_not_do_is_refused_with_what_is_wrong(
    model: ModelBroker, topic: str, settings: dict[str, str], partitions: int, why: str
) -> None:
    for name in ("p-progress", "p-state"):
        model.topics[name] = ModelTopic(1, dict(GOOD))
    model.topics[topic] = ModelTopic(partitions, GOOD | settings)
    with pytest.raises(ConfigurationError, match=re.escape(why)) as refused:
        config(model).open("sink").append(b"x", after=0)
    assert topic in str(refused.value)
    assert not any(found.records for found in model.topics.values())


def test_a_reader_refuses_a_topic_of_several_partitions_too(model: ModelBroker) -> None:
    model.topics["p-progress"] = ModelTopic(2, dict(GOOD))
    with pytest.raises(ConfigurationError, match="It has 2 partitions"):
        config(model).open("sink").read()


@pytest.mark.parametrize(
    ("request_number", "error"), [(CREATE_TOPICS, CLUSTER_DENIED), (DESCRIBE_CONFIGS, TOPIC_DENIED)]
)
def test_missing_rights_are_named(model: ModelBroker, request_number: int, error: int) -> None:
    model.errors[request_number] = [error]
    with pytest.raises(ConfigurationError, match=r"AUTHORIZATION_FAILED.*permit this user"):
        config(model).open("sink").append(b"x", after=0)


@pytest.mark.thorough
def test_a_controller_that_moves_is_asked_again(model: ModelBroker) -> None:
    model.errors[CREATE_TOPICS] = [NOT_CONTROLLER]
    assert config(model).open("sink").append(b"x", after=0) == 1


@pytest.mark.thorough
def test_compaction_takes_nothing_that_counts(model: ModelBroker) -> None:
    there = config(model)
    log = there.open("sink")
    kept = log.write_state("p", b"kept", generation=1)
    for after in range(8):
        log.append(b"%d" % after, after=after)
        log.write_state("p", b"spent", generation=1)
        log.clean_up(keep=range(after, after + 2), states=[kept], generation=2)
        model.compact()
        assert there.open("sink").read() == log.read()
    assert there.open("sink").read_state(kept) == b"kept"
    assert len(model.topics["p-progress"].records) <= 5
    assert len(model.topics["p-state"].records) <= 2
    for after in range(8):
        with pytest.raises(EntryExistsError):
            there.open("sink").append(b"late", after=after - 1)


@pytest.mark.thorough
@pytest.mark.parametrize("deleted", [False, thorough(True)], ids=["emptied", "deleted"])
def test_a_topic_that_lost_its_records_is_noticed_once_and_then_begun_anew(
    model: ModelBroker, deleted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("outfall.kafka.topics._SURE", 0.5)
    there = config(model)
    log = there.open("sink")
    for after in range(3):
        log.append(b"x", after=after)
    if deleted:
        model.topics.clear()
    else:
        model.topics["p-progress"] = ModelTopic(1, dict(GOOD))
    with pytest.raises(RecordError, match=r"was replaced.*restore"):
        log.append(b"x", after=3)
    assert not any(topic.records for topic in model.topics.values())
    log.close()
    anew = there.open("sink")
    assert anew.read() == []
    assert anew.append(b"x", after=0) == 1


@pytest.mark.thorough
def test_a_topic_that_is_replaced_while_it_is_read_is_noticed(model: ModelBroker) -> None:
    log = config(model).open("sink")
    log.append(b"x", after=0)
    log.append(b"x", after=1)
    model.errors[1] = [1]
    with pytest.raises(RecordError, match="emptied or replaced while it was read"):
        config(model).open("sink").read()
