"""librdkafka's statistics of a producer: whether each of its requests was answered."""

from __future__ import annotations

from typing import Any

import pytest

from outfall.kafka.producer.transactions import all_answered

COORDINATOR = {"rx": 6, "req": {"ApiVersion": 1, "InitProducerId": 1, "AddPartitionsToTxn": 2, "EndTxn": 2}}
LEADER = {"rx": 9, "req": {"ApiVersion": 1, "Metadata": 3, "Produce": 5, "Fetch": 0}}


def statistics(**brokers: Any) -> dict[str, Any]:
    return {"brokers": {"TxnCoordinator": COORDINATOR, "127.0.0.1:9092/1": LEADER} | brokers}


def test_as_many_responses_as_requests_and_one_end_for_each_commit() -> None:
    assert all_answered(statistics(), 2)


@pytest.mark.parametrize(
    ("changed", "commits"),
    [
        (statistics(), 3),
        (statistics(), 1),
        (statistics(TxnCoordinator=COORDINATOR | {"rx": 5}), 2),
        (statistics(TxnCoordinator=COORDINATOR | {"rx": 7, "req": COORDINATOR["req"] | {"EndTxn": 3}}), 2),  # type: ignore[operator]
        (statistics(gone={"rx": 3, "req": {"ApiVersion": 1, "Produce": 3}}), 2),
        (statistics(other={}), 2),
        ({"brokers": {}}, 2),
        ({}, 2),
    ],
    ids=[
        "made before the last commit", "of more commits", "a response is missing", "an end was sent again",
        "another broker has not answered", "a broker without counts", "no brokers", "nothing",
    ],
)  # fmt: skip
def test_otherwise_a_request_may_still_be_on_its_way(changed: dict[str, Any], commits: int) -> None:
    assert not all_answered(changed, commits)
