"""A ledger or a topic that is not what the recovery data stands on, and what may change between two epochs."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from outfall.errors import ConfigurationError, OutfallError, PartsChangedError, ReplayDiffersError, TargetLostError
from tests.integration.support.kafka_broker import METADATA, ModelBroker
from tests.integration.support.kafka_parts import PartsTopic, at_step, rows_of
from tests.integration.support.waiting import until


@pytest.fixture
def topic(model: ModelBroker, tmp_path: Path) -> PartsTopic:
    return PartsTopic(model.address, tmp_path)


def _delete(model: ModelBroker, name: str) -> None:
    del model.topics[name]


def _empty(model: ModelBroker, name: str) -> None:
    # As kafka-delete-records.sh with a retention that removes all: the offsets begin anew here.
    kept = model.topics[name].id
    model.make_anew(name)
    model.topics[name].id = kept


@pytest.mark.parametrize(
    ("which", "happens", "text"),
    [
        ("ledger", ModelBroker.make_anew, "was deleted, and possibly recreated"),
        *(
            pytest.param(*case, marks=pytest.mark.thorough)
            for case in [
                ("ledger", _delete, "was deleted"),
                ("ledger", _empty, "it ends before offset"),
                ("target", ModelBroker.make_anew, "was deleted, and possibly recreated"),
            ]
        ),
    ],
)
@pytest.mark.parametrize("restarted", [pytest.param(False, marks=pytest.mark.thorough), True])
def test_a_topic_that_is_not_what_was_written_is_refused(
    model: ModelBroker, topic: PartsTopic, which: str, happens: Any, text: str, restarted: bool
) -> None:
    query = topic.query()
    query.epoch(0)
    name = topic.ledger if which == "ledger" else topic.name
    happens(model, name)
    with pytest.raises(TargetLostError, match=text):
        (topic.query("second") if restarted else query).epoch(1)
    assert name not in model.topics or model.topics[name].records == []


@pytest.mark.parametrize("which", ["ledger", pytest.param("target", marks=pytest.mark.thorough)])
@pytest.mark.parametrize("restarted", [False, pytest.param(True, marks=pytest.mark.thorough)])
def test_a_broker_that_does_not_know_the_topics_yet_is_asked_again(
    model: ModelBroker, topic: PartsTopic, which: str, restarted: bool
) -> None:
    """As one that has just restarted, before the controller has told it the topics."""
    query = topic.query()
    query.epoch(0)
    name = topic.ledger if which == "ledger" else topic.name
    hidden = model.topics.pop(name)
    asked = model.asked.count(METADATA)

    def tell() -> None:
        until(lambda: model.asked.count(METADATA) > asked + 1, "the question")
        model.topics[name] = hidden

    told = threading.Thread(target=tell)
    told.start()
    (topic.query("second") if restarted else query).epoch(1)
    told.join()
    assert topic.holds(rows_of(0), rows_of(1))


@pytest.mark.thorough
@pytest.mark.parametrize("policy", ["delete", "compact,delete"])
def test_a_ledger_that_loses_records_is_refused_before_the_first_row(
    model: ModelBroker, topic: PartsTopic, policy: str
) -> None:
    other = PartsTopic(model.address, Path(topic._directory) / "other")
    other.query().epoch(0)
    model.topics[topic.ledger] = model.topics.pop(other.ledger)
    model.topics[topic.ledger].settings["cleanup.policy"] = policy
    with pytest.raises(ConfigurationError, match=f"cleanup.policy is '{policy}'"):
        topic.query().epoch(0)
    assert model.topics[topic.name].records == []


@pytest.mark.thorough
def test_queries_share_a_ledger_and_see_nothing_of_each_other(kafka: str, tmp_path: Path) -> None:
    """Two steps of one query, and the same step into another topic."""
    topic, elsewhere = PartsTopic(kafka, tmp_path), PartsTopic(kafka, tmp_path / "elsewhere")
    queries = [
        topic.query(ledger_topic=topic.ledger),
        topic.query("second", "second", ledger_topic=topic.ledger),
        elsewhere.query("third", ledger_topic=topic.ledger),
    ]
    queries[1].step_id = "another"
    for epoch in range(3):
        for number, query in enumerate(queries):
            query.epoch(epoch, rows_of(10 * number + epoch))
    assert topic.holds(*(rows_of(10 * number + epoch) for number in range(2) for epoch in range(3)))
    assert elsewhere.holds(*(rows_of(20 + epoch) for epoch in range(3)))


@pytest.mark.thorough
def test_a_replay_with_other_rows_is_refused(kafka: str, tmp_path: Path) -> None:
    topic = PartsTopic(kafka, tmp_path)
    query = topic.query()
    with at_step("before PREPARED", _die), pytest.raises(_DiedError):
        query.epoch(0)
    other = [(key, {"n": row["n"] + 1}) for key, row in rows_of(0)]
    with pytest.raises(ReplayDiffersError, match="replay the original rows"):
        topic.query("second").epoch(0, other)
    topic.query("third").epoch(0)
    assert topic.holds(rows_of(0))


class _DiedError(Exception):
    """The driver is no longer."""


def _die() -> None:
    raise _DiedError


@pytest.mark.thorough
def test_parts_may_be_added_and_never_taken_away(kafka: str, tmp_path: Path) -> None:
    topic = PartsTopic(kafka, tmp_path)
    topic.query(parts=4).epoch(0)
    query = topic.query("second", parts=8)
    query.epoch(1)
    query.epoch(2)
    with pytest.raises(OutfallError, match="parts"):
        topic.query("third", parts=2).epoch(3)
    topic.query("fourth", parts=8).epoch(3)
    assert topic.holds(*(rows_of(epoch) for epoch in range(4)))


@pytest.mark.thorough
def test_parts_are_not_changed_while_an_epoch_is_committed_in_part(kafka: str, tmp_path: Path) -> None:
    topic = PartsTopic(kafka, tmp_path)
    with at_step("kafka: after commit", _die), pytest.raises(_DiedError):
        topic.query(parts=2).epoch(0)
    with pytest.raises(PartsChangedError, match="is partly committed"):
        topic.query("second", parts=3).epoch(0)
    topic.query("third", parts=2).epoch(0)
    topic.query("fourth", parts=3).epoch(1)
    assert topic.holds(rows_of(0), rows_of(1))


@pytest.mark.thorough
def test_epochs_without_rows_are_completed_and_write_none(kafka: str, tmp_path: Path) -> None:
    topic = PartsTopic(kafka, tmp_path)
    for epoch, process in enumerate(["first", "first", "second"]):
        topic.query(process).epoch(epoch, [])
    query = topic.query("second")
    query.epoch(3)
    query.epoch(4, [])
    query.epoch(5)
    assert topic.holds(rows_of(3), rows_of(5))
