"""Growing files that roll: segments, and what becomes of those that do not count."""

from __future__ import annotations

import gzip
import json
import os
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from outfall.errors import SealError, StaleWriterError, TargetAheadError, TargetLostError
from outfall.file import FileSink
from outfall.file.growing.part_files import FileState, file_name, part_name, segments_among
from outfall.storage.rolling import RollBounds
from outfall.testing.crash_points import crash_at
from tests.one_each import thorough
from tests.unit.support.file_target import GrowingDriver, growing, ids, meanwhile, open_files, rows, visible
from tests.unit.support.segments import OTHER, PART, ROW, contents, epoch, finish, lose, names, segment, write_each


@pytest.fixture
def driver(out: Path) -> GrowingDriver:
    """Two rows fill a segment."""
    return GrowingDriver(growing(out, parts=2, roll_bytes=2 * ROW))


@dataclass
class Clock:
    now: float = 1e9

    def __call__(self) -> float:
        return self.now


def aging(out: Path, clock: Clock, age: float = 60.0) -> FileSink:
    sink = growing(out, roll_interval=age)
    sink.delegate.rolling = RollBounds(interval=timedelta(seconds=age), clock=clock)
    return sink


def test_names_sort_by_part_and_then_by_age_byte_by_byte() -> None:
    parts = [part_name(index, ".csv.gz") for index in (0, 2, 11, 99_999)]
    in_order = [file_name(part, number) for part in parts for number in (None, 0, 1, 9, 10, 4_000_000_000)]
    assert sorted(in_order) == in_order
    assert in_order[1] == "part-00000_0000000000.csv.gz"
    assert segments_among(in_order) == {part: [0, 1, 9, 10, 4_000_000_000] for part in parts}


def test_a_full_segment_is_followed_by_the_next_in_the_middle_of_an_epoch(driver: GrowingDriver, out: Path) -> None:
    epoch(driver, 1, 2, 3, 4, 5)
    assert contents(out) == {segment(0): [1, 2], segment(1): [3, 4], segment(2): [5]}
    epoch(driver, 6, 7)
    assert contents(out) == {segment(0): [1, 2], segment(1): [3, 4], segment(2): [5, 6], segment(3): [7]}
    assert driver.states[PART].segment == 3
    assert driver.states[OTHER] == FileState(offset=0, segment=0)


def test_a_segment_is_longer_by_one_batch_at_most(driver: GrowingDriver, out: Path) -> None:
    driver.run({PART: rows(*range(9))})
    driver.run({PART: rows(9)})
    assert contents(out) == {segment(0): list(range(9)), segment(1): [9]}


def test_an_epoch_without_rows_for_a_part_begins_no_segment(driver: GrowingDriver, out: Path) -> None:
    epoch(driver, 1, 2)
    epoch(driver)
    driver.run({})
    assert names(out) == [segment(0)]


def test_closed_segments_may_be_moved_away(driver: GrowingDriver, out: Path) -> None:
    epoch(driver, 1, 2, 3)
    (out / segment(0)).unlink()
    lose(driver, 4, 5, 6)
    epoch(driver, 4, 5, attempt=1)
    assert contents(out) == {segment(1): [3, 4], segment(2): [5]}


def test_the_segment_that_is_written_may_not_be_moved_away(driver: GrowingDriver, out: Path) -> None:
    epoch(driver, 1, 2, 3)
    (out / segment(1)).unlink()
    with pytest.raises(TargetLostError, match=segment(1)):
        driver.check()


@pytest.mark.parametrize("answered", [True, False])
def test_the_segments_of_a_lost_attempt_that_rolled_three_times_are_removed(
    driver: GrowingDriver, out: Path, answered: bool
) -> None:
    epoch(driver, 1)
    lose(driver, 2, 3, 4, 5, 6, 7)
    assert len(names(out)) == 4
    epoch(driver, *([8] if answered else []), attempt=1, name=PART if answered else OTHER)
    assert contents(out)[segment(0)] == ([1, 8] if answered else [1])
    assert [name for name in names(out) if name.startswith("part-00000")] == [segment(0)]


def test_an_attempt_after_one_that_rolled_goes_on_from_the_recorded_segment(driver: GrowingDriver, out: Path) -> None:
    epoch(driver, 1, 2, 3)
    driver.begin()
    stalled = driver.part(attempt=1)
    write_each(stalled, 4, 5, 6, 7)
    finish(driver, 9, 10, attempt=2)
    with pytest.raises(StaleWriterError):
        stalled.snapshot()
    assert contents(out) == {segment(0): [1, 2], segment(1): [3, 9], segment(2): [10]}


def test_an_attempt_that_dies_while_it_removes_segments_has_taken_the_part_over(
    driver: GrowingDriver, out: Path
) -> None:
    driver.begin()
    first = driver.part(attempt=1)
    write_each(first, 1, 2, 3, 4, 5)
    with crash_at("file: later segment removed") as seen:
        driver.part(attempt=2)
    assert "file: later segment removed" in seen
    with pytest.raises(StaleWriterError):
        write_each(first, 6, 7)
    first.close()


