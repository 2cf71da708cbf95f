"""The brokers say whether a topic with changes is the one that it was: its id, and its number of partitions."""

from __future__ import annotations

import logging
import re

import pytest

from outfall.errors import ConfigurationError, TargetError
from outfall.kafka import TopicGeneration
from tests.integration.support.kafka_broker import ModelBroker
from tests.integration.support.kafka_topics import ModelTopic


def pinned(model: ModelBroker, caplog: pytest.LogCaptureFixture) -> TopicGeneration:
    """Return what the warning of a first start says to pass."""
    with caplog.at_level(logging.WARNING, "outfall.kafka.topic_generation"):
        assert TopicGeneration(model.address, "t").open() == 2
    (text,) = [record.getMessage() for record in caplog.records if record.name.endswith("topic_generation")]
    found = re.search(r"Pass topic_id='(.+)', partitions=2 to TopicGeneration", text)
    assert found is not None, text
    return TopicGeneration(model.address, "t", topic_id=found[1], partitions=2)


def test_a_topic_that_was_created_again_or_has_more_partitions_is_refused_with_the_values_to_set(
    model: ModelBroker, caplog: pytest.LogCaptureFixture
) -> None:
    model.topics["t"] = ModelTopic(2)
    order = pinned(model, caplog)
    caplog.clear()
    assert (order.open(), caplog.records) == (2, [])
    model.topics["t"].grow(3)
    with pytest.raises(TargetError, match=r"has 3 partitions, and not 2.*set partitions to 3 and add 1 to generation"):
        order.open()
    model.topics["t"] = ModelTopic(2)
    with pytest.raises(TargetError, match=r"was created again.*set topic_id to '\S+' and add 1 to generation"):
        order.open()


def test_a_topic_that_is_not_there_is_named(model: ModelBroker) -> None:
    with pytest.raises(TargetError, match="have no topic missing"):
        TopicGeneration(model.address, "missing").open()
    with pytest.raises(ConfigurationError, match="timeout"):
        TopicGeneration(model.address, "t", timeout="soon")
