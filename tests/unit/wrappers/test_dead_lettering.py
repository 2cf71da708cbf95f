"""A sink and its dead-letter sink: what the one refuses is in the other, once, in the same epoch."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import pyarrow as pa
import pytest

from outfall.capabilities import Guarantee, SupportsDeadLetterSink, SupportsTarget
from outfall.capability_checks import resolve
from outfall.dead_letter import DEAD_LETTER_SCHEMA
from outfall.errors import CapabilityError, ConfigurationError, ValueRefusedError
from outfall.file import FileSink
from outfall.protocol.step import EpochOptions
from outfall.recovery.history import history
from outfall.sinks import DynamicSink, FixedPartitionedSink, StatelessSinkPartition
from outfall.testing import FakeClock, LocalDriver, MemoryRecoveryConfig, crash_at
from outfall.wrappers import DeadLetteringSink, FanOutSink
from tests.unit.support.fanned import NamedStagingSink, NeedsSameRows
from tests.unit.support.refusing import RefusingShelf, RefusingSink
from tests.unit.support.shelf import Shelf, values_on
from tests.unit.support.warehouse import HoldingSink, PlainSink, Warehouse, rows_of
from tests.unit.support.watched import Sorting
from tests.unit.wrappers.test_fan_out import Slotted


def rows(*ids: int) -> list[dict[str, int]]:
    return [{"id": number} for number in ids]


def ids_of(letters: Sequence[dict[str, Any]]) -> list[int]:
    return [json.loads(letter["row"])["id"] for letter in letters]


class Letters(NamedStagingSink):
    """Takes dead letters; says how often it was opened."""

    def __init__(self) -> None:
        super().__init__(Warehouse(), "letters")


@pytest.mark.parametrize("when", ["write_batch", "flush", "prepare_commit"])
def test_what_is_refused_is_kept_with_the_reason_in_the_same_epoch(when: str) -> None:
    sink, letters, recovery = RefusingSink(Warehouse()), Letters(), MemoryRecoveryConfig()
    sink.when = when
    driver = LocalDriver(DeadLetteringSink(sink, letters), recovery)
    counts = driver.run_epoch(0, [rows(1, -1, 2), rows(-2)]).counts
    assert rows_of(sink.warehouse) == rows(1, 2)
    found = rows_of(letters.warehouse)
    assert sorted(ids_of(found)) == [-2, -1]
    assert {(letter["reason"], letter["step"], letter["epoch"]) for letter in found} == {("below nought", "sink", 0)}
    assert set(found[0]) == set(DEAD_LETTER_SCHEMA.names)
    assert (counts["rows"], counts["dead_letters"], counts["dead_letters.rows"]) == (4, 2, 2)
    assert history(recovery)[0].dead_letters == 2


def test_each_run_warns_once_in_ten_minutes_of_dead_letters(caplog: pytest.LogCaptureFixture) -> None:
    recovery, clock, found = MemoryRecoveryConfig(), FakeClock(), []
    sink = DeadLetteringSink(RefusingSink(Warehouse()), Letters())
    first, second = (LocalDriver(sink, recovery, clock=clock) for _ in range(2))
    caplog.set_level("INFO")
    epochs = [(first, 0, (1,)), (first, 0, (1, -2, -3)), (first, 0, (-1,)), (first, 600, (-1,)), (second, 0, (-1,))]
    for epoch, (driver, passes, ids) in enumerate(epochs):
        clock.sleep(passes)
        driver.run_epoch(epoch, [rows(*ids)])
        (line,) = [record for record in caplog.records if ": completed " in record.getMessage()]
        found.append((line.levelname, line.getMessage().partition("(")[2]))
        caplog.clear()
    assert found == [
        ("INFO", "0 retries)"),
        ("WARNING", "0 retries, 2 dead letters)"),
        ("INFO", "0 retries, 1 dead letters)"),
        ("WARNING", "0 retries, 1 dead letters)"),
        ("WARNING", "0 retries, 1 dead letters)"),
    ]


def test_the_dead_letter_sink_is_opened_only_where_something_is_refused() -> None:
    sink, letters = RefusingSink(Warehouse()), Letters()
    LocalDriver(DeadLetteringSink(sink, letters), MemoryRecoveryConfig()).run_epoch(0, [rows(1), rows(-2), rows(3)])
    assert (letters.warehouse.opened, letters.warehouse.closed) == (1, 1)
    assert (sink.warehouse.opened, sink.warehouse.closed) == (3, 3)


def test_a_query_whose_dead_letters_cannot_be_written_stops_and_publishes_nothing() -> None:
    class Broken(PlainSink):
        def build(self, step_id: str, worker_index: int, worker_count: int) -> StatelessSinkPartition[Any]:
            raise ConnectionError("the dead-letter sink is away")

    sink = RefusingSink(Warehouse())
    with pytest.raises(ConnectionError) as stopped:
        LocalDriver(DeadLetteringSink(sink, Broken()), MemoryRecoveryConfig()).run_epoch(0, [rows(1, -1)])
    assert stopped.value.__notes__ == ["In the sink 'dead_letters'.", "In the sink 'sink'."]
    assert rows_of(sink.warehouse) == []
    assert sink.warehouse.opened == sink.warehouse.closed == 1


@pytest.mark.parametrize(
    "point", ["task: after snapshot#2", "after PREPARED", "fake: published one", "after COMMITTED"]
)
def test_dead_letters_are_kept_once_wherever_the_driver_dies(point: str) -> None:
    sink, letters, recovery = RefusingSink(Warehouse()), Letters(), MemoryRecoveryConfig()
    composite = DeadLetteringSink(sink, letters)
    with crash_at(point):
        LocalDriver(composite, recovery).run_epoch(0, [rows(1, -1), rows(-2)])
    LocalDriver(composite, recovery).run_epoch(0, [rows(1, -1), rows(-2)])
    assert rows_of(sink.warehouse) == rows(1)
    assert sorted(ids_of(rows_of(letters.warehouse))) == [-2, -1]
    assert resolve(composite).guarantee() is Guarantee.EXACTLY_ONCE


@pytest.mark.parametrize("tasks", [[(-1, 1, -2, -3)], [(-1, 1), (-2,), (-3,)]], ids=["one task", "several"])
@pytest.mark.parametrize("nested", [False, True])
def test_more_than_an_epoch_may_have_fail_it_before_anything_is_published(
    tasks: list[tuple[int, ...]], nested: bool
) -> None:
    refusing, letters, recovery = RefusingSink(Warehouse()), Letters(), MemoryRecoveryConfig()

    def sink(most: int) -> Any:
        made = DeadLetteringSink(refusing, letters, max_dead_letters=most)
        return FanOutSink(a=made) if nested else made

    with pytest.raises(ValueRefusedError) as stopped:
        LocalDriver(sink(2), recovery).run_epoch(0, [rows(*ids) for ids in tasks])
    text = str(stopped.value)
    assert "more than 2 records of this epoch were rejected" in text
    assert "of them is a record: below nought" in text
    assert "raise max_dead_letters" in text
    assert rows_of(refusing.warehouse) == rows_of(letters.warehouse) == []
    assert letters.warehouse.opened == (0 if len(tasks) == 1 else 3), "a task refuses them as they come"
    LocalDriver(sink(3), recovery).run_epoch(0, [rows(*ids) for ids in tasks])
    assert (rows_of(refusing.warehouse), len(rows_of(letters.warehouse))) == (rows(1), 3)


def test_the_refusing_sink_says_how_many_there_may_be_unless_somebody_says_otherwise() -> None:
    class Strict(RefusingSink):
        def max_dead_letters(self) -> int:
            return 1

    for given, fails in (({}, True), ({"max_dead_letters": 2}, False)):
        driver = LocalDriver(DeadLetteringSink(Strict(Warehouse()), Letters(), **given), MemoryRecoveryConfig())
        with pytest.raises(ValueRefusedError) if fails else nullcontext():
            driver.run_epoch(0, [rows(-1), rows(-2)])
    with pytest.raises(ConfigurationError, match="at least 1"):
        DeadLetteringSink(Strict(Warehouse()), Letters(), max_dead_letters=0)


def test_a_sink_with_parts_has_a_dead_letter_writer_in_each_part() -> None:
    shelf, letters, recovery = RefusingShelf(Shelf()), Letters(), MemoryRecoveryConfig()
    composite = DeadLetteringSink(shelf, letters)
    assert resolve(composite).fixed
    for epoch in range(2):
        tasks = [[("0", {"id": -epoch - 1}), ("1", {"id": epoch}), ("2", {"id": -epoch - 10})]]
        LocalDriver(composite, recovery).run_epoch(epoch, tasks)
    assert values_on(shelf.shelf) == rows(0, 1)
    assert sorted(ids_of(rows_of(letters.warehouse))) == [-11, -10, -2, -1]


def test_states_of_a_dead_letter_sink_stay_as_they_are_where_nothing_is_refused() -> None:
    class Routed(RefusingShelf):
        part_fn = FixedPartitionedSink.part_fn

    shelf, letters, recovery = Routed(Shelf(), ("a", "b")), Slotted("x", "y"), MemoryRecoveryConfig()
    composite = DeadLetteringSink(shelf, letters)
    for epoch, number in enumerate((-1, 1, -2)):
        LocalDriver(composite, recovery).run_epoch(epoch, [[("0", {"id": number})]])
    assert [ids_of(found) for found in letters.rows.values()] == [[], [-1, -2]]


def test_what_a_dead_letter_sink_holds_back_is_given_back_to_it_although_nothing_is_refused() -> None:
    sink, letters, recovery = RefusingSink(Warehouse()), HoldingSink(Warehouse()), MemoryRecoveryConfig()
    composite = DeadLetteringSink(sink, _JsonHolding(letters.warehouse))
    for epoch, number in enumerate((-1, 1, 2)):
        LocalDriver(composite, recovery, options=EpochOptions(worker_count=1)).run_epoch(epoch, [rows(number)])
    assert ids_of(rows_of(letters.warehouse)) == [-1]


class _JsonHolding(HoldingSink):
    """Holds back what JSON carries."""

    def writer_state_serializer(self) -> Any:
        from outfall.serde import PickleSerializer

        return PickleSerializer()

    def target(self) -> str:
        return "held"


def test_the_columns_of_dead_letters_are_checked_before_the_first_row() -> None:
    seen = []

    class Looking(PlainSink, SupportsTarget[Any]):
        def target(self) -> str:
            return "seen"

        def check_schema(self, schema: pa.Schema) -> None:
            seen.append(schema)

    sink: Any = DeadLetteringSink(RefusingSink(Warehouse()), Looking())
    sink.check_schema(pa.schema([("id", pa.int64())]))
    assert seen == [DEAD_LETTER_SCHEMA]


def test_a_sink_that_does_not_hand_over_what_it_refuses_is_refused() -> None:
    sink: Any
    for sink in (PlainSink(), FanOutSink(a=RefusingSink(Warehouse())), FileSink("/nowhere")):
        with pytest.raises(CapabilityError, match=r"does not report rejected records.*dead_letter_table"):
            DeadLetteringSink(sink, Letters())


def test_a_partition_that_does_not_hand_over_what_its_sink_says_is_refused() -> None:
    class Promising(PlainSink, SupportsDeadLetterSink):
        pass

    for sink in (Promising(), DeadLetteringSink(Promising(), Letters())):
        with pytest.raises(CapabilityError, match=r"no dead_letters_to\(\)"):
            LocalDriver(sink, MemoryRecoveryConfig()).run_epoch(0, [rows(1)])


def test_sinks_that_cannot_take_dead_letters_are_refused() -> None:
    sink: DynamicSink[Any] = RefusingSink(Warehouse())
    with pytest.raises(ConfigurationError, match="its own dead letters"):
        DeadLetteringSink(sink, sink)
    with pytest.raises(CapabilityError, match="changes the DataFrame"):
        DeadLetteringSink(sink, Sorting())
    with pytest.raises(CapabilityError, match="needs the same rows"):
        DeadLetteringSink(sink, NeedsSameRows(Warehouse()))
    with pytest.raises(CapabilityError, match="one task"):
        DeadLetteringSink(sink, Slotted("a"))


def test_without_a_dead_letter_sink_a_refusal_stops_the_query() -> None:
    with pytest.raises(ValueRefusedError):
        LocalDriver(RefusingSink(Warehouse()), MemoryRecoveryConfig()).run_epoch(0, [rows(-1)])
