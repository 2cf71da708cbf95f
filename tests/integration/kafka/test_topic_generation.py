"""The brokers say whether topics with changes are those that they were: their ids, and numbers of partitions."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable
from typing import Any

import pytest

from outfall.delivery_order import TopicLife
from outfall.errors import ConfigurationError, TargetError
from outfall.kafka import TopicGeneration, TopicGenerations
from tests.integration.support.kafka_broker import ModelBroker
from tests.integration.support.kafka_topics import ModelTopic


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """Returns what was logged since the last call."""
    caplog.set_level(logging.WARNING, "outfall.kafka.topic_generation")

    def since() -> list[str]:
        texts = [record.getMessage() for record in caplog.records if record.name.endswith("topic_generation")]
        caplog.clear()
        return texts

    return since


def test_a_topic_that_was_created_again_or_has_more_partitions_is_refused_with_the_values_to_set(
    model: ModelBroker, told: Callable[[], list[str]]
) -> None:
    model.topics["t"] = ModelTopic(2)
    assert TopicGeneration(model.address, "t").open() == [TopicLife("t", 1, 2)]
    (text,) = told()
    found = re.search(r"Pass generation=1, topic_id='(.+)', partitions=2 to TopicGeneration,", text)
    assert found is not None, text
    order = TopicGeneration(model.address, "t", topic_id=found[1], partitions=2)
    assert (order.open(), told()) == ([TopicLife("t", 1, 2)], [])
    model.topics["t"].grow(3)
    with pytest.raises(TargetError, match=r"has 3 partitions, and not 2.*set generation=2, topic_id=.*partitions=3 in"):
        order.open()
    model.topics["t"] = ModelTopic(2)
    with pytest.raises(TargetError, match=r"was created again.*set generation=2, topic_id='\S+', partitions=2 in"):
        order.open()


@pytest.mark.thorough  # each start with a topic that is not there waits for it
def test_a_first_start_logs_all_topics_as_json_and_a_later_one_names_only_those_that_differ(
    model: ModelBroker, told: Callable[[], list[str]]
) -> None:
    names = [f"shop.public.t{number}" for number in range(50)]
    model.topics.update({name: ModelTopic(2) for name in names[1:]})
    # The first one is that of a table without rows.
    assert TopicGenerations(model.address, names).open()[:2] == [TopicLife(names[0]), TopicLife(names[1], 1, 2)]
    first, absent = told()
    assert absent.startswith(f"{names[0]}: not there yet")
    known = json.loads(first[first.index("{") : first.rindex("}") + 1])
    assert (list(known), known[names[0]]) == (names, {"generation": 1})
    order = TopicGenerations(model.address, known)
    order.open()
    assert [text[: len(names[0])] for text in told()] == [names[0]]
    model.topics[names[7]] = ModelTopic(2)
    model.topics[names[8]] = ModelTopic(2)
    with pytest.raises(TargetError, match="was created again") as refused:
        order.open()
    assert f"also {names[8]}. " in str(refused.value)
    text = str(refused.value)
    new = json.loads(text[text.index("{") : text.rindex("}") + 1])
    assert (list(new), new[names[7]]["generation"]) == (names[7:9], 2)
    assert [life.generation for life in TopicGenerations(model.address, known | new).open()[6:10]] == [1, 2, 2, 1]
    model.topics[names[9]].grow(3)
    with pytest.raises(TargetError, match=rf'set {{"{names[9]}": {{"generation": 2, .*"partitions": 3}}}} in'):
        TopicGenerations(model.address, known | new).open()
    del model.topics[names[9]]
    with pytest.raises(TargetError, match=f"have no topic {names[9]}"):
        TopicGenerations(model.address, known | new).open()


def test_a_topic_that_is_not_there_is_named(model: ModelBroker) -> None:
    with pytest.raises(TargetError, match="have no topic missing"):
        TopicGeneration(model.address, "missing").open()
    with pytest.raises(TargetError, match="have no topic missing, other"):
        TopicGenerations(model.address, ["missing", "other"]).open()


WRONG: list[tuple[Any, str]] = [
    ("t", "topics is 't'"),
    ([], r"topics is \[\]"),
    ({"t": {"id": "x"}}, "topics has {'id': 'x'} for t"),
    ({"t": {"partitions": "4"}}, "topics has {'partitions': '4'} for t"),
    ({"t": {"generation": 0}}, "generation 0 of the topic t"),
    ({"t": 2}, "topics has 2 for t"),
]


@pytest.mark.parametrize(("topics", "why"), WRONG, ids=[why for _, why in WRONG])
def test_topics_in_a_wrong_form_are_refused(topics: Any, why: str) -> None:
    with pytest.raises(ConfigurationError, match=why):
        TopicGenerations("kafka:9092", topics)


def test_a_timeout_that_is_no_duration_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="timeout"):
        TopicGeneration("kafka:9092", "t", timeout="soon")
