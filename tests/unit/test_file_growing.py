"""Growing files: offsets, cuts, fences and seals, driven by hand."""

from __future__ import annotations

import errno
import os
import pickle
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from outfall.capabilities import Guarantee, WriterId, check_sink, guarantee_of
from outfall.errors import (
    FencedError,
    SealError,
    StaleWriterError,
    TargetAheadError,
    TargetError,
    TargetLostError,
    TargetNotEmptyError,
    TransientError,
    UnsharedTargetError,
    ValueRefusedError,
)
from outfall.file import FileSink
from outfall.file.fence import WriterRecord
from outfall.file.growing import GrowingFileSink
from outfall.file.growing_part import FileState
from outfall.file.locked import peek
from outfall.testing.crash_points import crash_at
from tests.unit.support.file_target import (
    OTHERS,
    GrowingDriver,
    everything,
    growing,
    open_files,
    rows_in,
    visible,
)

PART = "part-00000.jsonl"


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


@pytest.fixture
def driver(out: Path) -> GrowingDriver:
    return GrowingDriver(growing(out, parts=2))


def rows(*numbers: int) -> list[dict[str, int]]:
    return [{"id": number} for number in numbers]


def ids(path: Path) -> list[int]:
    return [row["id"] for row in rows_in(path)]


def test_a_sink_with_parts_is_a_growing_one_and_survives_pickling(out: Path) -> None:
    sink = FileSink(out, parts=3, format="text", on_existing="resume")
    back = pickle.loads(pickle.dumps(sink))
    assert type(sink) is type(back) is GrowingFileSink
    assert back.options == sink.options
    assert not hasattr(sink, "build")
    check_sink(sink)
    assert guarantee_of(sink) is Guarantee.EXACTLY_ONCE
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


@pytest.mark.parametrize("actual", [3, None])
def test_a_file_shorter_than_its_offset_is_refused_and_left_as_it_is(
    driver: GrowingDriver, out: Path, actual: int | None
) -> None:
    driver.run({PART: rows(1)})
    expected = driver.states[PART].offset
    driver.generation += 1
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


@pytest.mark.parametrize("step", ["file: existing deleted", "file: creating marker", "file: marker created"])
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


def test_an_older_driver_that_wakes_before_overwriting_deletes_nothing(out: Path) -> None:
    out.mkdir()
    (out / PART).write_text("old\n")
    late = GrowingDriver(growing(out, on_existing="overwrite"))
    late.begin(open_target=False)
    newer = late.restored_copy(growing(out, on_existing="overwrite"))
    newer.run({PART: rows(1)})
    late.open()
    assert ids(out) == [1]


@pytest.mark.parametrize("on_existing", ["error", "resume", "overwrite"])
def test_of_two_queries_on_one_target_the_second_is_refused_or_the_first_is_fenced(
    driver: GrowingDriver, out: Path, on_existing: str
) -> None:
    driver.run({PART: rows(1)})
    second = GrowingDriver(growing(out, parts=2, on_existing=on_existing), incarnation=OTHERS)
    driver.begin()
    stalled = driver.part()
    stalled.write_batch(rows(2))
    if on_existing == "error":
        with pytest.raises(TargetNotEmptyError):
            second.begin()
        return
    second.begin()
    with pytest.raises(StaleWriterError, match=OTHERS):
        stalled.snapshot()
    with pytest.raises((StaleWriterError, TargetLostError)):
        driver.check()
    with pytest.raises((StaleWriterError, UnsharedTargetError)):
        driver.part(attempt=1)
    with pytest.raises(StaleWriterError):
        driver.seal({})


def test_two_queries_that_meet_an_empty_directory_at_once_do_not_both_get_it(out: Path) -> None:
    first, second = GrowingDriver(growing(out)), GrowingDriver(growing(out), incarnation=OTHERS)
    first.begin(open_target=False)
    second.begin(open_target=False)
    first.open()
    with pytest.raises(TargetNotEmptyError):
        second.open()
    with pytest.raises(TargetNotEmptyError):
        second.check()


def test_a_query_that_was_killed_before_its_first_epoch_does_not_bar_the_next(out: Path) -> None:
    with crash_at("file: creating marker") as seen:
        GrowingDriver(growing(out)).begin()
    assert seen[-1] == "file: creating marker"
    GrowingDriver(growing(out), incarnation=OTHERS).run({PART: rows(1)})
    assert ids(out) == [1]


