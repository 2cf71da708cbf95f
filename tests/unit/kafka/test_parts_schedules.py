"""Parts in Kafka against attempts, drivers and transactions that come between each other: each row is there once."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outfall.capabilities import TargetContext, WriterInitContext
from outfall.errors import FencedError, OutfallError, PartsChangedError, TransientError
from outfall.kafka.options import KafkaOptions
from outfall.kafka.parts import target as target_module
from outfall.kafka.parts.part_writer import KafkaPartWriter
from outfall.kafka.parts.target import KafkaPartState, TargetNames, TopicIds
from outfall.kafka.records import KafkaRecordMaker
from outfall.protocol.messages import Ticket
from outfall.testing.local_engine import LocalDriver
from outfall.testing.memory_log import MemoryRecoveryConfig
from tests.unit.support.kafka_cluster import COMMITTED, Broker, Faults, MemoryCluster, MemoryDelivery
from tests.unit.support.schedules import Killed, Pause, every_schedule, play

NAMES = TargetNames("events", "ledger", "outfall")
INCARNATION, NEWER = "0123456789abcdef", "fedcba9876543210"


@pytest.fixture(autouse=True, scope="module")
def one_at_a_time() -> Iterator[None]:
    """Ids are initialised in one other thread, so that the schedule decides what runs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(target_module, "_AT_ONCE", 1)
        yield


def values(broker: Broker) -> list[Any]:
    return [row["value"] for row in broker.committed_rows()]


def writer(generation: int, epoch: int = 0, attempt: int = 0) -> WriterInitContext:
    return WriterInitContext("sink", INCARNATION, generation, epoch, "0", attempt, token=f"t{generation}")


def target(generation: int, *, epoch: int = 0, unfinished: bool = False) -> TargetContext[KafkaPartState]:
    begun = {number: f"t{number}" for number in range(1, generation + 1)}
    return TargetContext(
        "sink", INCARNATION, epoch, None, generation == 1, {"0": KafkaPartState()}, last_generation=generation - 1,
        generation=generation, token=f"t{generation}", begun=begun, unfinished=unfinished,
    )  # fmt: skip


MAKER = KafkaRecordMaker(KafkaOptions(brokers="memory:1", topic="t"))


def batch(*values: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"value": list(values)})


def attempt(
    cluster: MemoryCluster, context: WriterInitContext, *values: int, state: KafkaPartState | None = None
) -> KafkaPartState | OutfallError:
    """Write the part's rows once, as a task does; return its state, or why it failed."""
    part = KafkaPartWriter(cluster, NAMES, state or KafkaPartState(), context, TopicIds(), "", MAKER)
    try:
        part.write_record_batch(batch(*values))
        part.flush(True)
        return part.snapshot()
    except OutfallError as error:
        return error
    finally:
        part.close()


def delivery(cluster: MemoryCluster, parts: int = 1, **more: Any) -> MemoryDelivery:
    options = KafkaOptions(brokers="memory:9092", topic="events", ledger_topic="ledger", parts=parts, **more)
    return MemoryDelivery(options, lambda *_: cluster)


def at_random(run: Callable[[Callable[[int], int]], None], schedules: int) -> None:
    """Run as many schedules as there is time for, the same ones each time."""
    for seed in range(schedules):
        run(random.Random(seed).randrange)


def two_attempts(choose: Callable[[int], int], fate: str) -> None:
    """Two attempts at a part run side by side, and a third comes after them."""
    broker = Broker()
    delivery(MemoryCluster(broker)).open_target(target(1))
    outcomes: list[KafkaPartState | OutfallError] = []

    def job(number: int) -> Callable[[Pause], None]:
        def play_it(pause: Pause) -> None:
            faults = Faults([fate] if fate and number == 0 else [])
            outcomes.append(attempt(MemoryCluster(broker, pause, faults), writer(1, attempt=number), 7))

        return play_it

    play([job(0), job(1)], choose, lambda: None)
    while broker.late:
        broker.arrive()
    states = {found for found in outcomes if isinstance(found, KafkaPartState)}
    assert not states or values(broker) == [7]
    last = attempt(MemoryCluster(broker), writer(1, attempt=2), 7)
    assert isinstance(last, KafkaPartState)
    assert states <= {last}
    assert values(broker) == [7]


