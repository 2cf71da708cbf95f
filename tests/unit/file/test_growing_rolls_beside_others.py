"""Growing files that roll: segments that somebody else made are kept, and refused where they are in the way."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from outfall.errors import StaleWriterError, TargetNotEmptyError
from outfall.trace_points import listen
from tests.unit.support.file_target import OTHERS, GrowingDriver, growing, ids, rows
from tests.unit.support.segments import PART, ROW, contents, epoch, lose, names, segment, write_each


@pytest.fixture
def driver(out: Path) -> GrowingDriver:
    """Two rows fill a segment."""
    return GrowingDriver(growing(out, parts=2, roll_bytes=2 * ROW))


@pytest.fixture
def existing(out: Path) -> Iterator[dict[str, str]]:
    """Somebody's segments, of which one is gone, and a file without a number."""
    files = {PART: '{"id":-3', segment(4): '{"id":-2}\n', segment(6): '{"id":-1}\n'}
    out.mkdir()
    for name, text in files.items():
        (out / name).write_text(text)
    yield files
    for name, text in files.items():
        assert not (out / name).exists() or (out / name).read_text() == text


@pytest.mark.parametrize("rolls", [2 * ROW, None])
def test_resuming_begins_after_the_highest_number_and_leaves_the_rest_alone(
    out: Path, existing: dict[str, str], rolls: int | None
) -> None:
    driver = GrowingDriver(growing(out, parts=2, roll_bytes=rolls, on_existing="resume"))
    lose(driver, 7, 8, 9)
    epoch(driver, 1, 2, 3, attempt=1)
    assert set(existing) <= set(names(out))
    found = {name: (out / name).read_text() for name in names(out) if name not in existing}
    if rolls:
        assert found == {segment(7): '{"id":1}\n{"id":2}\n', segment(8): '{"id":3}\n'}
    else:
        assert found == {segment(7): '{"id":1}\n{"id":2}\n{"id":3}\n'}


def test_first_contact_with_segments_is_refused_or_they_are_deleted(out: Path, existing: dict[str, str]) -> None:
    with pytest.raises(TargetNotEmptyError):
        GrowingDriver(growing(out, roll_bytes=1)).begin()
    driver = GrowingDriver(growing(out, roll_bytes=2 * ROW, on_existing="overwrite"))
    epoch(driver, 1, 2, 3)
    assert contents(out) == {segment(0): [1, 2], segment(1): [3]}


@pytest.mark.parametrize("rolls", [2 * ROW, None])
def test_an_added_part_with_segments_of_somebody_is_refused(
    driver: GrowingDriver, out: Path, rolls: int | None
) -> None:
    epoch(driver, 1)
    name = segment(0, "part-00002.jsonl")
    (out / name).write_text("x")
    driver.sink = growing(out, parts=3, roll_bytes=rolls)
    with pytest.raises(TargetNotEmptyError, match=f"{name} holds 1 bytes"):
        driver.begin()


@pytest.mark.parametrize(("roll_bytes", "number"), [(None, 0), (None, 5), (1, 1), (1, 5)])
def test_a_segment_that_somebody_else_made_is_refused_and_kept(out: Path, roll_bytes: int | None, number: int) -> None:
    driver = GrowingDriver(growing(out, roll_bytes=roll_bytes))
    driver.run({PART: rows(1)})
    theirs = out / segment(number)
    theirs.write_text("theirs\n")
    restarted = driver.restored_copy(growing(out, roll_bytes=roll_bytes))
    # One that does not follow ours is found at the next start.
    for each in (restarted,) if number == 5 else (driver, restarted):
        with pytest.raises(TargetNotEmptyError, match=f"{theirs} holds 7 bytes that are not recorded"):
            each.begin()
    assert theirs.read_text() == "theirs\n"


def test_a_file_in_the_place_of_the_next_segment_is_not_written_into(driver: GrowingDriver, out: Path) -> None:
    epoch(driver, 1, 2)
    driver.begin()
    part = driver.part()
    (out / segment(1)).write_text("somebody's\n")
    with pytest.raises(TargetNotEmptyError, match=segment(1)):
        write_each(part, 3)
    part.close()
    assert (out / segment(1)).read_text() == "somebody's\n"


@pytest.mark.parametrize("suffix", ["jsonl", "csv"])
def test_a_query_whose_directory_is_being_overwritten_begins_no_segment(out: Path, suffix: str) -> None:
    first = GrowingDriver(growing(out, parts=2, roll_bytes=1, format=suffix))
    first.begin()
    part = first.part(f"part-00001.{suffix}")
    part.write_batch(rows(1))
    part.flush(True)
    refused: list[Exception] = []

    def go_on(step: str) -> None:
        if step == "file: existing deleted" and not refused:
            try:
                part.write_batch(rows(2))
            except StaleWriterError as error:
                refused.append(error)

    second = GrowingDriver(growing(out, roll_bytes=1, on_existing="overwrite"), incarnation=OTHERS)
    with ExitStack() as stack:
        stack.callback(listen(go_on))
        second.run({PART: rows(9)})
    assert len(refused) == 1
    assert ids(out) == [9]
    part.close()
