"""Drivers that are killed, stopped and resumed, while writes are throttled and answers are lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from outfall.dynamodb import DynamoDBSink
from tests.integration.dynamodb.server import Dynamo, dynamo_process
from tests.integration.support.keyed_lives import KeyedLives

FAST: dict[str, Any] = {"retry_backoff": 0.002, "max_retry_backoff": 0.02, "retry_budget": 1.0, "max_batch_size": 10,
                        "max_in_flight_requests": 4}  # fmt: skip


def lives_of(dynamo: Dynamo, name: str, root: Path, **settings: Any) -> KeyedLives:
    dynamo.new_table(name)

    def make_sink() -> DynamoDBSink:
        return DynamoDBSink(
            name, endpoint_url=dynamo.endpoint, region="us-east-1", order_column="n", delete_marker="gone", **FAST
        )

    return KeyedLives(make_sink, root, **settings)


def found(dynamo: Dynamo, name: str) -> dict[int, dict[str, Any]]:
    return {int(row["id"]): row for row in dynamo.rows(name)}


@pytest.mark.thorough
@pytest.mark.usefixtures("dynamo")  # the credentials
def test_a_stopped_driver_that_continues_after_a_later_epoch_overwrites_nothing(name: str, tmp_path: Path) -> None:
    with (
        dynamo_process(tmp_path, throttled=0.1, lost=0.1) as dynamo,
        lives_of(dynamo, name, tmp_path, epochs=4, rows=8, keys=6, longest_life=0.5) as lives,
    ):
        lives.disturb(kills=2, zombies=3)
        lives.finish()
        assert found(dynamo, name) == lives.ideal()


@pytest.mark.long
@pytest.mark.usefixtures("dynamo")
def test_forty_kills_and_twenty_zombies_with_lost_responses_and_partial_failures(name: str, tmp_path: Path) -> None:
    with (
        dynamo_process(tmp_path, throttled=0.2, lost=0.2) as dynamo,
        lives_of(dynamo, name, tmp_path, epochs=20, rows=15, keys=12, longest_life=0.4) as lives,
    ):
        lives.disturb(kills=48, zombies=22)
        lives.finish()
        assert found(dynamo, name) == lives.ideal()
        print(f"{lives.kills} kills, {lives.refused} refused of 22 stopped drivers, {lives.epochs} epochs")
        assert lives.kills >= 40