@pytest.mark.parametrize("step", ["file: syncing", "file: segment created", "file: segment begun"])
@pytest.mark.parametrize("act", ["another attempt", "seal"])
def test_an_attempt_that_is_overtaken_while_it_rolls_leaves_nothing(
    driver: GrowingDriver, out: Path, step: str, act: str
) -> None:
    epoch(driver, 1, 2)
    driver.begin()
    stalled = driver.part(attempt=1)

    def interfere() -> None:
        if act == "seal":
            driver.seal({})
            driver.complete({})
        else:
            finish(driver, 5, 6, 7, attempt=2)

    with meanwhile(step, interfere), pytest.raises(StaleWriterError):
        # The last row is written once the step was reached.
        write_each(stalled, 3, 4, 8, 9)
    stalled.close()
    kept = {segment(0): [1, 2]} if act == "seal" else {segment(0): [1, 2], segment(1): [5, 6], segment(2): [7]}
    assert contents(out) == kept


STEPS = [
    "file: part taken over",
    "file: later segment removed",
    "file: removal synced",
    "file: cutting",
    "file: cut",
    "file: writing",
    "file: written",
    "file: syncing",
    "file: synced",
    "file: segment created",
    "file: directory synced",
    "file: segment begun",
    "file: sealing",
    "file: sealed",
]


@pytest.mark.parametrize("times", [thorough(1), 2])
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("completed", [thorough(0), 1])
def test_a_kill_anywhere_leaves_each_row_once(out: Path, step: str, completed: int, times: int) -> None:
    driver = GrowingDriver(growing(out, parts=2, roll_bytes=2 * ROW))
    if completed:
        epoch(driver, 0)
    lose(driver, 6, 7, 8, 9)
    lose(driver, 6, 7, 8, 9, name=OTHER)
    driver.begin()
    with crash_at(f"{step}#{times}") as seen:
        finish(driver, 1, 2, 3, 4, 5, attempt=1)
    if seen.count(step) == times:
        epoch(driver, 1, 2, 3, 4)
        epoch(driver, 5, 6)
    else:
        assert times == 2 or (step == "file: directory synced" and completed)
        epoch(driver, 6)
    assert ids(out) == [*([0] if completed else []), 1, 2, 3, 4, 5, 6]


