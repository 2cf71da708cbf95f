"""Brokers that refuse, keep silent, lose answers or abort what takes too long: nothing is lost, nothing doubled."""

from __future__ import annotations

import threading
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from outfall.errors import ConfigurationError, OutfallError, TransientError
from outfall.protocol.messages import TaskResponse
from tests.integration.support.kafka_broker import (
    ADD_PARTITIONS_TO_TXN,
    END_TXN,
    FIND_COORDINATOR,
    INIT_PRODUCER_ID,
    ModelBroker,
)
from tests.integration.support.kafka_parts import PartsTopic, at_step, halves, rows_of
from tests.integration.support.kafka_topics import ModelTopic
from tests.integration.support.waiting import until

COORDINATOR_LOADING, NOT_COORDINATOR, CONCURRENT = 14, 16, 51
SHORT: dict[str, Any] = {"delivery_timeout": timedelta(seconds=1)}


@pytest.fixture
def topic(model: ModelBroker, tmp_path: Path) -> PartsTopic:
    return PartsTopic(model.address, tmp_path)


def ends_of(model: ModelBroker, part: str, request: Any) -> bool:
    return str(request.transactional_id).endswith(f"/{part}")


def test_a_commit_whose_answer_is_lost_is_found_in_the_ledger(model: ModelBroker, topic: PartsTopic) -> None:
    """The work is done, and neither the first answer comes nor one to those who ask again."""
    query = topic.query(**SHORT)
    done: list[Any] = []

    def held(number: int, request: Any) -> bool:
        if number != END_TXN or not ends_of(model, "0", request):
            return False
        if not done:
            done.append(request)
            with model.lock:
                model.transactions.end(
                    request.transactional_id, request.producer_id, request.producer_epoch, commit=True
                )
        return not over.is_set()

    over = threading.Event()
    model.held = held
    result = query.epoch(0)
    over.set()
    assert result.counts["commits_settled"] == 1
    query.epoch(1)
    assert topic.holds(rows_of(0), rows_of(1))


@pytest.mark.thorough
def test_a_commit_behind_the_open_transaction_of_another_part_is_found(model: ModelBroker, topic: PartsTopic) -> None:
    """Part 1 stands between its ledger record and its commit; part 0, behind it, commits and hears nothing.

    The model ends a `read_committed` fetch at the last stable offset, where the record of part 0 is hidden.
    """
    query = topic.query(**SHORT)
    waiting, over, asked = threading.Event(), threading.Event(), threading.Event()
    done: list[Any] = []

    def held(number: int, request: Any) -> bool:
        if number == INIT_PRODUCER_ID and done:
            asked.set()
        if number != END_TXN or over.is_set():
            return False
        if ends_of(model, "1", request):
            waiting.set()
            return True
        if ends_of(model, "0", request):
            if not done:
                done.append(request)
                with model.lock:
                    model.transactions.end(
                        request.transactional_id, request.producer_id, request.producer_epoch, commit=True
                    )
            return True
        return False

    answers: dict[int, TaskResponse] = {}
    with closing(query.coordinator()) as coordinator:
        ticket = coordinator.begin(0)
        tasks = query.route([rows_of(0)])
        patient = query.executor("second", delivery_timeout=timedelta(seconds=20))
        slow = threading.Thread(target=lambda: answers.update({1: patient.attempts(ticket, 0, 1, tasks[1])}))

        def overtaken() -> None:
            model.held = held
            slow.start()
            until(waiting.is_set, "the commit of part 1")

        # Nothing is found before part 1 is over, and so nothing is written again.
        with pytest.raises(TransientError, match="cannot be read to its end"):
            query.run_task(ticket, 0, 0, halves(tasks[0], overtaken))
        assert asked.is_set()
        over.set()
        answers[0] = query.attempts(ticket, 0, 0, tasks[0])
        slow.join()
        assert answers[0].counts["rows_present"] == len(tasks[0][0][1])
        coordinator.finish(ticket, [answers[0], answers[1]])
    assert topic.holds(rows_of(0))