def test_a_stalled_attempt_that_wakes_changes_nothing(driver: GrowingDriver, out: Path) -> None:
    driver.begin()
    stalled = driver.part(attempt=1)
    stalled.write_batch(rows(0))
    answers = driver.write({PART: rows(1)}, attempt=2)
    _wakes_in_vain(stalled, out)  # after the winner has written
    _wakes_in_vain(driver_part(driver, attempt=1), out)
    driver.seal(answers)
    _wakes_in_vain(driver_part(driver, attempt=3), out)  # sealed
    driver.complete(answers)
    driver.begin()
    _wakes_in_vain(driver_part(driver, attempt=4, generation=1), out)
    answers = driver.write({PART: rows(2)})
    driver.seal(answers)
    _wakes_in_vain(driver_part(driver, attempt=5, generation=1), out)
    assert ids(out) == [1, 2]


def driver_part(driver: GrowingDriver, *, attempt: int, generation: int | None = None) -> Any:
    """An attempt that is opened only when it wakes."""

    class Late:
        def snapshot(self) -> None:
            driver.part(attempt=attempt, generation=generation)

    return Late()


def _wakes_in_vain(attempt: Any, out: Path) -> None:
    before = everything(out)
    with pytest.raises(StaleWriterError, match="What to do"):
        attempt.snapshot()
    assert everything(out) == before


def test_a_driver_killed_between_seal_and_record_runs_the_epoch_again(driver: GrowingDriver, out: Path) -> None:
    driver.begin()
    driver.seal(driver.write({PART: rows(1)}, attempt=9))
    driver.run({PART: rows(2)})
    assert ids(out) == [2]


def test_sealing_needs_the_recorded_winner_and_its_length(driver: GrowingDriver, out: Path) -> None:
    driver.begin()
    answers = driver.write({PART: rows(1)}, attempt=1)
    with open(out / PART, "ab") as file:
        file.write(b"x")
    with pytest.raises(SealError, match=str(answers[PART].state.offset)):
        driver.seal(answers)
    os.truncate(out / PART, answers[PART].state.offset)
    driver.seal(answers)
    driver.seal(answers)
    driver.begin()
    first = driver.write({PART: rows(1)}, attempt=1)
    driver.write({PART: rows(1)}, attempt=2)  # a loser that wrote last
    with pytest.raises(SealError, match="attempt 1"):
        driver.seal(first)


def test_a_part_that_only_losers_wrote_is_cut_and_closed(driver: GrowingDriver, out: Path) -> None:
    driver.begin()
    loser = driver.part(attempt=7)
    loser.write_batch(rows(1))
    loser.snapshot()
    driver.seal({})
    assert (out / PART).read_bytes() == b""
    _wakes_in_vain(driver_part(driver, attempt=8), out)


def test_an_older_driver_that_wakes_before_sealing_is_fenced(driver: GrowingDriver, out: Path) -> None:
    driver.begin()
    answers = driver.write({PART: rows(1)})
    newer = driver.restored_copy(growing(out, parts=2))
    newer.run({PART: rows(2)})
    with pytest.raises(FencedError, match="generation 2"):
        driver.seal(answers)
    with pytest.raises(FencedError):
        driver.seal({})
    assert ids(out) == [2]


def test_a_record_that_cannot_be_read_counts_as_absent(driver: GrowingDriver, out: Path) -> None:
    driver.run({PART: rows(1)})
    (out / "_outfall" / f"{PART}.lock").write_bytes(b'{"incarnation": "00\0\0')
    driver.run({PART: rows(2)})
    assert ids(out) == [1, 2]


def test_a_writer_does_not_write_without_its_record(driver: GrowingDriver, out: Path) -> None:
    driver.begin()
    part = driver.part()
    part.write_batch(rows(1))
    (out / "_outfall" / f"{PART}.lock").write_bytes(b"")
    with pytest.raises(StaleWriterError, match="without a record"):
        part.snapshot()


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
    assert "on_rewind=truncate cut" in caplog.text


def test_an_older_driver_that_wakes_before_taking_back_cuts_nothing(driver: GrowingDriver, out: Path) -> None:
    driver.run({PART: rows(1)})
    late = driver.restored_copy(growing(out, parts=2, on_rewind="truncate"))
    driver.run({PART: rows(2)})
    late.begin(open_target=False)
    newer = late.restored_copy(growing(out, parts=2, on_rewind="truncate"))
    newer.generation = driver.generation  # its BEGIN comes after everything the target remembers
    newer.run({PART: rows(20)})
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


