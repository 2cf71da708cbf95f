"""Growing files: offsets, cuts, first contact and rewinding, driven by hand."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import pytest

from outfall.capabilities import Guarantee
from outfall.capability_checks import capabilities_of, check_sink, resolve
from outfall.errors import (
    FencedError,
    OutfallError,
    TargetAheadError,
    TargetLostError,
    TargetNotEmptyError,
    TransientError,
    UnsharedTargetError,
)
from outfall.file import FileSink
from outfall.file.growing.part_files import FileState, file_name
from outfall.file.growing.sink import GrowingFiles
from outfall.sinks import DynamicSink
from outfall.testing import LocalDriver, MemoryRecoveryConfig, crash_at
from outfall.wrappers import FanOutSink
from tests.unit.support.file_target import (
    OTHERS,
    GrowingDriver,
    end,
    everything,
    growing,
    ids,
    meanwhile,
    rows,
    visible,
)

PART = "part-00000.jsonl"


@pytest.fixture
def driver(out: Path) -> GrowingDriver:
    return GrowingDriver(growing(out, parts=2))


def test_a_sink_with_parts_is_a_growing_one_and_survives_pickling(out: Path) -> None:
    sink = FileSink(out, parts=3, format="text", on_existing="resume")
    back = pickle.loads(pickle.dumps(sink))
    assert type(sink) is type(back) is FileSink
    assert type(sink.delegate) is type(back.delegate) is GrowingFiles
    assert back.options == sink.options
    assert DynamicSink not in capabilities_of(sink)
    check_sink(sink)
    assert resolve(sink).guarantee() is Guarantee.EXACTLY_ONCE
    assert sink.target() == f"file:{out}"


def test_twelve_parts_keep_the_order_of_their_numbers(out: Path) -> None:
    names = growing(out, parts=12).list_parts()
    assert names == sorted(names)
    assert names[2] == "part-00002.jsonl"
    assert names[11] == "part-00011.jsonl"


def test_offsets_are_bytes_and_each_epoch_goes_on_after_the_last(driver: GrowingDriver, out: Path) -> None:
    driver.run({PART: [{"s": "zażółć 😀"}]})
    first = (out / PART).read_bytes()
    assert driver.states[PART] == FileState(offset=len(first))
    driver.run({PART: [{"s": "é"}]})
    assert (out / PART).read_bytes() == first + '{"s":"é"}\n'.encode()


def test_a_stored_offset_of_zero_is_resumed_from(driver: GrowingDriver, out: Path) -> None:
    driver.run({})
    assert driver.states == {PART: FileState(offset=0), "part-00001.jsonl": FileState(offset=0)}
    driver.run({PART: rows(1)})
    assert ids(out) == [1]


def test_a_failed_attempt_is_cut_exactly_at_the_offset(driver: GrowingDriver, out: Path) -> None:
    driver.run({PART: [{"s": "é"}]})
    before = (out / PART).read_bytes()
    driver.begin()
    lost = driver.part(attempt=1)
    lost.write_batch([{"s": "half of the rows"}])
    lost.snapshot()
    lost.close()
    driver.part(attempt=2).close()
    assert (out / PART).read_bytes() == before


def test_closing_flushes_nothing(driver: GrowingDriver, out: Path) -> None:
    driver.begin()
    part = driver.part()
    part.write_batch(rows(1))
    part.close()
    assert (out / PART).read_bytes() == b""
    with pytest.raises(TransientError, match="closed"):
        part.write_batch(rows(2))


def test_rows_of_a_lost_attempt_in_a_part_that_the_replay_does_not_touch_are_cut(
    driver: GrowingDriver, out: Path
) -> None:
    driver.begin()
    driver.write({"part-00001.jsonl": rows(1)})
    driver.begin()
    answers = driver.write({PART: rows(2)}, attempt=1)
    driver.seal(answers)
    assert ids(out) == [2]
    assert (out / "part-00001.jsonl").read_bytes() == b""


@pytest.mark.parametrize("roll_bytes", [None, 1])
@pytest.mark.parametrize("touched", ["written", "unwritten"])
def test_what_somebody_else_appended_between_two_epochs_is_refused_and_kept(
    out: Path, roll_bytes: int | None, touched: str
) -> None:
    driver = GrowingDriver(growing(out, parts=2, roll_bytes=roll_bytes))
    driver.run({PART: rows(1)})
    driver.run({PART: rows(2)})
    part = PART if touched == "written" else "part-00001.jsonl"
    newest = out / file_name(part, driver.states[part].segment)
    own = newest.stat().st_size if newest.exists() else 0
    with newest.open("a") as file:
        file.write('{"id":"theirs"}\n')
    before = everything(out)
    with pytest.raises(TargetNotEmptyError) as caught:
        driver.begin()
    text = str(caught.value)
    assert f"{newest} holds {own + 16} bytes" in text
    assert f"but {own} were recorded" in text or not own
    assert "epoch 1" in text
    assert everything(out) == before
    os.truncate(newest, own)
    driver.run({PART: rows(3)})
    assert ids(out) == [1, 2, 3]


def test_what_a_lost_attempt_left_is_cut_however_often_the_driver_died(driver: GrowingDriver, out: Path) -> None:
    driver.run({PART: rows(1)})
    for lost in (7, 8):
        driver.begin()
        driver.write({PART: rows(lost), "part-00001.jsonl": rows(lost)})
    driver.append_begin()
    driver.run({PART: rows(2)})
    assert ids(out) == [1, 2]


@pytest.mark.parametrize("actual", [3, None])
def test_a_file_shorter_than_its_offset_is_refused_and_left_as_it_is(
    driver: GrowingDriver, out: Path, actual: int | None
) -> None:
    driver.run({PART: rows(1)})
    expected = driver.states[PART].offset
    driver.begin()
    if actual is None:
        (out / PART).unlink()
    else:
        os.truncate(out / PART, actual)
    before = everything(out)
    for call in (driver.check, driver.part, lambda: driver.seal({})):
        with pytest.raises(TargetLostError) as caught:
            call()
        text = str(caught.value)
        assert str(out / PART) in text
        assert str(expected) in text
        assert (f"{actual} bytes" if actual else "missing") in text or call is not driver.check
    assert everything(out) == before


def test_a_missing_directory_of_a_query_with_completed_epochs_is_lost(driver: GrowingDriver, out: Path) -> None:
    driver.run({PART: rows(1)})
    out.rename(out.with_name("moved"))
    with pytest.raises(TargetLostError, match="moved"):
        driver.check()
    assert not out.exists()
    with pytest.raises(TargetLostError):
        driver.open()


def test_first_contact_with_data_is_refused_unless_told(out: Path) -> None:
    out.mkdir()
    (out / PART).write_text('{"id":1}\n')
    (out / ".hidden").write_text("")
    before = everything(out)
    with pytest.raises(TargetNotEmptyError, match=PART):
        GrowingDriver(growing(out)).begin()
    assert everything(out) == before
    GrowingDriver(growing(out, on_existing="resume")).run({PART: rows(2)})
    assert ids(out) == [1, 2]


def test_resuming_after_half_a_line_is_refused(out: Path) -> None:
    out.mkdir()
    (out / PART).write_text('{"id":1}\n{"id":')
    with pytest.raises(TargetNotEmptyError, match="middle of a line"):
        GrowingDriver(growing(out, on_existing="resume")).check()


def test_overwriting_deletes_visible_files_once(out: Path) -> None:
    out.mkdir()
    (out / PART).write_text('{"id":1}\n')
    (out / "other.csv").write_text("x")
    (out / ".hidden").write_text("kept")
    driver = GrowingDriver(growing(out, on_existing="overwrite"))
    driver.run({PART: rows(2)})
    driver.run({PART: rows(3)})
    assert ids(out) == [2, 3]
    assert [file.name for file in visible(out)] == [PART]
    assert (out / ".hidden").exists()


def test_overwriting_a_directory_that_holds_directories_is_refused(out: Path) -> None:
    (out / "year=2020").mkdir(parents=True)
    with pytest.raises(TargetNotEmptyError, match="year=2020"):
        GrowingDriver(growing(out, on_existing="overwrite")).check()


@pytest.mark.parametrize("step", ["file: existing deleted", "file: creating record", "file: record created"])
def test_overwriting_that_was_killed_is_finished_by_the_next_run(out: Path, step: str) -> None:
    out.mkdir()
    for name in (PART, "b"):
        (out / name).write_text("old\n")
    driver = GrowingDriver(growing(out, on_existing="overwrite"))
    with crash_at(step) as seen:
        driver.begin()
    assert seen[-1] == step
    driver.run({PART: rows(1)})
    assert ids(out) == [1]


def append(path: Path, number: int) -> None:
    with open(path, "a") as file:
        file.write(f'{{"id":{number}}}\n')


def test_what_another_query_completes_before_we_take_its_files_over_is_kept(out: Path) -> None:
    first = GrowingDriver(growing(out))
    first.run({PART: rows(1)})
    end(out)
    second = GrowingDriver(growing(out, on_existing="resume"), incarnation=OTHERS)
    with (
        meanwhile("file: opening", lambda: append(out / PART, 2)),
        pytest.raises(TransientError, match=r"part-00000\.jsonl has changed.*9 bytes before and has 18 now"),
    ):
        second.begin()
    assert ids(out) == [1, 2]
    # What the failed BEGIN recorded is looked at again.
    second.run({PART: rows(9)})
    assert ids(out) == [1, 2, 9]
    with pytest.raises(TargetLostError):
        first.begin()


@pytest.mark.parametrize("fan_out", [False, True])
def test_a_base_that_a_failed_begin_recorded_is_looked_at_again(out: Path, fan_out: bool) -> None:
    first = GrowingDriver(growing(out))
    first.run({PART: rows(1)})
    sink = growing(out, on_existing="resume")
    driver = LocalDriver(FanOutSink(only=sink) if fan_out else sink, MemoryRecoveryConfig())
    batch = [[("a", {"id": 9})]]
    end(out)
    with meanwhile("file: opening", lambda: append(out / PART, 2)), pytest.raises(OutfallError, match="changed"):
        driver.run_epoch(0, batch)
    driver.run_epoch(0, batch)
    assert ids(out) == [1, 2, 9]


def test_an_older_driver_that_wakes_before_overwriting_deletes_nothing(out: Path) -> None:
    out.mkdir()
    (out / PART).write_text("old\n")
    late = GrowingDriver(growing(out, on_existing="overwrite"))
    late.begin(open_target=False)
    newer = late.restored_copy(growing(out, on_existing="overwrite"))
    newer.run({PART: rows(1)})
    with pytest.raises(FencedError, match="generation 2"):
        late.open()
    assert ids(out) == [1]


def test_a_target_ahead_of_its_log_is_refused_or_taken_back(driver: GrowingDriver, out: Path) -> None:
    driver.run({PART: rows(1)})
    strict = driver.restored_copy(growing(out, parts=2))
    taking_back = driver.restored_copy(growing(out, parts=2, on_rewind="truncate"))
    for number in (2, 3, 4):
        driver.run({PART: rows(number), "part-00001.jsonl": rows(-number)})
    before = everything(out)
    with pytest.raises(TargetAheadError, match="generation 4"):
        strict.begin()
    assert everything(out) == before
    taking_back.run({PART: rows(20)})
    assert ids(out) == [1, 20]
    taking_back.run({PART: rows(30)})
    assert ids(out) == [1, 20, 30]


def test_taking_back_that_was_killed_is_finished_by_the_next_run(
    driver: GrowingDriver, out: Path, caplog: pytest.LogCaptureFixture
) -> None:
    driver.run({PART: rows(1)})
    restored = driver.restored_copy(growing(out, parts=2, on_rewind="truncate"))
    for number in (2, 3, 4):
        driver.run({PART: rows(number), "part-00001.jsonl": rows(-number)})
    with crash_at("file: cut") as seen:
        restored.begin()
    assert seen[-1] == "file: cut"
    restored.run({"part-00001.jsonl": rows(20)})
    assert ids(out) == [1, 20]
    assert "on_rewind=truncate truncates" in caplog.text


def test_an_older_driver_that_wakes_before_taking_back_cuts_nothing(driver: GrowingDriver, out: Path) -> None:
    driver.run({PART: rows(1)})
    late = driver.restored_copy(growing(out, parts=2, on_rewind="truncate"))
    driver.run({PART: rows(2)})
    late.begin(open_target=False)
    newer = late.restored_copy(growing(out, parts=2, on_rewind="truncate"))
    newer.generation = driver.generation  # its BEGIN comes after everything the target remembers
    newer.run({PART: rows(20)})
    with pytest.raises(FencedError, match="a newer driver"):
        late.open()
    assert ids(out) == [1, 20]


def test_added_parts_start_fresh_unless_their_file_holds_data(driver: GrowingDriver, out: Path) -> None:
    driver.run({PART: rows(1)})
    driver.sink = growing(out, parts=4)
    driver.run({"part-00003.jsonl": rows(2)})
    assert ids(out) == [1, 2]
    driver.sink = growing(out, parts=5)
    (out / "part-00004.jsonl").write_text("somebody's\n")
    with pytest.raises(TargetNotEmptyError, match="part-00004"):
        driver.check()


def test_a_path_that_the_task_does_not_share_is_named(driver: GrowingDriver, out: Path) -> None:
    driver.begin()
    out.rename(out.with_name("elsewhere"))
    out.mkdir()
    with pytest.raises(UnsharedTargetError, match=os.uname().nodename) as caught:
        driver.part()
    assert str(out) in str(caught.value)
    assert list(out.iterdir()) == []


def test_a_symbolic_link_is_followed(tmp_path: Path, out: Path) -> None:
    (tmp_path / "disk").mkdir()
    out.symlink_to(tmp_path / "disk")
    GrowingDriver(growing(out)).run({PART: rows(1)})
    assert ids(tmp_path / "disk") == [1]


@pytest.mark.parametrize("on_existing", ["error", "resume", "overwrite"])
@pytest.mark.parametrize("roll_bytes", [None, 1])
def test_a_part_that_was_added_after_the_recovery_data_was_copied_is_taken_back(
    out: Path, on_existing: str, roll_bytes: int | None
) -> None:
    options: dict[str, Any] = {"on_existing": on_existing, "roll_bytes": roll_bytes}
    driver = GrowingDriver(growing(out, **options))
    driver.run({PART: rows(0)})
    restored = driver.restored_copy(growing(out, parts=2, on_rewind="truncate", **options))
    driver.sink = growing(out, parts=2, **options)
    driver.run({PART: rows(1), "part-00001.jsonl": rows(2, 3)})
    restored.run({PART: rows(1), "part-00001.jsonl": rows(2, 3)})
    assert sorted(ids(out)) == [0, 1, 2, 3]


@pytest.mark.parametrize("roll_bytes", [None, 1])
@pytest.mark.parametrize("name", ["part-00001.jsonl", "part-00001_0000000004.jsonl"])
@pytest.mark.parametrize("found_at", ["first contact", "another start"])
def test_taking_such_a_part_back_keeps_what_was_there_before_us(
    out: Path, roll_bytes: int | None, name: str, found_at: str
) -> None:
    options: dict[str, Any] = {"on_existing": "resume", "roll_bytes": roll_bytes}
    out.mkdir()
    (out / name).write_text('{"id":-1}\n')
    driver = GrowingDriver(growing(out, parts=1 if found_at == "another start" else 2, **options))
    driver.run({PART: rows(0)})
    restored = driver.restored_copy(growing(out, parts=2, on_rewind="truncate", **options))
    if found_at == "first contact":
        # As if the recovery data were older still than this part's BEGIN.
        restored.states.pop("part-00001.jsonl")
    driver.sink = growing(out, parts=2, **options)
    driver.run({PART: rows(1), "part-00001.jsonl": rows(2, 3)})
    restored.run({PART: rows(1), "part-00001.jsonl": rows(2, 3)})
    assert sorted(ids(out)) == [-1, 0, 1, 2, 3]