@pytest.mark.parametrize("when", ["between two batches", pytest.param("at the end", marks=pytest.mark.thorough)])
def test_a_transaction_that_the_brokers_abort_is_written_again(
    model: ModelBroker, topic: PartsTopic, when: str
) -> None:
    """Nobody was heard for longer than `transaction.timeout.ms`."""
    query = topic.query()
    large = rows_of(0, 400)
    with closing(query.coordinator()) as coordinator:
        ticket = coordinator.begin(0)
        tasks = query.route([large])
        expired: list[list[str]] = []
        if when == "at the end":
            with at_step("kafka: before commit", lambda: expired.append(until(model.expire, "a transaction"))):
                query.late(ticket, 0, large)
        else:
            slow = halves(tasks[0], lambda: expired.append(until(model.expire, "a transaction being open", 30)))
            with pytest.raises(TransientError):
                query.run_task(ticket, 0, 0, slow)
        assert len(expired[0]) == 1
        coordinator.finish(ticket, query.answers(ticket, 0, large))
    query.epoch(1)
    assert topic.holds(large, rows_of(1))


@pytest.mark.thorough
def test_a_coordinator_that_moves_is_found_again(model: ModelBroker, topic: PartsTopic) -> None:
    query = topic.query()
    query.epoch(0)
    model.errors = {
        ADD_PARTITIONS_TO_TXN: [NOT_COORDINATOR, CONCURRENT],
        END_TXN: [COORDINATOR_LOADING, NOT_COORDINATOR],
        FIND_COORDINATOR: [15],
    }
    query.epoch(1)
    assert not any(model.errors.values())
    model.errors = {INIT_PRODUCER_ID: [NOT_COORDINATOR, COORDINATOR_LOADING, CONCURRENT]}
    topic.query("second").epoch(2)
    assert topic.holds(rows_of(0), rows_of(1), rows_of(2))


@pytest.mark.parametrize("denied", ["driver", pytest.param("part", marks=pytest.mark.thorough)])
def test_no_right_to_the_transactional_ids_is_refused_before_the_first_row(
    model: ModelBroker, topic: PartsTopic, denied: str
) -> None:
    query = topic.query()
    if denied == "driver":
        model.transactions.denied = ("outfall/",)
    else:
        # A list of exact names: the driver's was let in, and those of the parts were forgotten.
        query.epoch(0)
        names = [name for name in model.transactions.by_id if not name.endswith("/driver")]
        model.transactions.denied = tuple(names)
        query = topic.query("second")
    with pytest.raises(ConfigurationError, match="transactional ids that begin with transactional_id_prefix"):
        query.epoch(1 if denied == "part" else 0)
    model.transactions.denied = ()
    query = topic.query("third")
    query.epoch(1 if denied == "part" else 0)
    assert topic.holds(*(rows_of(epoch) for epoch in range(2 if denied == "part" else 1)))


@pytest.mark.thorough
def test_a_transaction_timeout_above_the_brokers_is_refused_before_the_first_row(
    model: ModelBroker, topic: PartsTopic
) -> None:
    model.transactions.longest = 60_000
    with pytest.raises(ConfigurationError, match=r"lower transaction_timeout, or raise transaction\.max\.timeout\.ms"):
        topic.query().epoch(0)
    assert model.topics[topic.name].records == []
    topic.query("second", transaction_timeout=timedelta(seconds=60)).epoch(0)
    assert topic.holds(rows_of(0))


@pytest.mark.thorough
def test_brokers_that_are_gone_for_longer_than_the_timeout_are_an_error_and_nothing_is_lost(
    model: ModelBroker, topic: PartsTopic
) -> None:
    topic.query().epoch(0)
    model.away = True
    with pytest.raises(TransientError):
        topic.query(**SHORT).epoch(1)
    model.away = False
    topic.query("second").epoch(1)
    assert topic.holds(rows_of(0), rows_of(1))


@pytest.mark.thorough
def test_a_topic_that_gets_more_partitions_between_epochs_loses_nothing(model: ModelBroker, topic: PartsTopic) -> None:
    query = topic.query()
    for epoch in range(3):
        query.epoch(epoch)
        model.topics[topic.name].grow(2 + 2 * epoch)
    topic.query("second").epoch(3)
    assert topic.holds(*(rows_of(epoch) for epoch in range(4)))


@pytest.mark.thorough
def test_a_record_that_the_brokers_refuse_aborts_its_part(model: ModelBroker, topic: PartsTopic) -> None:
    model.topics[topic.name] = ModelTopic(2, {"max.message.bytes": "2000"})
    query = topic.query()
    with pytest.raises(OutfallError, match="MSG_SIZE_TOO_LARGE"):
        query.epoch(0, [*rows_of(0), ("k1", {"n": 99, "text": "x" * 4000})])
    topic.query("second").epoch(0)
    assert topic.holds(rows_of(0))
