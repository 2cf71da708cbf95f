"""What a partition holds back is stored, and comes back as it was."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outfall.async_sink import BufferedRequests, BufferedRequestsSerializer
from outfall.capabilities import BufferedRows
from outfall.errors import SerializationError, ValueRefusedError
from outfall.serde import JsonSerializer, SimpleVersionedSerializer
from outfall.testing import LocalDriver, MemoryRecoveryConfig
from tests.unit.support.async_destination import Destination, Letters, TextSink, opened

JSON: BufferedRequestsSerializer[Any] = BufferedRequestsSerializer(JsonSerializer())


class Raw(SimpleVersionedSerializer[bytes]):
    """Bytes as they are; its second version."""

    @property
    def version(self) -> int:
        return 2

    def serialize(self, value: bytes) -> bytes:
        return value

    def deserialize(self, version: int, data: bytes) -> bytes:
        self.check_version(version)
        return data if version == 2 else data.upper()


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.recursive(st.text() | st.integers() | st.booleans() | st.none(), st.lists, max_leaves=3), max_size=8)
)
def test_entries_come_back_in_value_and_order(entries: list[Any]) -> None:
    assert JSON.deserialize(2, JSON.serialize(BufferedRequests(entries))).entries == entries


@settings(max_examples=40)
@given(st.lists(st.binary()))
def test_bytes_come_back_through_a_serializer_of_their_own(entries: list[bytes]) -> None:
    serializer = BufferedRequestsSerializer(Raw())
    assert serializer.deserialize(2, serializer.serialize(BufferedRequests(entries))).entries == entries


@pytest.mark.parametrize("entries", [[], [""], [{"key": "Zürich 𝄞", "data": "東京"}]])
def test_no_entries_empty_ones_and_keys_that_are_not_ascii(entries: list[Any]) -> None:
    assert JSON.deserialize(2, JSON.serialize(BufferedRequests(entries))).entries == entries


def test_the_time_of_the_oldest_comes_back_and_the_first_version_had_none() -> None:
    held = BufferedRequests(["a"], datetime(2026, 11, 21, 12, 0, 0, 5, tzinfo=UTC))
    assert JSON.deserialize(2, JSON.serialize(held)) == held
    assert JSON.deserialize(1, b'{"version":1,"entries":["ImEi"]}') == BufferedRequests(["a"])


def test_the_entries_own_version_is_stored_and_an_older_one_read() -> None:
    old = b'{"version":1,"entries":["YWI="]}'
    assert BufferedRequestsSerializer(Raw()).deserialize(1, old).entries == [b"AB"]
    with pytest.raises(SerializationError, match="reads versions 1 to 2 but found version 3"):
        BufferedRequestsSerializer(Raw()).deserialize(1, b'{"version":3,"entries":["YWI="]}')


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"version":1,"entries":["?"]}', b'{"version":1,"entries":1}'])
def test_damaged_state_is_an_error(data: bytes) -> None:
    with pytest.raises(SerializationError, match="damaged"):
        JSON.deserialize(1, data)
    with pytest.raises(SerializationError, match="damaged"):
        JSON.deserialize(2, b'{"version":1,"oldest":7,"entries":[]}')


def test_a_newer_format_is_an_error() -> None:
    with pytest.raises(SerializationError, match="reads versions 1 to 2 but found version 3"):
        JSON.deserialize(3, JSON.serialize(BufferedRequests([])))


def test_several_states_follow_each_other_before_new_rows() -> None:
    partition, destination = opened()
    partition.restore(BufferedRequests(["a", "b"]))
    partition.restore(BufferedRequests([]))
    partition.restore(BufferedRequests(["c"]))
    assert partition.buffered == 3
    partition.write_batch(["d"])
    partition.flush(True)
    assert destination.requests == [["a", "b", "c", "d"]]


def test_more_states_than_the_buffer_may_hold_are_sent_as_they_are_taken_in() -> None:
    partition, destination = opened(max_batch_size=2, max_buffered_requests=3)
    partition.restore(BufferedRequests([str(number) for number in range(50)]))
    partition.flush(True)
    assert sum(map(len, destination.requests)) == 50


def test_a_restored_writer_without_rows_still_delivers_or_holds() -> None:
    partition, destination = opened(across_epochs=True)
    partition.restore(BufferedRequests(["a"]))
    partition.flush(False)
    assert partition.snapshot_state(1)[0].entries == ["a"]
    partition.flush(True)
    assert destination.requests == [["a"]]


def test_a_record_over_a_lowered_limit_is_a_dead_letter_or_says_what_to_do() -> None:
    partition, destination = opened(max_record_size_in_bytes=3)
    dead = Letters()
    partition.restore(BufferedRequests(["long", "ok"]))
    partition.dead_letters_to(dead)
    partition.flush(True)
    assert (dead.rows, destination.requests) == (["long"], [["ok"]])

    partition, _ = opened(max_record_size_in_bytes=3)
    partition.restore(BufferedRequests(["long"]))
    with pytest.raises(ValueRefusedError, match="It has 4 bytes, and max_record_size_in_bytes is 3"):
        partition.flush(True)


# How long it may wait, whatever the epochs.


def test_twenty_short_epochs_do_not_put_off_what_waits() -> None:
    """Epochs of 4 s, each with a row: with 5 s in the buffer each second epoch sends what the one before held."""
    destination = Destination()
    sink = TextSink(destination, across_epochs=True, max_time_in_buffer_ms=5000)
    serializer = sink.writer_state_serializer()
    waiting: list[BufferedRequests[str]] = []
    for epoch in range(20):
        writer = sink.open()
        for state in waiting:
            writer.restore(state)
        writer.write_batch([str(epoch)])
        destination.events.advance(4.0)
        writer.flush(False)
        waiting = [serializer.deserialize(2, serializer.serialize(state)) for state in writer.snapshot_state(epoch)]
    assert destination.requests == [[str(epoch), str(epoch + 1)] for epoch in range(0, 20, 2)]


def test_a_writer_without_rows_sends_what_has_waited_too_long_and_holds_the_rest() -> None:
    destination = Destination()
    sink = TextSink(destination, across_epochs=True, max_time_in_buffer_ms=5000)
    now = destination.events.utc()
    for seconds in (4.9, 5.0):
        writer = sink.open()
        writer.restore(BufferedRequests([f"{seconds}"], now - timedelta(seconds=seconds)))
        writer.flush(False)
        held = writer.snapshot_state(0)
        assert [entry for state in held for entry in state.entries] == (["4.9"] if seconds == 4.9 else [])
    assert destination.requests == [["5.0"]]


def test_what_is_held_says_since_when_however_often_it_is_held_again() -> None:
    destination = Destination()
    sink = TextSink(destination, across_epochs=True, max_time_in_buffer_ms=60_000)
    beginning = destination.events.utc()
    writer = sink.open()
    writer.write_batch(["a"])
    destination.events.advance(7.0)
    writer.write_batch(["b"])
    (state,) = writer.snapshot_state(0)
    assert (state.oldest, sink.buffered_rows(state)) == (beginning, BufferedRows(2, beginning))
    for _ in range(2):
        writer = sink.open()
        writer.restore(state)
        destination.events.advance(7.0)
        (state,) = writer.snapshot_state(0)
    assert state.oldest == beginning
    writer = sink.open()
    writer.restore(BufferedRequests(["old"]))
    (state,) = writer.snapshot_state(0)
    assert state.oldest == destination.events.utc(), "of version 1 it is not known"


def test_a_clock_that_was_put_back_makes_nothing_wait_longer() -> None:
    destination = Destination()
    sink = TextSink(destination, across_epochs=True, max_time_in_buffer_ms=5000)
    writer = sink.open()
    writer.restore(BufferedRequests(["a"], destination.events.utc() + timedelta(hours=1)))
    writer.write_batch([])
    destination.events.advance(5.0)
    writer.flush(False)
    assert destination.requests == [["a"]]


def test_states_recorded_with_across_epochs_are_delivered_without_it() -> None:
    destination = Destination()
    sink = TextSink(destination, across_epochs=True)
    writer = sink.open()
    writer.write_batch(["a"])
    writer.flush(False)
    (state,) = writer.snapshot_state(0)
    later = TextSink(destination).restore_writer(None, [state])  # type: ignore[arg-type]
    later.write_batch(["b"])
    later.flush(True)
    assert destination.requests == [["a", "b"]]


def test_an_epoch_of_the_engine_counts_what_its_tasks_sent() -> None:
    destination = Destination()
    driver = LocalDriver(TextSink(destination, max_batch_size=2), MemoryRecoveryConfig())
    result = driver.run_epoch(0, [["a", "b", "c"], ["d"]])
    assert result.counts["sent"] == 4
    assert result.counts["requests"] == 3
    assert result.counts["max_in_flight"] == 1
    assert result.counts["num_bytes_out"] == 4
