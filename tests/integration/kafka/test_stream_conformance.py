"""`KafkaSink` without parts is at least once, as it says: the conformance suite does not refute it."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from outfall.kafka import KafkaSink
from outfall.testing import SinkConformance, SinkHarness, run_conformance
from tests.integration.support import kafka_refused
from tests.integration.support.kafka_broker import ModelBroker
from tests.integration.support.kafka_parts import make_topic
from tests.integration.support.kafka_reader import read
from tests.one_each import thorough

pytestmark = pytest.mark.usefixtures("no_client_left")

MUTE = "a topic does not tell which query its records are of"


class Topics(SinkHarness):
    """Rows as JSON, in a topic of two partitions for each trial."""

    address: str
    options_of_sink: Mapping[str, Any] = {}
    not_claimed = {"lost_log": MUTE, "rewound_log": MUTE}

    def new_target(self, directory: Path) -> Any:
        topic = f"c-{secrets.token_hex(8)}"
        make_topic(self.address, topic, 2)
        return topic

    def make_sink(self, target: Any) -> Any:
        return KafkaSink(self.address, target, value_format="json", delivery_timeout=20, **self.options_of_sink)

    def read(self, target: Any) -> Iterable[Any]:
        return [json.loads(record.value or b"") for record in read(self.address, target)]


class Compacted(Topics):
    """A topic that refuses a record without a key, and with it the batch that it is in."""

    options_of_sink: Mapping[str, Any] = {"key_column": "key"}

    def new_target(self, directory: Path) -> Any:
        topic = f"c-{secrets.token_hex(8)}"
        kafka_refused.make_topic(self.address, topic, "INVALID_RECORD")
        return topic

    def row(self, number: int) -> Any:
        return {"key": f"k{number}", "text": f"row {number}"}

    def refused_row(self, number: int) -> Any:
        return {"key": None, "text": "no key"}

    def null_key_row(self, version: int) -> Any:
        return {"key": None, "text": f"version {version}"}


def test_a_refused_row_takes_no_other_with_it(model: ModelBroker, tmp_path: Path) -> None:
    topics = Compacted()
    topics.address = model.address
    report = run_conformance(topics, tmp_path, checks=["refused_row"])
    assert [result.outcome for result in report.results] == ["passed"], str(report)


@pytest.mark.thorough
def test_keys_of_a_table_in_a_topic(model: ModelBroker, tmp_path: Path) -> None:
    topics = Compacted()
    topics.address = model.address
    report = run_conformance(topics, tmp_path, checks=["changed_layout", "null_in_a_key", "in_wrappers"])
    assert [result.outcome for result in report.results] == ["passed"] * 3, str(report)


SHORT = ["declared_guarantee", "one_epoch", "replay_of_a_lost_epoch"]
MORE = [
    "several_epochs", "empty_epochs_and_tasks", "counts_are_facts", "replay_of_a_completed_epoch",
    "no_state_on_the_sink", "changed_layout", "in_wrappers",
]  # fmt: skip
LONGER = [
    "values_unchanged", "close_publishes_nothing", "attempt_after_the_winner", "killed_before_close", "foreign_log",
    "second_query",
]  # fmt: skip


@pytest.mark.parametrize(
    "checks", [SHORT, thorough(MORE), pytest.param(LONGER, marks=pytest.mark.long)], ids=["short", "more", "longer"]
)
def test_at_least_once(kafka: str, tmp_path: Path, checks: list[str]) -> None:
    topics = Topics()
    topics.address = kafka
    report = run_conformance(topics, tmp_path, checks=checks)
    assert report.passed, report


@pytest.mark.long
class TestTopics(Topics, SinkConformance):
    @pytest.fixture(autouse=True)
    def _broker(self, kafka: str) -> None:
        self.address = kafka
