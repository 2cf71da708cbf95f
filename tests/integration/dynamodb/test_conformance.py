"""`DynamoDBSink` is effectively once, as it says: the conformance suite does not refute it."""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from outfall.dynamodb import DynamoDBSink
from outfall.testing import SinkConformance, SinkHarness, run_conformance
from tests.integration.dynamodb.server import Dynamo
from tests.one_each import thorough


class Items(SinkHarness):
    dynamo: Dynamo
    not_claimed = {
        "lost_log": "a new checkpoint writes over what is there, with higher versions",
        "equal_rows": "one row is kept per key",
        "restored_target": "a copy that was taken within the last completed epoch is not told apart",
        "memory_over_epochs": "the emulator runs in this process, and keeps every item",
        "close_publishes_nothing": "a row is on its way as soon as it is written",
    }

    def new_target(self, directory: Path) -> Any:
        return self.dynamo.new_table(f"c-{secrets.token_hex(6)}")

    def make_sink(self, target: Any) -> Any:
        return DynamoDBSink(
            target, endpoint_url=self.dynamo.endpoint, region="us-east-1", retry_backoff=0.005, max_retries=3
        )

    def read(self, target: Any) -> Iterable[Any]:
        return [row | {"id": int(row["id"])} for row in self.dynamo.rows(target)]

    def replacing_row(self, number: int, version: int) -> Any:
        return {"id": number, "text": f"version {version}"}

    def null_key_row(self, version: int) -> Any:
        return {"id": None, "text": f"version {version}"}

    def lose_target(self, target: Any) -> None:
        for table in (target, f"{target}-outfall"):
            self.dynamo.client.delete_table(TableName=table)
        self.dynamo.new_table(target)


SHORT = ["one_epoch", "replay_of_a_lost_epoch"]
MORE = [
    "declared_guarantee", "counts_are_facts", "replay_of_a_completed_epoch", "two_attempts_finish", "lost_target",
    "changed_layout", "null_in_a_key", "in_wrappers",
]  # fmt: skip


@pytest.mark.parametrize("checks", [SHORT, thorough(MORE)], ids=["short", "more"])
def test_effectively_once_in_short(dynamo: Dynamo, tmp_path: Path, checks: list[str]) -> None:
    harness = Items()
    harness.dynamo = dynamo
    report = run_conformance(harness, tmp_path, checks=checks)
    assert report.passed, report


@pytest.mark.long
class TestItems(Items, SinkConformance):
    @pytest.fixture(autouse=True)
    def services(self, dynamo: Dynamo) -> None:
        self.dynamo = dynamo
