"""Rows by their source's offsets: each is written once, in whatever order and however often it comes."""

from __future__ import annotations

import json
import random
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outfall.capabilities import Guarantee
from outfall.capability_checks import resolve
from outfall.errors import ConfigurationError, ForeignRecordsError, ValueRefusedError
from outfall.protocol.step import EpochOptions
from outfall.protocol.task import EpochTask, TaskIdentity
from outfall.serde import ModelSerializer
from outfall.testing import LocalDriver, MemoryRecoveryConfig, crash_at
from outfall.wrappers import DeadLetteringSink, ExactlyOnceSink, FanOutSink
from outfall.wrappers.exactly_once import SeenSink
from outfall.wrappers.offsets import MOST_RANGES, SeenOffsets, SeenState, split_by_seen
from tests.unit.support.fanned import NamedStagingSink
from tests.unit.support.warehouse import Warehouse, rows_of
from tests.unit.wrappers.test_dead_lettering import Letters

SCHEMA = pa.schema([("topic", pa.string()), ("partition", pa.int32()), ("offset", pa.int64())])


def batch(*offsets: int, partition: int = 0, topic: str = "t") -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(
        [{"topic": topic, "partition": partition, "offset": offset} for offset in offsets], SCHEMA
    )


def staged() -> NamedStagingSink:
    return NamedStagingSink(Warehouse())


def once(target: Any, **options: Any) -> Any:
    return ExactlyOnceSink(target, **{"offset": "offset", "source_partition": "partition"} | options)


def run(sink: Any, recovery: Any, epoch: int, *batches: pa.RecordBatch, part: str = "00000") -> dict[str, int]:
    driver = LocalDriver(sink, recovery)
    coordinator = driver.coordinator()
    ticket = coordinator.begin(epoch)
    answer = EpochTask(sink, ticket, TaskIdentity(epoch, 0, 0)).run((part, item) for item in batches)
    return coordinator.finish(ticket, [answer]).counts


def offsets_in(target: NamedStagingSink) -> list[int]:
    return [row["offset"] for row in rows_of(target.warehouse)]


def test_rows_that_come_again_are_dropped_within_a_batch_an_epoch_and_across_restarts() -> None:
    target, recovery = staged(), MemoryRecoveryConfig()
    counts = run(once(target), recovery, 0, batch(3, 1, 3, 2), batch(2, 4))
    assert offsets_in(target) == [3, 1, 2, 4]
    assert counts["duplicates"] == 2
    run(once(target), recovery, 1, batch(0, 1, 2, 3, 4, 5))
    assert offsets_in(target) == [3, 1, 2, 4, 0, 5]


def test_offsets_of_other_partitions_and_topics_are_others() -> None:
    target, recovery = staged(), MemoryRecoveryConfig()
    sink = once(target, source_partition=["topic", "partition"])
    mixed = pa.concat_tables(
        [pa.Table.from_batches([batch(1, 2, partition=p, topic=t)]) for p in (0, 1) for t in ("a", "b")]
    ).combine_chunks()
    run(sink, recovery, 0, *mixed.to_batches())
    assert len(offsets_in(target)) == 8
    run(sink, recovery, 1, *mixed.to_batches(), batch(2, 3, partition=1, topic="a"))
    assert len(offsets_in(target)) == 9


def test_rows_keep_their_order_where_some_are_dropped() -> None:
    target, recovery = staged(), MemoryRecoveryConfig()
    run(once(target), recovery, 0, batch(4))
    rows = pa.Table.from_batches([batch(9, partition=1), batch(5, 4), batch(8, partition=1), batch(3)]).combine_chunks()
    run(once(target), recovery, 1, *rows.to_batches())
    assert offsets_in(target) == [4, 9, 5, 8, 3]


def test_every_gap_is_filled_by_the_row_that_comes_late() -> None:
    target, recovery = staged(), MemoryRecoveryConfig()
    run(once(target), recovery, 0, batch(*range(0, 1000, 2)))
    run(once(target), recovery, 1, batch(*range(1000)))
    assert sorted(offsets_in(target)) == list(range(1000))


def with_markers(transactions: int, size: int = 4) -> list[int]:
    """Offsets of a topic that is written in transactions: each leaves a record, which is no row."""
    return [t * (size + 1) + i for t in range(transactions) for i in range(size)]


