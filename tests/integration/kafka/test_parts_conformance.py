"""`KafkaSink` with parts is exactly once where its source is repeatable: the conformance suite does not refute it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from outfall.capabilities import Guarantee
from outfall.testing import SinkConformance, run_conformance
from tests.integration.kafka.test_stream_conformance import Topics

pytestmark = pytest.mark.usefixtures("no_client_left")


class Parts(Topics):
    claim = Guarantee.EXACTLY_ONCE
    repeatable_source = True
    options_of_sink = {"parts": 4, "replication_factor": 1}
    not_claimed = {
        "leftovers_are_cleaned_up": "nothing is staged",
        "restored_target": "all tests share the broker; the disks of the model broker are restored in tests/unit",
        "target_refuses": "all tests share the broker; the model broker is taken away in test_parts_faults",
        "parts_reordered": "an epoch that is partly committed must be routed as before, or it is refused; the sink"
        " itself lists its parts in one order only",
    }

    def lose_target(self, target: Any) -> None:
        admin = AdminClient({"bootstrap.servers": self.address})
        for answer in admin.delete_topics([target, f"{target}-outfall-ledger"]).values():
            answer.result(20)


SHORT = ["several_epochs", "replay_of_a_lost_epoch"]


@pytest.mark.thorough
def test_exactly_once(kafka: str, tmp_path: Path) -> None:
    parts = Parts()
    parts.address = kafka
    report = run_conformance(parts, tmp_path, checks=SHORT)
    assert report.passed, report


@pytest.mark.long
class TestParts(Parts, SinkConformance):
    @pytest.fixture(autouse=True)
    def _broker(self, kafka: str) -> None:
        self.address = kafka
