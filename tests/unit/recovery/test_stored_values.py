"""Values in the log and next to it: copied whole, read back as they were, and refused once damaged."""

from __future__ import annotations

import pytest

from outfall.errors import RecordError
from outfall.recovery import LogEntry, RecoveryLog
from outfall.recovery.entries import LARGE, StoredValue, carry_in, carry_out, copy_value, load_value, store_state
from outfall.serde import PickleSerializer
from outfall.testing import MemoryRecoveryConfig

SERIALIZER = PickleSerializer()


def log() -> RecoveryLog:
    return MemoryRecoveryConfig().open("sink")


def stored(value: object, where: RecoveryLog) -> StoredValue:
    return store_state(SERIALIZER, value, log=where, name="p", generation=1)


@pytest.mark.parametrize("size", [1, LARGE * 2])
def test_a_copied_value_needs_only_the_log_that_it_was_copied_to(size: int) -> None:
    value, source, target = b"\xff" * size, log(), log()
    record = stored(value, source)
    assert (record.blob is not None) == (size > LARGE)
    copied = copy_value(record, source=source, target=target, name="q", generation=3)
    assert load_value(SERIALIZER, copied, log=target) == value
    if size > LARGE:
        assert copied.blob is not None
        assert copied.blob.name.startswith("g3-q-")
        with pytest.raises(RecordError):
            load_value(SERIALIZER, copied, log=source)
    else:
        assert copied == record


@pytest.mark.parametrize("size", [1, LARGE * 2])
def test_a_task_without_the_log_carries_values_out_and_in(size: int) -> None:
    value, where = b"\xff" * size, log()
    record = stored(value, where)
    ticket = carry_out(record, where)
    assert load_value(SERIALIZER, ticket) == value
    again = carry_in(ticket, where, name="p", generation=2)
    assert again == record
    fresh = carry_in(StoredValue.of(SERIALIZER.version, SERIALIZER.serialize(value)), where, name="p", generation=2)
    assert (fresh.blob is not None) == (size > LARGE)
    assert load_value(SERIALIZER, fresh, log=where) == value


def test_a_value_of_exactly_the_limit_is_in_the_record() -> None:
    where = log()
    for size in (LARGE, LARGE + 1):
        found = carry_in(StoredValue.of(1, b"x" * size), where, name="p", generation=1)
        assert (found.blob is None) == (size == LARGE)


def test_a_value_without_content_is_refused() -> None:
    record = stored(b"\xff" * LARGE * 2, log())
    for damaged, where in ((record, None), (record.model_copy(update={"blob": None}), log())):
        with pytest.raises(RecordError, match="a recorded value has no content"):
            load_value(SERIALIZER, damaged, log=where)


def test_a_value_that_is_not_the_recorded_one_is_refused() -> None:
    where = log()
    record = stored(b"\xff" * LARGE * 2, where)
    assert record.blob is not None
    for change in ({"length": record.blob.length - 1}, {"sha256": "0" * 64}):
        damaged = record.model_copy(update={"blob": record.blob.model_copy(update=change)})
        with pytest.raises(RecordError, match="is not the one that was recorded"):
            load_value(SERIALIZER, damaged, log=where)


def test_the_log_has_no_entry_of_a_value() -> None:
    where = log()
    stored(b"\xff" * LARGE * 2, where)
    assert where.read() == []
    where.append(b"first", after=0)
    assert where.read() == [LogEntry(1, b"first")]