FATES = ("", "lost", "landed", "late", "repeated")


def overtaken(choose: Callable[[int], int]) -> None:
    """A task stops anywhere, while a newer driver takes over and writes the epoch."""
    broker = Broker()
    delivery(MemoryCluster(broker)).open_target(target(1))

    def zombie(pause: Pause) -> None:
        attempt(MemoryCluster(broker, pause), writer(1), 7)

    def newer(pause: Pause) -> None:
        sink = delivery(MemoryCluster(broker))
        pause()
        sink.check_target(target(2, unfinished=True))
        pause()
        sink.open_target(target(2, unfinished=True))
        pause()
        attempt(MemoryCluster(broker, pause), writer(2), 7)

    play([zombie, newer], choose, lambda: None)
    last = attempt(MemoryCluster(broker), writer(2, attempt=1), 7)
    assert isinstance(last, KafkaPartState), last
    assert values(broker) == [7]


def repeated(choose: Callable[[int], int]) -> None:
    """The end of a transaction is sent twice, and the first one arrives anywhere in what the same task does next."""
    broker = Broker()
    pauses: list[Pause] = []
    cluster = MemoryCluster(broker, lambda: pauses[-1]() if pauses else None, Faults(["", "repeated"]))
    sink = delivery(cluster)
    sink.open_target(target(1))
    state = attempt(cluster, writer(1), 7)
    assert isinstance(state, KafkaPartState)
    sink.open_target(replace(target(2, epoch=1), completed=0, states={"0": state}))

    def task(pause: Pause) -> None:
        pauses.append(pause)
        for number in range(3):
            if isinstance(attempt(cluster, writer(2, epoch=1, attempt=number), 8, state=state), KafkaPartState):
                break

    def between() -> None:
        if broker.late and choose(2):
            broker.arrive()

    play([task], choose, between)
    assert values(broker) == [7, 8]


def test_the_end_of_a_transaction_that_comes_behind_its_repetition_commits_no_other() -> None:
    assert every_schedule(repeated) > 5


@pytest.mark.thorough
@pytest.mark.parametrize("fate", FATES)
def test_two_attempts_of_a_part_commit_its_rows_once(fate: str) -> None:
    at_random(partial(two_attempts, fate=fate), 60)


@pytest.mark.long
@pytest.mark.parametrize("fate", FATES)
def test_two_attempts_of_a_part_in_every_order_of_their_steps(fate: str) -> None:
    assert every_schedule(partial(two_attempts, fate=fate)) > 500


@pytest.mark.thorough
def test_a_task_of_a_driver_that_is_overtaken_doubles_nothing() -> None:
    at_random(overtaken, 100)


@pytest.mark.thorough
def test_a_task_of_a_driver_that_is_overtaken_in_every_order_of_their_steps() -> None:
    assert every_schedule(overtaken) > 500


def test_a_kept_producer_writes_only_what_follows_its_own_commit() -> None:
    broker = Broker()
    cluster = MemoryCluster(broker)
    delivery(cluster).open_target(target(1))
    first = attempt(cluster, writer(1), 7)
    # Its response is lost, and the task runs again in the same process.
    assert attempt(cluster, writer(1, attempt=1), 7) == first
    assert values(broker) == [7]
    initialised = dict(broker.epochs)
    assert isinstance(first, KafkaPartState)
    assert isinstance(attempt(cluster, writer(1, epoch=1), 8, state=first), KafkaPartState)
    assert broker.epochs == initialised, "the kept producer is good for the next epoch"


def test_a_commit_whose_answer_is_lost_is_found_by_the_same_attempt() -> None:
    broker = Broker()
    delivery(MemoryCluster(broker)).open_target(target(1))
    assert isinstance(attempt(MemoryCluster(broker, faults=Faults(["lost"])), writer(1), 7), TransientError)
    assert values(broker) == []
    assert isinstance(attempt(MemoryCluster(broker, faults=Faults(["landed"])), writer(1), 7), KafkaPartState)
    assert values(broker) == [7]


