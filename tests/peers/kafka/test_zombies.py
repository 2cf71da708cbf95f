"""A request of an attempt stands between client and broker while a successor goes on, and then passes.

The client has not lost its connection: its thread, or its network, has stood still at this request. So it is a zombie
within each step of a transaction, the commit among them, which no point in the code can show.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from outfall.errors import FencedError, OutfallError, TransientError
from outfall.protocol.messages import TaskResponse
from tests.integration.support.kafka_broker import ADD_PARTITIONS_TO_TXN, END_TXN, INIT_PRODUCER_ID, PRODUCE
from tests.integration.support.kafka_held import HoldingProxy
from tests.integration.support.kafka_parts import PartsTopic, rows_of

pytestmark = pytest.mark.faults

KINDS = {"init": INIT_PRODUCER_ID, "partitions": ADD_PARTITIONS_TO_TXN, "records": PRODUCE, "commit": END_TXN}
SLICE = {("newest", "commit", "driver"), ("newest", "commit", "attempt"), ("oldest", "commit", "driver")}


@pytest.fixture
def proxy(request: pytest.FixtureRequest) -> Iterator[HoldingProxy]:
    """Stands before the broker that the test's parameter names."""
    with HoldingProxy(request.getfixturevalue(request.param)) as made:
        yield made


def cases() -> list[Any]:
    every = product(("newest", "oldest"), KINDS, ("attempt", "driver"))
    return [pytest.param(*case, marks=() if case in SLICE else pytest.mark.long) for case in every]


@pytest.mark.parametrize(("proxy", "kind", "successor"), cases(), indirect=["proxy"])
def test_a_request_that_passes_when_a_successor_has_committed(
    proxy: HoldingProxy, kind: str, successor: str, tmp_path: Path
) -> None:
    topic = PartsTopic(proxy.address, tmp_path)
    query, other = topic.query(parts=1), topic.query("second", parts=1)
    went_on: list[Any] = []
    answers: list[TaskResponse] = []
    with closing(query.coordinator()) as coordinator:
        ticket = coordinator.begin(0)
        executor = query.executor("second")

        def go_on() -> None:
            went_on.append(True)
            if successor == "driver":
                other.epoch(0)
            else:
                answers.extend(executor.answers(ticket, 0))

        proxy.before(KINDS[kind], f"/{topic.name}/0", deed=go_on)
        outcomes = query.late(ticket, 0, rows_of(0))
        assert went_on
        if successor == "attempt":
            coordinator.finish(ticket, answers)
    (outcome,) = outcomes
    if successor == "driver":
        assert isinstance(outcome, FencedError), outcome
    else:
        # Who only now registers finds all rows there, and says the same as the winner.
        assert isinstance(outcome, TaskResponse) == (kind == "init"), outcome
        assert isinstance(outcome, TaskResponse | TransientError), outcome
    winner = other if successor == "driver" else query.executor("second")
    for epoch in (1, 2):
        with closing(winner.coordinator()) as coordinator:
            ticket = coordinator.begin(epoch)
            coordinator.finish(ticket, winner.answers(ticket, epoch))
    assert topic.holds(*map(rows_of, range(3)))


@pytest.mark.parametrize(
    ("proxy", "kind"),
    [pytest.param(*case, marks=pytest.mark.long) for case in product(("newest", "oldest"), KINDS)],
    indirect=["proxy"],
)
def test_a_request_of_a_driver_that_passes_when_another_has_completed_the_epoch(
    proxy: HoldingProxy, kind: str, tmp_path: Path
) -> None:
    topic = PartsTopic(proxy.address, tmp_path)
    query, other = topic.query(parts=1), topic.query("second", parts=1)
    went_on: list[Any] = []
    name = topic.ledger if kind == "records" else f"/{topic.name}/driver"
    proxy.before(KINDS[kind], name, deed=lambda: went_on.append(other.epoch(0)))
    with pytest.raises(OutfallError) as caught:
        query.epoch(0)
    assert isinstance(caught.value, FencedError), caught.value
    assert went_on
    other.epoch(1)
    assert topic.holds(rows_of(0), rows_of(1))