def test_transaction_markers_do_not_keep_memory_growing() -> None:
    seen, sizes = SeenOffsets(), []
    offsets = with_markers(30_000)
    for start in range(0, len(offsets), 4000):
        chunk = pa.array(offsets[start : start + 4000])
        split = split_by_seen(chunk, None, seen)
        assert len(split.new) == len(chunk)
        seen.add(split.runs)
        seen.forget(window=100)
        sizes.append(len(ModelSerializer(SeenState).serialize(SeenState(partitions={"0": seen}))))
    assert len(seen.ranges) <= MOST_RANGES
    assert max(sizes) < 64 * 1024


def test_the_floor_itself_is_below_the_window_and_the_next_offset_is_not() -> None:
    found = split_by_seen(pa.array([4, 5, 6]), None, SeenOffsets(floor=5, ranges=[(8, 9)]))
    assert (found.below.to_pylist(), found.new.to_pylist()) == ([0, 1], [2])


def test_what_lies_in_the_window_is_never_given_up() -> None:
    seen = SeenOffsets()
    seen.add([(i, i) for i in range(0, 20_000, 2)])
    seen.forget(window=15_000)
    assert seen.floor < 19_998 - 15_000
    assert not len(split_by_seen(pa.array(range(4999, 19_999)), None, seen).below)
    assert len(split_by_seen(pa.array(range(4999, 19_999)), None, seen).new) == 7500


def overfull() -> tuple[Any, Any, MemoryRecoveryConfig]:
    """A sink that has given up what it saw of old."""
    target, recovery = staged(), MemoryRecoveryConfig()
    run(once(target, window=10), recovery, 0, batch(*range(0, 2 * MOST_RANGES + 20, 2)))
    return once(target, window=10), target, recovery


def test_a_row_of_which_nobody_knows_whether_it_was_written_stops_the_query() -> None:
    sink, target, recovery = overfull()
    before = offsets_in(target)
    with pytest.raises(ValueRefusedError, match=r"offset 1, and the offsets seen up to .* are no longer stored"):
        run(sink, recovery, 1, batch(1))
    assert offsets_in(target) == before


def test_rows_that_do_not_say_where_they_come_from_become_dead_letters_and_the_others_go_through() -> None:
    target, letters, recovery = staged(), Letters(), MemoryRecoveryConfig()
    rows = pa.RecordBatch.from_pylist(
        [{"topic": f"{partition}/{offset}", "partition": partition, "offset": offset}
         for partition, offset in [(0, 1), (0, None), (None, 2), (1, 3), (None, None)]], SCHEMA,
    )  # fmt: skip
    only = rows.slice(1, 1)
    counts = run(once(target, dead_letter=letters), recovery, 0, rows, only)
    assert offsets_in(target) == [1, 3]
    refused = sorted((json.loads(letter["row"])["topic"], letter["reason"]) for letter in rows_of(letters.warehouse))
    assert [topic for topic, _ in refused] == ["0/None", "0/None", "None/2", "None/None"]
    assert refused[0][1] == "its 'offset' is NULL, which identifies its source position"
    assert refused[2][1] == "its 'partition' is NULL, which identifies its source position"
    assert counts["dead_letters"] == 4
    assert "duplicates" not in counts


def test_a_negative_offset_is_refused_as_such() -> None:
    sink = once(staged())
    with pytest.raises(ValueRefusedError, match=r"partition 0 has the offset -3\..*Offsets are integers from 0"):
        run(sink, MemoryRecoveryConfig(), 0, batch(1, -3))
    letters = Letters()
    run(once(staged(), dead_letter=letters), MemoryRecoveryConfig(), 0, batch(1, -3))
    assert [letter["reason"] for letter in rows_of(letters.warehouse)] == ["offsets are integers from 0"]


def test_a_row_of_which_nobody_knows_becomes_a_dead_letter_and_the_others_go_through() -> None:
    target, letters, recovery = staged(), Letters(), MemoryRecoveryConfig()
    sink = ExactlyOnceSink(target, offset="offset", source_partition="partition", window=10, dead_letter=letters)
    assert isinstance(sink.delegate, DeadLetteringSink)
    run(sink, recovery, 0, batch(*range(0, 2 * MOST_RANGES + 20, 2)))
    last = 2 * MOST_RANGES + 19
    counts = run(sink, recovery, 1, batch(0, 1, last))
    assert offsets_in(target)[-1] == last
    assert len(rows_of(letters.warehouse)) == counts["dead_letters"] == 2


@pytest.mark.parametrize("point", ["task: after write", "task: after snapshot", "after PREPARED", "after COMMITTED"])
def test_rows_are_written_once_wherever_the_driver_dies(point: str) -> None:
    target, recovery = staged(), MemoryRecoveryConfig()
    with crash_at(point):
        run(once(target), recovery, 0, batch(1, 2))
    run(once(target), recovery, 0, batch(1, 2))
    run(once(target), recovery, 1, batch(2, 3))
    assert offsets_in(target) == [1, 2, 3]