def behind_another(choose: Callable[[int], int]) -> None:
    """Part 1 stands between its record and its commit, and part 0 behind it loses the answer and is tried again."""
    broker = Broker()
    delivery(MemoryCluster(broker), 2).open_target(target(1))

    def other(pause: Pause) -> None:
        attempt(MemoryCluster(broker, pause), replace(writer(1), part="1"), 8)

    def retried(pause: Pause) -> None:
        faults = Faults(["landed", "landed"])
        for number in range(8):
            found = attempt(MemoryCluster(broker, pause, faults), writer(1, attempt=number), 7)
            if isinstance(found, KafkaPartState):
                break
        assert isinstance(found, KafkaPartState)

    play([other, retried], choose, lambda: None)
    assert [row for row in values(broker) if row == 7] == [7]


def test_a_commit_behind_an_open_transaction_is_found_by_whoever_tries_again() -> None:
    at_random(behind_another, 150)


def other_parts(choose: Callable[[int], int]) -> None:
    """A task stops anywhere, and the query goes on with two parts, where its rows go to the other one."""
    broker = Broker()
    delivery(MemoryCluster(broker)).open_target(target(1))
    refused = []

    def zombie(pause: Pause) -> None:
        attempt(MemoryCluster(broker, pause), writer(1), 7)

    def newer(pause: Pause) -> None:
        context = replace(target(2, unfinished=True), states={"0": KafkaPartState(), "1": KafkaPartState()})
        sink = delivery(MemoryCluster(broker, pause), 2)
        try:
            sink.open_target(context)
        except PartsChangedError as error:
            refused.append(error)
        else:
            found = attempt(MemoryCluster(broker, pause), replace(writer(2), part="1"), 7)
            assert isinstance(found, KafkaPartState), found

    play([zombie, newer], choose, lambda: None)
    assert values(broker) == [7]


@pytest.mark.thorough
def test_a_task_that_wakes_after_the_query_was_started_with_other_parts_doubles_nothing() -> None:
    at_random(other_parts, 200)


def test_new_parts_that_are_refused_are_forgotten() -> None:
    """Else the former parts, with which the query is to go on, would be refused too."""
    broker = Broker()
    delivery(MemoryCluster(broker)).open_target(target(1))
    attempt(MemoryCluster(broker), writer(1), 7)
    more = delivery(MemoryCluster(broker), 2)
    assert more.check_target(target(2, unfinished=True)) == {}
    with pytest.raises(PartsChangedError, match="run the query with the former number of parts"):
        more.open_target(target(2, unfinished=True))


def resumed(choose: Callable[[int], int]) -> None:
    """A task stops anywhere, its checkpoint is lost, and a new one goes on over what is there."""
    broker = Broker()
    delivery(MemoryCluster(broker)).open_target(target(1))
    found: list[Any] = []

    def zombie(pause: Pause) -> None:
        found.append(attempt(MemoryCluster(broker, pause), writer(1), 7))

    def newer(pause: Pause) -> None:
        sink = delivery(MemoryCluster(broker, pause), on_existing="resume")
        sink.open_target(replace(target(1), incarnation=NEWER))
        broker.marks.append(len(values(broker)))

    play([zombie, newer], choose, lambda: None)
    # What is there when the newer one goes on is all there will ever be of the older one.
    assert len(values(broker)) == broker.marks[0]
    again = attempt(MemoryCluster(broker), writer(1, attempt=1), 7)
    assert isinstance(again, FencedError) or broker.marks[0]


@pytest.mark.thorough
def test_a_task_that_wakes_after_another_checkpoint_resumed_writes_nothing() -> None:
    at_random(resumed, 150)


PARTS, EPOCHS, ROWS = 3, 3, 4


