"""`KinesisSink` and `FirehoseSink` are at least once, as they say: the conformance suite does not refute it."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from outfall.kinesis import FirehoseSink, KinesisSink
from outfall.testing import SinkConformance, SinkHarness, run_conformance
from tests.integration.kinesis.server import Aws
from tests.one_each import thorough

SETTINGS: dict[str, Any] = {"region": "us-east-1", "retry_backoff": 0.005, "max_retry_backoff": 0.02, "max_retries": 3}


class Streams(SinkHarness):
    aws: Aws
    not_claimed = {
        "lost_log": "a stream does not tell which query its records are of",
        "memory_over_epochs": "the emulator runs in this process, and keeps every record",
    }

    def new_target(self, directory: Path) -> Any:
        return self.aws.new_stream(f"c-{secrets.token_hex(6)}", shards=1)

    def make_sink(self, target: Any) -> Any:
        return KinesisSink(target, endpoint_url=self.aws.endpoint, **SETTINGS)

    def read(self, target: Any) -> Iterable[Any]:
        return [json.loads(record["Data"]) for record in self.aws.records(target)]


class DeliveryStreams(Streams):
    def new_target(self, directory: Path) -> Any:
        return self.aws.new_delivery_stream(f"c-{secrets.token_hex(6)}")

    def make_sink(self, target: Any) -> Any:
        return FirehoseSink(target, endpoint_url=self.aws.endpoint, **SETTINGS)

    def read(self, target: Any) -> Iterable[Any]:
        return [json.loads(line) for line in self.aws.lines(target)]


SHORT = ["declared_guarantee", "one_epoch", "replay_of_a_lost_epoch"]
MORE = ["values_unchanged", "no_state_on_the_sink", "counts_are_facts", "replay_of_a_completed_epoch", "in_wrappers"]


@pytest.mark.parametrize(
    ("harness", "checks"), [(Streams, SHORT), thorough(Streams, MORE), thorough(DeliveryStreams, SHORT)]
)
def test_at_least_once_in_short(harness: type[Streams], checks: list[str], aws: Aws, tmp_path: Path) -> None:
    streams = harness()
    streams.aws = aws
    report = run_conformance(streams, tmp_path, checks=checks)
    assert report.passed, report


@pytest.mark.long
class TestStreams(Streams, SinkConformance):
    @pytest.fixture(autouse=True)
    def services(self, aws: Aws) -> None:
        self.aws = aws


@pytest.mark.long
class TestDeliveryStreams(DeliveryStreams, SinkConformance):
    @pytest.fixture(autouse=True)
    def services(self, aws: Aws) -> None:
        self.aws = aws