def test_a_path_that_is_a_file_or_not_writable_is_refused_before_anything_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(TargetError, match="not a directory"):
            GrowingDriver(growing(path)).check()
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(TargetError, match="not writable"):
        GrowingDriver(growing(tmp_path / "a" / "b")).check()
    assert not (tmp_path / "a").exists()


def test_a_symbolic_link_is_followed(tmp_path: Path, out: Path) -> None:
    (tmp_path / "disk").mkdir()
    out.symlink_to(tmp_path / "disk")
    GrowingDriver(growing(out)).run({PART: rows(1)})
    assert ids(tmp_path / "disk") == [1]


def test_bytes_are_durable_before_the_offset_is_told(
    driver: GrowingDriver, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    for name in ("pwritev", "fsync"):
        _record(monkeypatch, name, events)
    driver.begin()
    part = driver.part()
    events.clear()
    part.write_batch(rows(1))
    part.snapshot()
    assert events == [f"pwritev {PART}", f"fsync {PART}", "fsync out"]
    part.close()
    driver.states[PART] = FileState(offset=9)
    part = driver.part(attempt=1)
    events.clear()
    part.write_batch(rows(2))
    part.snapshot()
    assert events == [f"pwritev {PART}", f"fsync {PART}"]


def test_a_cut_is_durable_before_the_offset_is_told(
    driver: GrowingDriver, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver.run({PART: rows(1)})
    driver.begin()
    driver.write({PART: rows(2)})
    part = driver.part(attempt=1)
    events: list[str] = []
    _record(monkeypatch, "fsync", events)
    part.snapshot()
    assert events == [f"fsync {PART}"]


def _record(monkeypatch: pytest.MonkeyPatch, name: str, events: list[str]) -> None:
    real = getattr(os, name)

    def recorded(fd: int, *args: Any) -> Any:
        events.append(f"{name} {Path(os.readlink(f'/proc/self/fd/{fd}')).name}")
        return real(fd, *args)

    monkeypatch.setattr(os, name, recorded)


@pytest.mark.parametrize(
    "step",
    [
        "file: part taken over",
        "file: cutting",
        "file: cut",
        "file: writing",
        "file: written",
        "file: syncing",
        "file: synced",
        "file: directory synced",
        "file: sealing",
        "file: sealed",
    ],
)
@pytest.mark.parametrize("completed", [0, 1])
def test_a_kill_anywhere_leaves_each_row_once(out: Path, step: str, completed: int) -> None:
    driver = GrowingDriver(growing(out, parts=2))
    if completed:
        driver.run({PART: rows(0)})
    driver.begin()
    driver.write({PART: rows(8, 9)})  # bytes to cut
    driver.begin()
    with crash_at(step) as seen:
        driver.seal(driver.write({PART: rows(1)}, attempt=1))
    assert seen[-1] == step or (step == "file: directory synced" and completed)
    driver.run({PART: rows(1)})
    driver.run({PART: rows(2), "part-00001.jsonl": rows(3)})
    assert ids(out) == [*([0] if completed else []), 1, 2, 3]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("call", ["pwritev", "fsync"])
def test_a_disk_error_surfaces_and_is_never_retried_into_success(
    driver: GrowingDriver, out: Path, monkeypatch: pytest.MonkeyPatch, call: str, code: int
) -> None:
    driver.run({PART: rows(1)})
    driver.begin()
    part = driver.part()
    part.write_batch(rows(2))
    with monkeypatch.context() as patch:
        patch.setattr(os, call, _failing(code))
        with pytest.raises(TransientError, match=str(out / PART)) as caught:
            part.snapshot()
        assert os.strerror(code) in str(caught.value)
    with pytest.raises(TransientError, match="earlier write or fsync"):
        part.snapshot()
    part.close()
    driver.run({PART: rows(3)})
    assert ids(out) == [1, 3]


def _failing(code: int) -> Any:
    def fail(*_: Any) -> None:
        raise OSError(code, os.strerror(code))

    return fail


def test_a_write_that_takes_some_of_the_bytes_goes_on(
    driver: GrowingDriver, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.pwrite
    monkeypatch.setattr(os, "pwritev", lambda fd, buffers, at: real(fd, bytes(buffers[0])[:3], at))
    driver.begin()
    part = driver.part()
    for number in range(5):
        part.write_batch(rows(number))
    assert part.snapshot().offset == 45
    assert ids(out) == list(range(5))


def test_a_refused_value_leaves_what_counts_untouched(out: Path) -> None:
    driver = GrowingDriver(growing(out, format="text"))
    driver.run({"part-00000.txt": ["a", "b"]})
    driver.begin()
    part = driver.part()
    with pytest.raises(ValueRefusedError, match="row 1"):
        part.write_batch(["c", "d\ne"])
    with pytest.raises(TransientError):
        part.snapshot()
    part.close()
    assert (out / "part-00000.txt").read_text() == "a\nb\n"


def test_much_data_is_written_before_the_end_and_little_is_held_back(driver: GrowingDriver, out: Path) -> None:
    driver.begin()
    part = driver.part()
    part.write_batch([{"s": "x" * 2_000_000}])
    assert (out / PART).stat().st_size > 2_000_000
    part.write_batch(rows(1))
    assert part.snapshot().offset == (out / PART).stat().st_size


def test_many_epochs_leave_no_more_behind_than_one(driver: GrowingDriver, out: Path) -> None:
    driver.run({PART: rows(0), "part-00001.jsonl": rows(0)})
    names, files = len(list(out.rglob("*"))), open_files()
    for number in range(300):
        driver.run({PART: rows(number)})
    assert (len(list(out.rglob("*"))), open_files()) == (names, files)


def test_lock_files_are_never_replaced(driver: GrowingDriver, out: Path) -> None:
    driver.begin()
    inode = (out / "_outfall" / f"{PART}.lock").stat().st_ino
    for _ in range(3):
        driver.run({PART: rows(1)})
    assert (out / "_outfall" / f"{PART}.lock").stat().st_ino == inode


def test_a_thousand_parts_have_one_open_file_each_and_share_their_memory(out: Path) -> None:
    driver = GrowingDriver(growing(out, parts=100))
    driver.begin()
    before = open_files()
    parts = [driver.part(name) for name in driver.sink.list_parts()]
    assert open_files() - before == len(parts)
    parts[0].write_batch([{"s": "x" * 400_000}])
    assert (out / PART).stat().st_size > 400_000
    for part in parts:
        part.close()
    assert open_files() == before


ZOMBIE = """
import sys
from tests.unit.support.file_target import GrowingDriver, growing
from outfall.file.growing_part import FileState
from outfall.file.locked import Patience
from outfall.steps import listen
import os, pathlib, signal
sink = growing(pathlib.Path(sys.argv[1]))
driver = GrowingDriver(sink, generation=1, states={"part-00000.jsonl": FileState(offset=0)})
part = driver.part(attempt=1)
part.write_batch([{"id": 99}])
def stop(step):
    if step == sys.argv[2]:
        print("stopping", flush=True)
        os.kill(os.getpid(), signal.SIGSTOP)
listen(stop)
if sys.argv[2] == "between writes":
    stop("between writes")
try:
    part.snapshot()
except Exception as error:
    print(type(error).__name__, flush=True)
else:
    print("wrote", flush=True)
"""


def _zombie(out: Path, where: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(ZOMBIE), str(out), where],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "stopping\n"
    os.waitpid(process.pid, os.WUNTRACED)
    return process


def test_a_stopped_process_that_wakes_late_changes_nothing(out: Path) -> None:
    driver = GrowingDriver(growing(out))
    driver.begin()
    zombie = _zombie(out, "between writes")
    try:
        answers = driver.write({PART: rows(1)}, attempt=2)
        zombie.send_signal(signal.SIGCONT)
        assert zombie.communicate(timeout=30)[0] == "StaleWriterError\n"
    finally:
        zombie.kill()
    driver.seal(answers)
    assert ids(out) == [1]


def test_a_process_that_is_stopped_with_the_lock_is_named_and_its_end_frees_the_part(out: Path) -> None:
    driver = GrowingDriver(growing(out))
    driver.begin()
    zombie = _zombie(out, "file: writing")
    try:
        with pytest.raises(TransientError, match=f'"pid": {zombie.pid}') as caught:
            driver.part(attempt=2)
        assert "What to do" in str(caught.value)
    finally:
        zombie.kill()
        zombie.communicate()
    driver.seal(driver.write({PART: rows(1)}, attempt=3))
    assert ids(out) == [1]


def test_the_record_says_who_wrote(driver: GrowingDriver, out: Path) -> None:
    driver.begin()
    driver.part(attempt=5).close()
    found = WriterRecord.parse(peek(str(out / "_outfall" / f"{PART}.lock")))
    assert found is not None
    assert found.writer == WriterId(1, 0, 5)
    assert (found.host, found.pid, found.sealed) == (os.uname().nodename, os.getpid(), False)
