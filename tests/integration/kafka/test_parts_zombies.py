"""An attempt stands still while others go on, and wakes: it changes nothing, and they go on."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from outfall.errors import FencedError, OutfallError, TransientError
from outfall.kafka.producer.transactions import TransactionalProducer
from outfall.protocol.messages import TaskResponse, Ticket
from tests.integration.support.kafka_broker import ADD_PARTITIONS_TO_TXN, END_TXN, INIT_PRODUCER_ID, ModelBroker
from tests.integration.support.kafka_parts import PartsTopic, Rows, at_step, halves, rows_of
from tests.integration.support.waiting import until

pytestmark = pytest.mark.faults

STEPS = ("kafka: before init", "kafka: after init", "task: after write", "kafka: before commit")


def refused(outcomes: list[TaskResponse | OutfallError]) -> bool:
    return all(isinstance(outcome, OutfallError) for outcome in outcomes)


def register(topic: PartsTopic, transactional_id: str) -> None:
    """Do what whoever wakes may do first."""
    made = TransactionalProducer(topic.address, topic.sink().options.client, 20, transactional_id=transactional_id)
    made.open().init(topic.ledger)
    made.shut()


@pytest.mark.parametrize(
    "step", [pytest.param(step, marks=pytest.mark.thorough) for step in STEPS[:3]] + list(STEPS[3:])
)
def test_an_attempt_that_wakes_when_another_one_has_committed(step: str, kafka: str, tmp_path: Path) -> None:
    topic = PartsTopic(kafka, tmp_path)
    query = topic.query()
    answers: list[TaskResponse] = []
    with closing(query.coordinator()) as coordinator:
        ticket = coordinator.begin(0)
        other = query.executor("second")
        with at_step(step, lambda: answers.extend(other.answers(ticket, 0))):
            outcomes = query.late(ticket, 0, rows_of(0))
        coordinator.finish(ticket, answers)
    # It is refused, or it finds all rows there and says the same as the winner.
    for outcome, answer in zip(outcomes, answers, strict=True):
        if isinstance(outcome, TaskResponse):
            assert [part.states for part in outcome.parts] == [part.states for part in answer.parts]
            assert outcome.counts["rows_present"] == answer.counts["rows"]
        else:
            assert isinstance(outcome, TransientError), outcome
    # The zombie may have fenced the winner's producer, which then writes by another one.
    for epoch in (1, 2):
        with closing(query.coordinator()) as coordinator:
            ticket = coordinator.begin(epoch)
            coordinator.finish(ticket, query.executor("second").answers(ticket, epoch))
    assert topic.holds(rows_of(0), rows_of(1), rows_of(2))


@pytest.mark.parametrize(
    ("step", "options"),
    [
        (STEPS[0], {}),
        *(pytest.param(step, {}, marks=pytest.mark.thorough) for step in STEPS[1:]),
        *(pytest.param(step, {"parts": 3}, marks=pytest.mark.thorough) for step in (STEPS[0], STEPS[2])),
        *(
            pytest.param(step, {"parts": 3, "on_existing": "resume", "checkpoint": "other"}, marks=pytest.mark.thorough)
            for step in STEPS
        ),
    ],
    ids=str,
)
def test_an_attempt_that_wakes_when_another_driver_has_begun_the_next_epoch(
    step: str, options: dict[str, Any], kafka: str, tmp_path: Path
) -> None:
    """The other one goes on with the same checkpoint, with more parts, or with a new checkpoint over what is there."""
    topic = PartsTopic(kafka, tmp_path)
    query, other = topic.query(), topic.query("second", **options)

    def go_on() -> None:
        # Another key brings each row to another part.
        other.epoch(0, [(f"{key}'", row) for key, row in rows_of(0)])
        other.epoch(1)

    with closing(query.coordinator()) as coordinator:
        ticket = coordinator.begin(0)
        with at_step(step, go_on):
            outcomes = query.late(ticket, 0, rows_of(0))
    assert refused(outcomes), outcomes
    other.epoch(2)
    assert topic.holds(rows_of(0), rows_of(1), rows_of(2))


@pytest.mark.thorough
def test_an_attempt_that_wakes_between_two_batches_of_a_large_epoch(kafka: str, tmp_path: Path) -> None:
    topic = PartsTopic(kafka, tmp_path)
    query, other = topic.query(), topic.query("second")
    large = rows_of(0, 3000)
    with closing(query.coordinator()) as coordinator:
        ticket = coordinator.begin(0)
        task, *_ = query.route([large])
        with pytest.raises((FencedError, TransientError)):
            query.run_task(ticket, 0, 0, halves(task, lambda: other.epoch(0, large)))
    other.epoch(1)
    assert topic.holds(large, rows_of(1))


@pytest.mark.thorough
@pytest.mark.parametrize("woken", ["in the epoch", "after the next epoch"])
def test_a_commit_that_arrives_late_is_refused(woken: str, model: ModelBroker, tmp_path: Path) -> None:
    """The rows and the ledger's record are written, and the end of the transaction comes when others have gone on.

    On the model: it checks the epoch of whoever ends a transaction, as Apache Kafka does.
    """
    topic = PartsTopic(model.address, tmp_path)
    query, other = topic.query(), topic.query("second")
    waiting, late = threading.Event(), threading.Event()
    outcomes: list[TaskResponse | OutfallError] = []

    def held(number: int, request: Any) -> bool:
        if number != END_TXN or late.is_set() or not request.transactional_id.endswith("/0"):
            return False
        first = not waiting.is_set() or request in stopped
        if first and request not in stopped:
            stopped.append(request)
        waiting.set()
        return first

    def zombie(ticket: Ticket, rows: Rows) -> None:
        outcomes.extend(query.late(ticket, 0, rows))

    stopped: list[Any] = []
    with closing(query.coordinator()) as coordinator:
        ticket = coordinator.begin(0)
        model.held = held
        thread = threading.Thread(target=zombie, args=(ticket, rows_of(0)))
        thread.start()
        until(waiting.is_set, "the commit of part 0")
        other.epoch(0)
        if woken == "after the next epoch":
            other.epoch(1)
        late.set()
        thread.join()
    assert refused(outcomes), outcomes
    other.epoch(2 if woken == "after the next epoch" else 1)
    assert topic.holds(*(rows_of(epoch) for epoch in range(3 if woken == "after the next epoch" else 2)))


@pytest.mark.thorough
def test_an_attempt_is_not_fenced_again_and_again_by_one_that_registers(model: ModelBroker, tmp_path: Path) -> None:
    """Each time that the other one's client asks, a transaction is open: it is aborted, and the client asks again."""
    topic = PartsTopic(model.address, tmp_path)
    query = topic.query(parts=1)
    registered = threading.Event()

    def other() -> None:
        register(topic, f"outfall/{ticket.incarnation}/sink/{topic.name}/0")
        registered.set()

    def meet() -> None:
        """Have a transaction open when it asks again."""
        asked = model.asked.count(INIT_PRODUCER_ID)
        until(lambda: registered.is_set() or model.asked.count(INIT_PRODUCER_ID) > asked, "another InitProducerId", 10)

    with closing(query.coordinator()) as coordinator:
        ticket = coordinator.begin(0)
        (task,) = query.route([rows_of(0, 300)])
        thread = threading.Thread(target=other)

        def slow() -> Iterator[Any]:
            for batch in halves(task, lambda: until(model.transactions.open, "a transaction", 10)):
                yield batch
                if model.transactions.open():
                    if not thread.ident:
                        thread.start()
                    meet()

        answer = query.attempts(ticket, 0, 0, slow)
        thread.join()
        coordinator.finish(ticket, [answer])
    assert topic.holds(rows_of(0, 300))