@dataclass
class Story:
    """One query: its checkpoint, the brokers, and all that ever wrote there."""

    broker: Broker = field(default_factory=Broker)
    recovery: MemoryRecoveryConfig = field(default_factory=MemoryRecoveryConfig)
    completed: int = -1
    tickets: list[tuple[LocalDriver, Ticket, int]] = field(default_factory=list)

    def rows(self, epoch: int) -> list[list[tuple[str, Any]]]:
        return [[(f"k{number % 5}", {"value": epoch * 100 + number}) for number in range(ROWS + epoch)]]

    def driver(self, pause: Pause, faults: Faults | None = None) -> None:
        """Start a query at its first batch that is not completed, as Spark does, and run it to its end."""
        cluster = MemoryCluster(self.broker, pause, faults)
        driver = LocalDriver(delivery(cluster, PARTS), self.recovery)
        for epoch in range(self.completed + 1, EPOCHS):
            with closing(driver.coordinator()) as coordinator:
                pause()
                ticket = coordinator.begin(epoch)
                self.tickets.append((driver, ticket, epoch))
                coordinator.finish(ticket, driver.run_tasks(ticket, epoch, self.rows(epoch)))
            self.completed = max(self.completed, epoch)

    def zombie(self, pause: Pause, choose: Callable[[int], int]) -> None:
        """Run tasks of whatever epoch was ever begun once more, in a process of their own."""
        for _ in range(3):
            pause()
            if self.tickets:
                driver, ticket, epoch = self.tickets[choose(len(self.tickets))]
                sink = delivery(MemoryCluster(self.broker, pause), PARTS)
                other = LocalDriver(sink, self.recovery)
                with suppress(OutfallError):
                    for index, part in enumerate(driver.route(self.rows(epoch))):
                        other.run_task(ticket, epoch, index, part, attempt=1000 + driver.new_attempt())

    def check(self, *, whole: bool = False) -> None:
        found = Counter(values(self.broker))
        assert not [row for row, count in found.items() if count > 1], "a row is there twice"
        for epoch in range(self.completed + 1):
            assert all(found[row["value"]] == 1 for _, row in self.rows(epoch)[0]), "a row of a completed epoch is lost"
        if whole:
            assert sum(found.values()) == sum(len(self.rows(epoch)[0]) for epoch in range(EPOCHS))


def play_at_random(seed: int) -> None:
    story, chance = Story(), random.Random(seed)
    fates = [[chance.choice((*FATES, "", "", "")) for _ in range(12)] for _ in range(2)]
    ends = [chance.randrange(5, 120) for _ in range(2)]

    def between() -> None:
        if story.broker.late and chance.random() < 0.2:
            story.broker.arrive()
        if story.broker.open and chance.random() < 0.02:
            story.broker.expire(chance.choice(sorted(story.broker.open)))
        story.check()

    def driver(me: int) -> Callable[[Pause], None]:
        def job(pause: Pause) -> None:
            left = ends[me]

            def mortal() -> None:
                nonlocal left
                left -= 1
                if left == 0:
                    raise Killed
                pause()

            with suppress(Killed, OutfallError):
                story.driver(mortal, Faults(list(fates[me])))
            with suppress(OutfallError):
                story.driver(pause)

        return job

    def zombie(pause: Pause) -> None:
        story.zombie(pause, chance.randrange)

    play([driver(0), driver(1), zombie, zombie], chance.randrange, between)
    while story.broker.late:
        story.broker.arrive()
    story.driver(lambda: None)
    story.check(whole=True)
    assert story.completed == EPOCHS - 1
    assert all(transaction.state == COMMITTED for transaction, _ in story.broker.rows if transaction.state != "aborted")


@pytest.mark.thorough
@settings(max_examples=40, deadline=None)
@given(st.integers(0, 1 << 32))
def test_drivers_and_zombies_at_random(seed: int) -> None:
    play_at_random(seed)


@pytest.mark.long
@settings(max_examples=5_000, deadline=None)
@given(st.integers(0, 1 << 32))
def test_drivers_and_zombies_at_random_for_long(seed: int) -> None:
    play_at_random(seed)
