"""Brokers that go away, fail, keep silent or lose an answer: librdkafka's mock cluster, and the tests' own model."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from outfall.errors import ConfigurationError, OutfallError, TransientError
from outfall.file import FileSink
from outfall.kafka import KafkaRecoveryConfig
from outfall.recovery import EntryExistsError, LogEntry
from outfall.testing.local_engine import LocalDriver
from tests.integration.support.kafka_broker import ModelBroker
from tests.integration.support.kafka_mock import FETCH, LIST_OFFSETS, METADATA, PRODUCE, MockCluster

NOT_LEADER, TOO_LARGE, NOT_ENOUGH_REPLICAS, DENIED, STORAGE = 6, 10, 19, 29, 56
NOT_ENOUGH_AFTER_APPEND, LEADER_NOT_AVAILABLE, TIMED_OUT = 20, 5, 7


def on(cluster: MockCluster | ModelBroker, **options: Any) -> KafkaRecoveryConfig:
    given: dict[str, Any] = {
        "replication_factor": 1,
        "timeout": 15,
        "client_options": {"reconnect.backoff.max.ms": 100},
    } | options
    return KafkaRecoveryConfig(cluster.address, "p", **given)


@pytest.mark.thorough
def test_a_log_goes_on_when_its_broker_goes_away_and_another_leads(cluster: MockCluster) -> None:
    log = on(cluster).open("sink")
    assert log.append(b"1", after=0) == 1
    cluster.take_down(1)
    cluster.lead("p-progress", 2)
    assert log.append(b"2", after=1) == 2
    cluster.bring_up(1)
    cluster.take_down(2)
    cluster.lead("p-progress", 3)
    assert on(cluster).open("sink").read() == [LogEntry(1, b"1"), LogEntry(2, b"2")]
    assert log.append(b"3", after=2) == 3


def hurry(log: Any, seconds: float) -> None:
    """Have a log whose connections are there wait for its brokers no longer than this."""
    log._tail._timeout = seconds
    log._tail.partition._clients.timeout = seconds


def test_no_broker_at_all_is_an_error_within_the_deadline(cluster: MockCluster) -> None:
    log = on(cluster).open("sink")
    log.append(b"1", after=0)
    hurry(log, 0.3)
    for broker in (1, 2, 3):
        cluster.take_down(broker)
    started = time.monotonic()
    with pytest.raises(TransientError, match="brokers are up and reachable"):
        log.append(b"2", after=1)
    with pytest.raises(TransientError, match="brokers are up and reachable"):
        on(cluster, timeout=0.3).open("sink").read()
    assert time.monotonic() - started < 14


@pytest.mark.parametrize(
    ("request_number", "errors"),
    [
        (PRODUCE, [NOT_ENOUGH_REPLICAS, NOT_ENOUGH_AFTER_APPEND, TIMED_OUT]),
        *(
            pytest.param(request, errors, marks=pytest.mark.thorough)
            for request, errors in [
                (PRODUCE, [NOT_LEADER, NOT_LEADER]),
                (PRODUCE, [STORAGE]),
                (FETCH, [NOT_LEADER, STORAGE]),
                (LIST_OFFSETS, [NOT_LEADER, LEADER_NOT_AVAILABLE]),
                (METADATA, [LEADER_NOT_AVAILABLE]),
            ]
        ),
    ],
)
def test_errors_that_pass_are_waited_out(cluster: MockCluster, request_number: int, errors: list[int]) -> None:
    log = on(cluster).open("sink")
    log.append(b"1", after=0)
    cluster.answer(request_number, errors)
    assert log.append(b"2", after=1) == 2
    cluster.answer(request_number, errors)
    assert on(cluster).open("sink").read() == [LogEntry(1, b"1"), LogEntry(2, b"2")]


@pytest.mark.parametrize("error", [DENIED, pytest.param(TOO_LARGE, marks=pytest.mark.thorough)])
def test_a_record_that_the_broker_refuses_is_an_error_that_says_so(model: ModelBroker, error: int) -> None:
    log = on(model).open("sink")
    log.append(b"1", after=0)
    model.errors[PRODUCE] = [error]
    with pytest.raises(ConfigurationError, match=r"writing to p-progress at .* failed\. (MSG_SIZE|TOPIC_AUTH)"):
        log.append(b"2", after=1)
    assert log.append(b"2", after=1) == 2


def test_a_lost_confirmation_leaves_the_entry_there_once(model: ModelBroker) -> None:
    there = on(model)
    log = there.open("sink")
    for after in range(4):
        model.swallow = [PRODUCE]
        assert log.append(b"%d" % after, after=after) == after + 1
    assert [record.value for record in model.topics["p-progress"].records] == [b"0", b"1", b"2", b"3"]


@pytest.mark.thorough
def test_a_confirmation_that_never_comes_is_settled_by_reading_back(
    model: ModelBroker,
) -> None:
    log = on(model, timeout=2).open("sink")
    log.append(b"1", after=0)
    # All tries of the client lose their answer, so that it gives up.
    model.swallow = [PRODUCE] * 1000
    assert log.append(b"2", after=1) == 2
    model.swallow = []
    assert log.append(b"3", after=2) == 3
    assert [record.value for record in model.topics["p-progress"].records] == [b"1", b"2", b"3"]


@pytest.mark.thorough
def test_an_older_driver_that_hears_nothing_sees_the_newer_one_and_stops(model: ModelBroker) -> None:
    older, newer = on(model, timeout=3).open("sink"), on(model).open("sink")
    newer.append(b"1", after=0)
    newer.append(b"2", after=1)
    # It looked before: only the order of the partition can tell.
    view = older._tail.view  # type: ignore[attr-defined]
    older._require_newest = lambda newest, after: None  # type: ignore[attr-defined]
    model.swallow = [PRODUCE] * 1000
    with pytest.raises(EntryExistsError):
        older.append(b"late", after=1)
    assert view.newest == 2
    assert len(view.strays) == 1


def test_a_queue_that_is_full_waits_while_records_leave_it(model: ModelBroker) -> None:
    there = on(model, client_options={"queue.buffering.max.messages": 2})
    log = there.open("sink")
    log.append(b"x", after=0)
    for after in range(1, 20):
        log.append(b"x", after=after)
    log.clean_up(keep=[20], states=[], generation=0)
    assert there.open("sink").numbers() == [20]


@pytest.mark.thorough
def test_a_queue_that_stays_full_is_an_error_within_the_deadline(model: ModelBroker) -> None:
    for after in range(3):
        on(model).open("sink").append(b"x", after=after)
    log = on(model, client_options={"queue.buffering.max.messages": 1}).open("sink")
    # The producer that this makes gives a record 15 s, so that it does not give up before the queue is given up.
    log.append(b"x", after=3)
    hurry(log, 0.5)
    model.silent = {PRODUCE}
    started = time.monotonic()
    with pytest.raises(TransientError, match=r"queue of the client was full for 0.5 s.*queue\.buffering"):
        log.clean_up(keep=[4], states=[], generation=0)
    assert time.monotonic() - started < 30


@pytest.mark.thorough
def test_a_delivery_that_fails_fails_the_epoch_and_the_next_run_makes_it_good(
    model: ModelBroker, tmp_path: Path
) -> None:
    there = on(model)

    def driver() -> LocalDriver:
        return LocalDriver(FileSink(str(tmp_path / "out")), there)

    driver().run_epoch(0, [[{"id": 0}]])
    model.errors[PRODUCE] = [DENIED]
    with pytest.raises(OutfallError, match="TOPIC_AUTHORIZATION_FAILED"):
        driver().run_epoch(1, [[{"id": 1}]])
    driver().run_epoch(1, [[{"id": 1}]])
    lines = [line for path in (tmp_path / "out").glob("part-*") for line in path.read_text().splitlines()]
    assert sorted(lines) == ['{"id":0}', '{"id":1}']