def test_a_segment_is_durable_before_the_next_is_begun_and_that_before_its_first_byte(
    driver: GrowingDriver, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver.begin()
    part = driver.part()
    events: list[str] = []
    for name in ("writev", "fsync", "open"):
        _record(monkeypatch, name, events, out)
    write_each(part, 1, 2, 3)
    part.snapshot()
    assert events == [
        f"writev {segment(0)}",
        f"fsync {segment(0)}",
        "fsync out",
        f"open {segment(1)}",
        "fsync out",
        f"writev {segment(1)}",
        f"fsync {segment(1)}",
    ]


def _record(monkeypatch: pytest.MonkeyPatch, name: str, events: list[str], out: Path) -> None:
    real = getattr(os, name)

    def recorded(at: int | str, *args: Any, **options: Any) -> Any:
        path = Path(os.readlink(f"/proc/self/fd/{at}")) if isinstance(at, int) else Path(at)
        if path.parent == out or (path == out and name != "open"):
            events.append(f"{name} {path.name}")
        return real(at, *args, **options)

    monkeypatch.setattr(os, name, recorded)


def test_removed_segments_are_durably_gone_the_last_one_first(
    driver: GrowingDriver, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    epoch(driver, 1)
    lose(driver, 2, 3, 4, 5, 6)
    driver.begin()
    events: list[str] = []
    for name in ("unlink", "fsync"):
        _record(monkeypatch, name, events, out)
    driver.part(attempt=1).close()
    assert events == [f"unlink {segment(2)}", "fsync out", f"unlink {segment(1)}", "fsync out"]


def test_sealing_refuses_a_winner_with_a_segment_after_it(driver: GrowingDriver, out: Path) -> None:
    driver.begin()
    part = driver.part()
    write_each(part, 1, 2)
    early = driver.answer(PART, part.snapshot(), 0)
    write_each(part, 3)
    part.snapshot()
    part.close()
    with pytest.raises(SealError, match=f"{segment(0)} has {2 * ROW} bytes, and a segment follows it"):
        driver.seal({PART: early})


def test_a_segment_is_closed_by_age_across_epochs_and_restarts(out: Path) -> None:
    clock = Clock()
    driver = GrowingDriver(aging(out, clock))
    epoch(driver, 1)
    clock.now += 59
    epoch(driver, 2)
    assert driver.states[PART].since == 1e9
    driver = driver.restored_copy(aging(out, clock))
    clock.now += 1
    epoch(driver)
    assert contents(out) == {segment(0): [1, 2]}
    driver.begin()
    part = driver.part()
    write_each(part, 3)
    clock.now += 60
    write_each(part, 4, 5)
    answers = {PART: driver.answer(PART, part.snapshot(), 0)}
    driver.seal(answers)
    driver.complete(answers)
    assert contents(out) == {segment(0): [1, 2], segment(1): [3], segment(2): [4, 5]}
    assert driver.states[PART].since == 1e9 + 120
    part.close()


def test_rolling_is_turned_on_and_off_between_restarts(out: Path) -> None:
    driver = GrowingDriver(growing(out))
    epoch(driver, 1, 2)
    driver.sink = growing(out, roll_bytes=3 * ROW)
    epoch(driver, 3, 4)
    assert contents(out) == {PART: [1, 2, 3], segment(0): [4]}
    driver.sink = growing(out)
    epoch(driver, 5, 6, 7, 8)
    assert contents(out) == {PART: [1, 2, 3], segment(0): [4, 5, 6, 7, 8]}
    driver.sink = growing(out, roll_bytes=1)
    epoch(driver, 9, 10)
    assert contents(out) == {PART: [1, 2, 3], segment(0): [4, 5, 6, 7, 8], segment(1): [9], segment(2): [10]}


def test_a_file_whose_age_is_unknown_is_older_than_any_bound(out: Path) -> None:
    driver = GrowingDriver(growing(out))
    epoch(driver, 1)
    driver.sink = aging(out, Clock(), age=1e8)
    epoch(driver, 2)
    assert contents(out) == {PART: [1], segment(0): [2]}


def test_an_attempt_that_rolled_for_the_first_time_and_is_lost_is_taken_back_without_rolling(out: Path) -> None:
    driver = GrowingDriver(growing(out))
    epoch(driver, 1)
    driver.sink = growing(out, roll_bytes=1)
    lose(driver, 2, 3)
    driver.sink = growing(out)
    epoch(driver, 4, attempt=1)
    assert contents(out) == {PART: [1, 4]}


@pytest.mark.parametrize("killed_at", [None, "file: later segment removed", "file: removal synced", "file: cut"])
def test_segments_of_a_target_that_is_ahead_are_taken_back(
    driver: GrowingDriver, out: Path, killed_at: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    epoch(driver, 1)
    strict = driver.restored_copy(growing(out, parts=2, roll_bytes=2 * ROW))
    restored = driver.restored_copy(growing(out, parts=2, roll_bytes=2 * ROW, on_rewind="truncate"))
    for number in (2, 3, 4):
        epoch(driver, number * 10, number * 10 + 1)
    (out / segment(1)).unlink()  # recorded and moved away
    with pytest.raises(TargetAheadError):
        strict.begin()
    if killed_at:
        with crash_at(killed_at) as seen:
            restored.begin()
        assert seen[-1] == killed_at
    epoch(restored, 5, 6)
    assert contents(out) == {segment(0): [1, 5], segment(1): [6]}
    assert "on_rewind=truncate truncates" in caplog.text


def test_each_segment_has_a_header(out: Path) -> None:
    name = "part-00000.csv"
    driver = GrowingDriver(growing(out, format="csv", header=True, roll_bytes=7))
    epoch(driver, 1, 2, 3, name=name)
    epoch(driver, 4, name=name)
    texts = [(out / segment(number, name)).read_text() for number in range(2)]
    assert texts == ["id\n1\n2\n", "id\n3\n4\n"]


def test_compressed_segments_are_closed_by_their_compressed_size(out: Path) -> None:
    name = "part-00000.jsonl.gz"
    driver = GrowingDriver(growing(out, compression="gzip", roll_bytes=2000))
    driver.begin()
    part = driver.part(name)
    for number in range(400):
        part.write_batch([{"id": number, "pad": "x" * 100}])
    answers = {name: driver.answer(name, part.snapshot(), 0)}
    part.close()
    driver.seal(answers)
    files = visible(out)
    assert len(files) >= 2
    assert all(2000 <= file.stat().st_size < 2500 for file in files[:-1])
    found = [json.loads(line)["id"] for file in files for line in gzip.decompress(file.read_bytes()).splitlines()]
    assert found == list(range(400))


def test_counts_are_those_of_what_was_written(driver: GrowingDriver, out: Path) -> None:
    driver.begin()
    context = driver.writer()
    part = driver.sink.bind(context).build_part("sink", PART, driver.states[PART])
    write_each(part, 1, 2, 3, 4, 5)
    part.snapshot()
    part.close()
    assert context.metrics.counts == {"bytes": 5 * ROW}


def test_rolling_keeps_one_file_open(driver: GrowingDriver, out: Path) -> None:
    driver.begin()
    before = open_files(out)
    part = driver.part()
    write_each(part, *range(1, 10))
    assert open_files(out) == before + 1
    part.close()
    assert open_files(out) == before
