"""What brokers end by themselves: transactions that take too long, and ids that nobody has used for long."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from outfall.errors import ConfigurationError, TransientError
from tests.integration.support.kafka_parts import PartsTopic, at_step, halves, rows_of
from tests.integration.support.kafka_reader import ends, read
from tests.integration.support.waiting import until
from tests.peers.support.apache_kafka import NEWEST, OLDEST, own_cluster

pytestmark = pytest.mark.faults

SHORT: dict[str, Any] = {"transaction_timeout": timedelta(seconds=4), "delivery_timeout": timedelta(seconds=4)}


@pytest.fixture(scope="module", params=[NEWEST, pytest.param(OLDEST, marks=pytest.mark.long)])
def hasty(request: pytest.FixtureRequest) -> Iterator[str]:
    """A broker that looks for such transactions and ids all the time."""
    settings = {
        "transaction_abort_timed_out_transaction_cleanup_interval_ms": 200,
        "transaction_remove_expired_transaction_cleanup_interval_ms": 200,
        "transactional_id_expiration_ms": 3000,
        "producer_id_expiration_ms": 3000,
        "producer_id_expiration_check_interval_ms": 200,
        "transaction_max_timeout_ms": 60_000,
    }
    with own_cluster(request.param, **settings) as cluster:
        yield cluster.address


@pytest.fixture
def topic(hasty: str, tmp_path: Path) -> PartsTopic:
    return PartsTopic(hasty, tmp_path)


def aborted(topic: PartsTopic) -> None:
    """Wait until no transaction is open in the topic, after one was."""

    def stable() -> bool:
        return ends(topic.address, topic.name) == ends(topic.address, topic.name, isolation="read_committed")

    until(lambda: not stable(), "an open transaction", 30)
    until(stable, "the end of the transaction", 30)


def known_ids(topic: PartsTopic) -> dict[bytes, bool]:
    """Return whether the brokers know each id that they have known; not all versions can be asked for them."""
    found = read(topic.address, "__transaction_state", isolation="read_uncommitted")
    return {each.key: each.value is not None for each in found if each.key and topic.name.encode() in each.key}


@pytest.mark.parametrize("when", ["between two batches", "at the commit"])
def test_rows_of_a_transaction_that_took_too_long_are_written_by_the_next_attempt(topic: PartsTopic, when: str) -> None:
    query = topic.query(parts=1, **SHORT)
    with closing(query.coordinator()) as coordinator:
        ticket = coordinator.begin(0)
        (task,) = query.route([rows_of(0, 400)])
        between = "kafka: before commit" if when == "at the commit" else "never"
        rows = halves(task, lambda: aborted(topic)) if when == "between two batches" else iter(task)
        with (
            at_step(between, lambda: aborted(topic)),
            pytest.raises(TransientError, match="abort it after transaction_timeout, which is 4 s") as caught,
        ):
            query.run_task(ticket, 0, 0, rows)
        assert "raise transaction_timeout" in str(caught.value)
        coordinator.finish(ticket, [query.attempts(ticket, 0, 0, task)])
    query.epoch(1)
    assert topic.holds(rows_of(0, 400), rows_of(1))


def test_a_query_whose_ids_have_expired_goes_on(topic: PartsTopic) -> None:
    """Nobody has written for longer than `transactional.id.expiration.ms`, and the producers are kept."""
    query = topic.query(transaction_timeout=timedelta(seconds=60))
    query.epoch(0)
    query.epoch(1)
    assert set(known_ids(topic).values()) == {True}
    until(lambda: set(known_ids(topic).values()) == {False}, "the expiry of the ids", 60)
    result = query.epoch(2)
    assert result.counts["rows"] == 12
    query.epoch(3)
    assert topic.holds(*map(rows_of, range(4)))


def test_a_timeout_above_the_brokers_is_refused_before_the_first_row(topic: PartsTopic) -> None:
    with pytest.raises(ConfigurationError, match=r"lower transaction_timeout, or raise transaction\.max\.timeout\.ms"):
        topic.query(parts=1).epoch(0)
    assert read(topic.address, topic.name, isolation="read_uncommitted") == []
    topic.query("second", parts=1, transaction_timeout=timedelta(seconds=60)).epoch(0)
    assert topic.holds(rows_of(0))