@pytest.mark.parametrize("changed", [{"offset": "id"}, {"source_partition": "topic"}])
@pytest.mark.parametrize("fanned", [False, True])
def test_offsets_that_were_seen_in_other_columns_are_refused(changed: dict[str, Any], fanned: bool) -> None:
    target, recovery = staged(), MemoryRecoveryConfig()

    def sink(**options: Any) -> Any:
        return FanOutSink([once(target, **options)]) if fanned else once(target, **options)

    (option,) = changed
    run(sink(), recovery, 0, batch(1, 2))
    with pytest.raises(ForeignRecordsError, match=f"{option}=.*{option}="):
        run(sink(**changed), recovery, 1, batch(3))
    run(sink(window=5), recovery, 1, batch(3))
    assert offsets_in(target) == [1, 2, 3]


@pytest.mark.parametrize("fanned", [False, True])
def test_another_key_for_several_parts_is_refused(fanned: bool) -> None:
    target, recovery = staged(), MemoryRecoveryConfig()

    def epoch(number: int, key: str | None, *offsets: int) -> None:
        sink = once(target, parts=2)
        sink = FanOutSink([sink]) if fanned else sink
        driver = LocalDriver(sink, recovery, options=EpochOptions(key=key))
        coordinator = driver.coordinator()
        ticket = coordinator.begin(number)
        task = EpochTask(sink, ticket, TaskIdentity(number, 0, 0))
        coordinator.finish(ticket, [task.run([(ticket.parts[0], batch(*offsets))])])

    epoch(0, None, 1)
    epoch(1, "partition", 2)
    with pytest.raises(ForeignRecordsError, match="by key='partition', and now by key='topic'"):
        epoch(2, "topic", 2)
    epoch(2, "partition", 2, 3)
    assert offsets_in(target) == [1, 2, 3]


def test_one_part_sees_all_rows_by_whatever_key_they_come() -> None:
    target, recovery = staged(), MemoryRecoveryConfig()
    for number, key in enumerate(["partition", "topic"]):
        driver = LocalDriver(once(target), recovery, options=EpochOptions(key=key))
        coordinator = driver.coordinator()
        ticket = coordinator.begin(number)
        task = EpochTask(driver.sink, ticket, TaskIdentity(number, 0, 0))
        coordinator.finish(ticket, [task.run([(ticket.parts[0], batch(1, number))])])
    assert offsets_in(target) == [1, 0]


def test_a_state_that_does_not_say_its_columns_goes_on_and_says_them_then() -> None:
    text = b'{"partitions":{"0":{"floor":-1,"ranges":[[1,2]]}}}'
    options = once(staged()).options
    part = SeenSink(options).build_part("sink", "00000", ModelSerializer(SeenState).deserialize(1, text))
    assert list(part.of("0").overlapping(0, 9)) == [(1, 2)]
    assert (part.snapshot().offset, part.snapshot().source_partition) == ("offset", ["partition"])


NAMES = [
    (pa.int32(), 7),
    (pa.uint64(), 2**64 - 1),
    (pa.string(), "a"),
    (pa.large_string(), "a"),
    (pa.binary(), b"\x00\xff"),
    (pa.bool_(), False),
    (pa.date32(), date(2013, 1, 1)),
    (pa.timestamp("us", "UTC"), datetime(2013, 1, 1, tzinfo=UTC)),
    (pa.decimal128(5, 2), Decimal("1.50")),
]
NO_NAMES = [
    (pa.float64(), float("nan")),
    (pa.float32(), 1.5),
    (pa.struct([("a", pa.int32())]), {"a": 1}),
    (pa.list_(pa.int32()), [1]),
    (pa.map_(pa.string(), pa.int32()), [("a", 1)]),
]
NO_OFFSETS = [(pa.uint64(), 2**64 - 1), (pa.decimal128(20, 0), Decimal(1)), (pa.float64(), 1.0), (pa.string(), "1")]


def typed(**given: tuple[pa.DataType, Any]) -> pa.RecordBatch:
    """A row, and it again."""
    columns = {"partition": (pa.int32(), 0), "offset": (pa.int64(), 1)} | given
    return pa.record_batch({name: pa.array([value, value], kind) for name, (kind, value) in columns.items()})