@pytest.mark.thorough
def test_a_driver_that_another_one_fences_takes_over_again(model: ModelBroker, tmp_path: Path) -> None:
    """An older driver wakes and registers, when the newer one is about to write its record."""
    topic = PartsTopic(model.address, tmp_path)
    topic.query().epoch(0)
    newer = topic.query("second")
    (name,) = (each for each in model.transactions.by_id if each.endswith("/driver"))
    older = threading.Thread(target=lambda: register(topic, name))

    def held(number: int, request: Any) -> bool:
        if number != ADD_PARTITIONS_TO_TXN or request.v3_and_below_transactional_id != name:
            return False
        if not older.ident:
            older.start()
        return older.is_alive()

    model.held = held
    newer.epoch(1)
    older.join()
    newer.epoch(2)
    assert topic.holds(*(rows_of(epoch) for epoch in range(3)))


@pytest.mark.thorough
def test_a_producer_of_another_worker_is_the_newer_one(kafka: str, tmp_path: Path) -> None:
    """Parts move between two workers, each of which has kept producers."""
    topic = PartsTopic(kafka, tmp_path)
    query = topic.query()
    for epoch, process in enumerate(["first", "second", "first", "first", "second"]):
        with closing(query.coordinator()) as coordinator:
            ticket = coordinator.begin(epoch)
            coordinator.finish(ticket, query.executor(process).answers(ticket, epoch))
    assert topic.holds(*(rows_of(epoch) for epoch in range(5)))
