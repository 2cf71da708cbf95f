"""Versions: each BEGIN draws a higher one than all before it, whatever the drivers do in between."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as some

from outfall.capabilities import TargetContext, WriterInitContext
from outfall.errors import FencedError, StaleWriterError, TargetError, TargetLostError
from outfall.possession.possession import check, open_target
from outfall.versioned.draws import (
    BY_SEQUENCE,
    CONTRADICTIONS,
    COUNTER,
    GAP,
    Answer,
    RecordStore,
    Version,
    VersionPort,
    draw,
    version_of,
)
from outfall.versioned.rows import ranks


class MemoryStore(RecordStore):
    """Texts in memory. `before` is called before each replacement, as by another driver."""

    where = "memory"

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}
        self.before: list[Callable[[], None]] = []

    def read(self, name: str) -> str | None:
        return self.texts.get(name)

    def replace(self, name: str, old: str | None, new: str | None) -> bool:
        if self.before:
            self.before.pop()()
        if self.texts.get(name) != old:
            return False
        if new is None:
            del self.texts[name]
        else:
            self.texts[name] = new
        return True


def begin(generation: int, token: str, completed: int | None = None) -> TargetContext[None]:
    """The context of a BEGIN whose log has all BEGINs before it."""
    begun = {number: f"token {number}" for number in range(1, generation)} | {generation: token}
    return TargetContext(
        "sink", "incarnation", 0, completed, generation == 1, {}, generation - 1, generation, token=token, begun=begun
    )


def task(generation: int, token: str) -> WriterInitContext:
    return WriterInitContext("sink", "incarnation", generation, 0, None, 1, token=token)


def open_now(store: MemoryStore, generation: int) -> None:
    opened(store, generation)


def opened(store: MemoryStore, generation: int) -> VersionPort:
    port = VersionPort(store, "step")
    open_target(port, begin(generation, f"token {generation}"), None)
    return port


def test_each_begin_has_a_higher_version_with_a_gap() -> None:
    store = MemoryStore()
    found = [version_of(opened(store, number), task(number, f"token {number}")).number for number in (1, 2, 3)]
    assert found == [GAP, 2 * GAP, 3 * GAP]


def test_steps_share_the_counter() -> None:
    store = MemoryStore()
    opened(store, 1)
    other = VersionPort(store, "other step")
    open_target(other, begin(1, "its token"), None)
    assert version_of(other, task(1, "its token")).number == 2 * GAP


def test_the_older_of_two_drivers_is_fenced_when_the_newer_one_opens_between_its_draw_and_its_record() -> None:
    store = MemoryStore()
    opened(store, 1)
    # Called before the record of generation 2 is replaced, which is the second replacement.
    store.before = [lambda: open_now(store, 3), lambda: None]
    with pytest.raises(FencedError):
        opened(store, 2)
    newest = version_of(VersionPort(store, "step"), task(3, "token 3")).number
    assert newest == 3 * GAP


def test_the_newer_driver_draws_again_if_the_older_one_opens_in_between() -> None:
    store = MemoryStore()
    opened(store, 1)
    store.before = [lambda: open_now(store, 2), lambda: None]
    opened(store, 3)
    assert version_of(VersionPort(store, "step"), task(3, "token 3")).number == 4 * GAP


def test_a_lost_counter_does_not_fall_below_the_version_of_the_step() -> None:
    store = MemoryStore()
    opened(store, 1)
    opened(store, 2)
    del store.texts[COUNTER]
    assert version_of(opened(store, 3), task(3, "token 3")).number == 3 * GAP


def test_a_damaged_counter_or_record_is_an_error() -> None:
    store = MemoryStore()
    store.texts[COUNTER] = "many"
    with pytest.raises(TargetLostError, match="not a number"):
        draw(store)
    store.texts["step"] = "{}"
    with pytest.raises(TargetLostError, match="cannot be read"):
        VersionPort(store, "step").read()


def test_a_target_without_the_record_of_completed_epochs_is_lost() -> None:
    with pytest.raises(TargetLostError, match="does not hold the data written up to epoch 4"):
        check(VersionPort(MemoryStore(), "step"), begin(3, "", completed=4))


def test_a_task_of_another_begin_gets_no_version() -> None:
    store = MemoryStore()
    port = opened(store, 2)
    with pytest.raises(FencedError):
        version_of(port, task(1, "token 1"))
    with pytest.raises(FencedError):
        version_of(port, task(2, "of a copied log"))
    with pytest.raises(StaleWriterError, match="of generation 2"):
        version_of(port, task(3, "token 3"))
    store.texts.clear()
    with pytest.raises(StaleWriterError, match="missing"):
        version_of(port, task(2, "token 2"))


class SilentStore(MemoryStore):
    """Replaces a record and does not say so, or returns it in another form."""

    def replace(self, name: str, old: str | None, new: str | None) -> bool:
        self.before.append(lambda: None)
        assert len(self.before) < 100, "asked without an end"
        return False


def test_a_store_that_contradicts_itself_ends_the_query(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr("outfall.versioned.draws.time.sleep", pauses.append)
    store = SilentStore()
    with pytest.raises(TargetError, match=r"memory does not replace the record version.*read 12 times"):
        draw(store)
    assert len(store.before) == CONTRADICTIONS
    assert 1 < sum(pauses) < 5


@pytest.mark.parametrize(
    ("stored", "token", "rank", "answer"),
    [
        (GAP, "ours", "b", Answer.WRITTEN),
        (2 * GAP, "ours", "a", Answer.REPLACED),
        (2 * GAP, "ours", "b", Answer.SAME),
        (2 * GAP, "ours", "c", Answer.OUTRANKED),
        (3 * GAP - 1, "ours", "a", Answer.REPLACED),
        (2 * GAP, "theirs", "b", Answer.STALE),
        (9 * GAP, "ours", "a", Answer.REPLACED),
        (9 * GAP, "ours", "c", Answer.OUTRANKED),
        (3 * GAP, "theirs", "a", Answer.STALE),
    ],
)
def test_what_is_stored_decides_what_becomes_of_a_write(stored: int, token: str, rank: str, answer: Answer) -> None:
    assert Version(2 * GAP, "ours").answer("b", Version(stored, token), rank) is answer


@given(some.data())
def test_writes_with_sequences_end_with_the_newest_in_any_order_and_however_often_they_are_repeated(
    data: some.DataObject,
) -> None:
    offsets = data.draw(some.lists(some.integers(-(2**63), 2**63 - 1), min_size=1, max_size=8))
    batch = pa.record_batch({"seq": pa.array(offsets, pa.int64()), "text": [f"{offset}" for offset in offsets]})
    writes = ranks(batch, "seq").to_pylist()
    arriving = data.draw(some.permutations([*writes, *data.draw(some.lists(some.sampled_from(writes)))]))
    stored = Version(GAP * 7, "a run without sequences"), "f"
    for rank in arriving:
        answer = BY_SEQUENCE.answer(rank, *stored)
        assert answer is not Answer.STALE
        if answer in (Answer.WRITTEN, Answer.REPLACED):
            stored = BY_SEQUENCE, rank
    assert stored == (BY_SEQUENCE, writes[offsets.index(max(offsets))])
    assert Version(GAP * 8, "a later run without").answer("f", *stored) is Answer.STALE