@pytest.mark.parametrize("partition", NAMES, ids=lambda typed: str(typed[0]))
def test_each_type_that_may_name_a_source_partition_does(partition: tuple[pa.DataType, Any]) -> None:
    target, recovery, rows = staged(), MemoryRecoveryConfig(), typed(partition=partition)
    once(target).check_schema(rows.schema)
    assert run(once(target), recovery, 0, rows)["duplicates"] == 1
    assert run(once(target), recovery, 1, rows)["duplicates"] == 2


@pytest.mark.parametrize("partition", NO_NAMES, ids=lambda typed: str(typed[0]))
def test_a_type_that_does_not_name_a_source_partition_is_refused(partition: tuple[pa.DataType, Any]) -> None:
    refused(typed(partition=partition), "'partition' has the type")


@pytest.mark.parametrize("offset", NO_OFFSETS, ids=lambda typed: str(typed[0]))
def test_a_type_whose_values_are_no_offsets_is_refused(offset: tuple[pa.DataType, Any]) -> None:
    refused(typed(offset=offset), "'offset' has the type")


def refused(rows: pa.RecordBatch, text: str) -> None:
    """Before the first row, and by the task where the columns were not known before."""
    with pytest.raises(ConfigurationError, match=text):
        once(staged()).check_schema(rows.schema)
    with pytest.raises(ConfigurationError, match=text):
        run(once(staged()), MemoryRecoveryConfig(), 0, rows)


def test_another_number_of_parts_is_refused() -> None:
    recovery = MemoryRecoveryConfig()
    run(once(staged(), parts=2), recovery, 0, batch(1))
    with pytest.raises(ForeignRecordsError, match="2 parts, and is seen-offsets, target 3 parts"):
        run(once(staged(), parts=3), recovery, 1, batch(1))


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        (pa.schema([("partition", pa.int32())]), "requires the column 'offset'"),
        (pa.schema([("offset", pa.int64())]), "requires the column 'partition'"),
        (
            pa.schema([("offset", pa.string()), ("partition", pa.int32())]),
            "has the type string, and offsets must be signed integers",
        ),
    ],
)
def test_columns_that_will_not_do_are_refused_before_the_first_row(schema: pa.Schema, text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
        once(staged()).check_schema(schema)


def test_a_row_without_an_offset_is_refused() -> None:
    empty = pa.RecordBatch.from_pylist([{"topic": "t", "partition": 0, "offset": None}], SCHEMA)
    with pytest.raises(ValueRefusedError, match="'offset' is NULL"):
        run(once(staged()), MemoryRecoveryConfig(), 0, empty)


def test_it_promises_what_the_target_promises_and_says_what_it_needs() -> None:
    assert resolve(once(staged())).guarantee() is Guarantee.EXACTLY_ONCE
    assert resolve(once(staged())).requirements() == ("a source that returns a row with the same offset in each read",)


@given(
    batches=st.lists(st.lists(st.integers(0, 40), min_size=1, max_size=12), max_size=8),
    gaps=st.sets(st.integers(0, 40), max_size=10),
)
def test_any_offsets_in_any_order_are_new_once(batches: list[list[int]], gaps: set[int]) -> None:
    seen, model = SeenOffsets(), set[int]()
    for offsets in batches:
        present = [offset for offset in offsets if offset not in gaps]
        if not present:
            continue
        found = split_by_seen(pa.array(present, pa.int64()), None, seen)
        expected = [i for i, o in enumerate(present) if o not in model and o not in present[:i]]
        assert sorted(found.new.to_pylist()) == expected
        seen.add(found.runs)
        model |= set(present)
        assert {o for first, last in seen.ranges for o in range(first, last + 1)} == model
        assert all(a[1] + 1 < b[0] for a, b in zip(seen.ranges, seen.ranges[1:], strict=False))


def test_nothing_that_was_not_written_is_ever_dropped_in_a_long_history() -> None:
    random_source, seen, written = random.Random(7), SeenOffsets(), set[int]()
    for epoch in range(300):
        start = epoch * 50
        offsets = [start + random_source.randint(-400, 50) for _ in range(60)]
        present = [o for o in offsets if o >= 0 and o % 3]
        if not present:
            continue
        found = split_by_seen(pa.array(present, pa.int64()), None, seen)
        new = {present[i] for i in found.new.to_pylist()}
        below = {present[i] for i in found.below.to_pylist()}
        assert not new & written
        assert set(present) - new - below <= written
        written |= new
        seen.add(found.runs)
        seen.forget(window=60)


def test_a_batch_without_the_columns_of_the_source_is_refused() -> None:
    for name in ("offset", "partition"):
        lacking = batch(1).drop_columns([name])
        with pytest.raises(ValueRefusedError, match=f"a row has no column '{name}'"):
            run(once(staged()), MemoryRecoveryConfig(), 0, lacking)
