"""What the ledger of parts says about a part that is to be written, sealed or gone on with."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest

from outfall.capabilities import WriterInitContext
from outfall.errors import FencedError, OutfallError, ReplayDiffersError, TargetAheadError, TargetLostError
from outfall.part_ledger.checks import (
    PartContext,
    PartCount,
    PartRow,
    check_sealed,
    check_states,
    check_step,
    missing_parts,
)
from outfall.target_record import TargetRecord

PLACE = PartContext("t", "sink", epoch=5)
WRITER = WriterInitContext("sink", "incarnation", 9, 5, part="0", attempt=1, token="ours")
STEP = TargetRecord(generation=9, token="ours", epoch=4)
BEFORE = PartRow("0", generation=8, epoch=4, attempt=0, next_offset=10, rows=3, hash=7)
AFTER = PartRow("0", generation=9, epoch=5, attempt=1, next_offset=12, rows=2, hash=-8)


def missing(found: PartRow | None, step: TargetRecord | None = STEP, wanted: PartRow = AFTER) -> bool:
    parts = {} if found is None else {"0": found}
    return bool(missing_parts(PLACE, check_step("t", step, WRITER), parts, {"0": wanted}))


def test_a_count_says_what_the_ledger_is_to_hold() -> None:
    count = PartCount("0", 10)
    assert (count.next_offset, count.row(WRITER).rows) == (10, 0)
    batch = pa.RecordBatch.from_pydict({"id": [1, 2]})
    count.hash.add(batch)
    row = count.row(WRITER)
    assert (row.part, row.generation, row.epoch, row.attempt, row.next_offset, row.rows) == ("0", 9, 5, 1, 12, 2)
    other = PartCount("0", 10)
    other.hash.add(batch.take(pa.array([1, 0])))
    assert row.same_rows(other.row(WRITER))
    other.hash.add(batch)
    assert not row.same_rows(other.row(WRITER))


def test_what_else_can_be_done_about_other_rows_is_the_sinks_to_say() -> None:
    place = replace(PLACE, alternative="; or take another sink")
    step = TargetRecord(generation=9, token="ours", epoch=4)
    with pytest.raises(ReplayDiffersError, match="original rows; or take another sink"):
        missing_parts(place, step, {"0": replace(AFTER, hash=8)}, {"0": AFTER})


def test_rows_that_come_for_the_first_time_are_missing() -> None:
    assert missing(BEFORE)
    assert missing(replace(BEFORE, epoch=None))
    assert missing(replace(BEFORE, epoch=1))


def test_a_step_that_a_release_without_tokens_wrote_is_not_compared() -> None:
    assert missing(BEFORE, replace(STEP, token=None))


def test_rows_that_are_there_are_not_whoever_wrote_them() -> None:
    assert not missing(AFTER)
    assert not missing(replace(AFTER, attempt=0, generation=7))
    assert not missing(AFTER, replace(STEP, epoch=5))


@pytest.mark.parametrize(
    ("found", "step", "error"),
    [
        (replace(AFTER, rows=3, next_offset=13), STEP, ReplayDiffersError),
        (replace(AFTER, hash=8), STEP, ReplayDiffersError),
        (BEFORE, replace(STEP, epoch=5), ReplayDiffersError),
        (replace(BEFORE, epoch=6), STEP, FencedError),
        (AFTER, replace(STEP, generation=10), FencedError),
        (BEFORE, replace(STEP, generation=10), FencedError),
        (BEFORE, replace(STEP, token="another's"), FencedError),
        (AFTER, replace(STEP, token="another's"), FencedError),
        (None, STEP, TargetLostError),
        (BEFORE, None, TargetLostError),
        (BEFORE, replace(STEP, generation=8), TargetLostError),
        (replace(BEFORE, next_offset=9), STEP, TargetLostError),
        (replace(BEFORE, next_offset=11), STEP, TargetAheadError),
    ],
)
def test_who_must_not_write_is_told_why(
    found: PartRow | None, step: TargetRecord | None, error: type[OutfallError]
) -> None:
    with pytest.raises(error, match=r"What to do"):
        missing(found, step)


def test_a_seal_counts_the_rows_of_its_epoch() -> None:
    other = replace(BEFORE, part="1")
    assert check_sealed(PLACE, {"0": AFTER, "1": other}, {"0": 12, "1": 10}) == 2


@pytest.mark.parametrize(("offset", "error"), [(10, ReplayDiffersError), (13, TargetLostError)])
def test_a_part_that_is_not_what_its_state_says_is_not_sealed(offset: int, error: type[OutfallError]) -> None:
    with pytest.raises(error, match="part '0'"):
        check_sealed(PLACE, {"0": AFTER}, {"0": offset})
    with pytest.raises(TargetLostError):
        check_sealed(PLACE, {}, {"0": offset})


def test_a_ledger_may_be_ahead_by_the_epoch_that_begins() -> None:
    check_states(PLACE, 4, {"0": BEFORE}, {"0": 10}, opened=True)
    check_states(PLACE, 4, {"0": AFTER}, {"0": 10}, opened=True)
    check_states(PLACE, None, {}, {}, opened=True)
    check_states(PLACE, 4, {}, {"0": 41}, opened=False)
    check_states(replace(PLACE, epoch=0), None, {"0": replace(AFTER, epoch=0, next_offset=2)}, {"0": 0}, opened=True)


@pytest.mark.parametrize(
    ("found", "offset", "error"),
    [
        (AFTER, 9, TargetAheadError),
        (AFTER, 11, TargetLostError),
        (BEFORE, 9, TargetAheadError),
        (BEFORE, 11, TargetLostError),
        (replace(AFTER, epoch=6), 10, TargetAheadError),
        (None, 10, TargetLostError),
    ],
)
def test_a_ledger_that_is_anything_else_is_refused(
    found: PartRow | None, offset: int, error: type[OutfallError]
) -> None:
    with pytest.raises(error):
        check_states(PLACE, 4, {} if found is None else {"0": found}, {"0": offset}, opened=True)
