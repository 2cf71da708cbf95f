"""Growing files: who may write a part, and who may no longer."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from outfall.capabilities import WriterId
from outfall.errors import (
    FencedError,
    SealError,
    StaleWriterError,
    TargetAheadError,
    TargetLostError,
    TargetNotEmptyError,
    TransientError,
    UnsharedTargetError,
)
from outfall.file.growing.registry import Records
from outfall.file.growing.sink import GrowingFiles
from outfall.file.stores.locks import LINE
from outfall.testing import LocalDriver, MemoryRecoveryConfig
from outfall.testing.crash_points import crash_at
from tests.unit.support.file_target import (
    OTHERS,
    OURS,
    GrowingDriver,
    everything,
    growing,
    ids,
    meanwhile,
    rows,
)
from tests.unit.support.file_zombie import zombie

PART = "part-00000.jsonl"


@pytest.fixture
def driver(out: Path) -> GrowingDriver:
    return GrowingDriver(growing(out, parts=2))


@pytest.mark.parametrize("on_existing", ["error", "resume", "overwrite"])
def test_of_two_queries_on_one_target_the_second_is_refused_or_the_first_is_fenced(
    driver: GrowingDriver, out: Path, on_existing: str
) -> None:
    driver.run({PART: rows(1)})
    second = GrowingDriver(growing(out, parts=2, on_existing=on_existing), incarnation=OTHERS)
    driver.begin()
    stalled = driver.part()
    stalled.write_batch(rows(2))
    if on_existing != "overwrite":
        with pytest.raises(TargetNotEmptyError, match=f"{OURS}.json" if on_existing == "resume" else "not empty"):
            second.begin()
        driver.check()
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
    with crash_at("file: creating record") as seen:
        GrowingDriver(growing(out)).begin()
    assert seen[-1] == "file: creating record"
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


REGISTER = "parts.jsonl.lock"


def _damage(out: Path, line: int, data: bytes) -> None:
    with open(out / "_outfall" / REGISTER, "r+b") as file:
        file.seek(line * LINE)
        file.write(data.ljust(LINE, b"\0"))


def _register(driver: GrowingDriver) -> Records:
    assert isinstance(driver.sink.delegate, GrowingFiles)
    return driver.sink.delegate.register.peek()


@pytest.mark.parametrize("line", [0, 1, 2, 3])
def test_a_record_that_cannot_be_read_counts_as_absent(driver: GrowingDriver, out: Path, line: int) -> None:
    driver.run({PART: rows(1)})
    _damage(out, line, b'{"incarnation": "00')
    driver.run({PART: rows(2)})
    assert ids(out) == [1, 2]


def test_one_damaged_record_does_not_hide_the_others(driver: GrowingDriver, out: Path) -> None:
    driver.sink = growing(out, parts=4)
    driver.run({name: rows(number) for number, name in enumerate(driver.sink.list_parts())})
    _damage(out, 3, b'{"incarnation": "00"}, {')
    writers = _register(driver).writers()
    assert [None if found is None else found.writer for found in writers] == [WriterId(1, 0, 0), None, *writers_of(2)]


def writers_of(count: int) -> list[WriterId]:
    return [WriterId(1, 0, 0)] * count


@pytest.mark.parametrize("data", [b"", b"\0"])
def test_a_writer_does_not_write_without_its_record(driver: GrowingDriver, out: Path, data: bytes) -> None:
    driver.begin()
    part = driver.part()
    part.write_batch(rows(1))
    _damage(out, 2, data)
    with pytest.raises(StaleWriterError, match="no record of its writer"):
        part.snapshot()


def test_a_register_that_is_gone_stops_writers_and_the_next_epoch_makes_it_anew(
    driver: GrowingDriver, out: Path
) -> None:
    driver.begin()
    part = driver.part()
    part.write_batch(rows(1))
    (out / "_outfall" / REGISTER).unlink()
    with pytest.raises(StaleWriterError, match="no record of its writer"):
        part.snapshot()
    driver.run({PART: rows(2)})
    assert ids(out) == [2]


def test_lock_files_are_never_replaced(driver: GrowingDriver, out: Path) -> None:
    driver.run({PART: rows(1)})
    inodes = [(out / "_outfall" / name).stat().st_ino for name in (REGISTER, f"{PART}.lock")]
    for _ in range(3):
        driver.run({PART: rows(1)})
    assert [(out / "_outfall" / name).stat().st_ino for name in (REGISTER, f"{PART}.lock")] == inodes


def test_a_seal_keeps_out_the_parts_that_nobody_has_written_yet(driver: GrowingDriver, out: Path) -> None:
    driver.sink = growing(out, parts=20)
    driver.run({PART: rows(1)})
    with pytest.raises(StaleWriterError, match="sealed by generation 1, epoch 0 of"):
        driver.part("part-00019.jsonl", generation=1, attempt=9)
    driver.run({"part-00019.jsonl": rows(2)})
    assert ids(out) == [1, 2]


def test_a_seal_changes_nothing_when_one_of_the_parts_is_a_newer_drivers(driver: GrowingDriver, out: Path) -> None:
    driver.begin()
    answers = driver.write({PART: rows(1)})
    newer = driver.restored_copy(growing(out, parts=2))
    newer.begin()
    late = newer.part("part-00001.jsonl")
    late.write_batch(rows(2))
    late.flush(True)
    before = everything(out)
    with pytest.raises(FencedError, match="generation 2"):
        driver.seal(answers)
    assert everything(out) == before
    late.close()


def test_two_attempts_may_write_two_parts_at_once(driver: GrowingDriver, out: Path) -> None:
    driver.begin()
    first, second = driver.part(attempt=1), driver.part("part-00001.jsonl", attempt=2)
    first.write_batch(rows(1))
    second.write_batch(rows(2))
    with meanwhile("file: writing", lambda: second.flush(True)):
        first.flush(True)
    assert ids(out) == [1, 2]
    first.close()
    second.close()


@pytest.mark.parametrize("step", ["file: writing", "file: part taken over"])
def test_nobody_seals_or_takes_a_part_while_a_writer_is_between_its_check_and_its_write(
    driver: GrowingDriver, out: Path, step: str
) -> None:
    driver.begin()
    refused: list[str] = []

    def interfere() -> None:
        for act in (lambda: driver.seal({}), lambda: driver.part(attempt=7)):
            with pytest.raises(TransientError, match=f"{PART} was .*pid {os.getpid()}") as caught:
                act()
            refused.append(str(caught.value))

    with meanwhile(step, interfere):
        driver.write({PART: rows(1)}, attempt=1)
    for name, text in zip((REGISTER, f"{PART}.lock"), refused, strict=True):
        assert str(out / "_outfall" / name) in text
    assert ids(out) == [1]


def test_nobody_writes_while_a_driver_seals_and_the_driver_is_named(driver: GrowingDriver, out: Path) -> None:
    driver.begin()
    part = driver.part()
    part.write_batch(rows(1))

    def interfere() -> None:
        with pytest.raises(TransientError, match=f"The last driver to hold it was host .*, pid {os.getpid()}"):
            part.flush(True)

    with meanwhile("file: sealing", interfere):
        driver.seal({})
    assert ids(out) == []


def test_a_stopped_process_that_wakes_late_changes_nothing(out: Path) -> None:
    driver = GrowingDriver(growing(out))
    driver.begin()
    with zombie(out, "between writes", driver.token) as late:
        answers = driver.write({PART: rows(1)}, attempt=2)
        assert late.wake() == "StaleWriterError"
    driver.seal(answers)
    assert ids(out) == [1]


def test_a_process_that_is_stopped_with_the_lock_is_named_and_its_end_frees_the_part(out: Path) -> None:
    driver = GrowingDriver(growing(out))
    driver.begin()
    with zombie(out, "file: writing", driver.token) as holder:
        with pytest.raises(TransientError, match=f"pid {holder.pid}") as caught:
            driver.part(attempt=2)
        assert "What to do" in str(caught.value)
        with pytest.raises(TransientError, match=f"{PART} was written by .* pid {holder.pid}"):
            driver.seal({})
    driver.seal(driver.write({PART: rows(1)}, attempt=3))
    assert ids(out) == [1]


def test_a_driver_that_the_next_one_has_overtaken_is_fenced_when_it_seals(driver: GrowingDriver, out: Path) -> None:
    driver.begin()
    answers = driver.write({PART: rows(1)})
    driver.restored_copy(growing(out, parts=2)).begin()
    with pytest.raises(FencedError, match="a newer driver has taken over"):
        driver.seal(answers)


def test_the_record_says_who_wrote(driver: GrowingDriver, out: Path) -> None:
    driver.begin()
    driver.part(attempt=5).close()
    found = _register(driver).part(PART)
    assert found is not None
    assert found.writer == WriterId(1, 0, 5)
    assert (found.host, found.pid, found.sealed) == (os.uname().nodename, os.getpid(), False)
    assert _register(driver).part("part-00001.jsonl") is None


def test_of_two_copies_of_a_log_the_one_that_opens_second_is_refused(driver: GrowingDriver, out: Path) -> None:
    driver.run({PART: rows(0)})
    copy = driver.restored_copy(growing(out, parts=2))
    driver.append_begin()
    copy.append_begin()
    driver.open()
    with pytest.raises(FencedError, match=r"The recovery (data|log) was copied"):
        copy.open()
    with pytest.raises(StaleWriterError, match=r"the recovery (data|log) was copied"):
        copy.part(attempt=9)
    with pytest.raises(FencedError, match=r"The recovery (data|log) was copied"):
        copy.seal({})
    answers = driver.write({PART: rows(1)})
    driver.seal(answers)
    driver.complete(answers)
    copy.append_begin()
    with pytest.raises(FencedError, match=r"The recovery (data|log) was copied"):
        copy.open()
    driver.run({PART: rows(2)})
    assert ids(out) == [0, 1, 2]


def test_a_driver_whose_rows_a_copy_has_taken_back_is_refused(driver: GrowingDriver, out: Path) -> None:
    driver.run({PART: rows(0)})
    copy = driver.restored_copy(growing(out, parts=2, on_rewind="truncate"))
    for number in (1, 2):
        driver.run({PART: rows(number)})
    running = driver.restored_copy(driver.sink)
    running.begin()
    copy.run({PART: rows(10, 20, 30)})
    # Its files are as long as before, and longer: only the register tells.
    with pytest.raises(StaleWriterError):
        running.part(attempt=9)
    with pytest.raises((FencedError, SealError)):
        running.seal({})
    with pytest.raises(TargetLostError, match="behind the recovery data"):
        driver.begin()
    assert ids(out) == [0, 10, 20, 30]


def test_later_epochs_are_taken_back_although_as_many_attempts_to_do_so_were_killed(
    driver: GrowingDriver, out: Path
) -> None:
    driver.run({PART: rows(0)})
    restored = driver.restored_copy(growing(out, parts=2, on_rewind="truncate"))
    driver.run({PART: rows(1)})
    for _ in range(3):
        restored.begin(open_target=False)
    restored.run({PART: rows(2)})
    assert ids(out) == [0, 2]


def test_a_driver_whose_register_is_gone_runs_its_epoch_again(driver: GrowingDriver, out: Path) -> None:
    driver.run({PART: rows(0)})
    driver.begin()
    (out / "_outfall" / REGISTER).unlink()
    with pytest.raises(StaleWriterError, match="no record of its writer"):
        driver.part()
    with pytest.raises(SealError, match="is not the last one that opened the parts"):
        driver.seal({})
    driver.run({PART: rows(1)})
    assert ids(out) == [0, 1]


def test_a_register_of_a_release_before_tokens_is_taken_as_it_is(driver: GrowingDriver, out: Path) -> None:
    driver.run({PART: rows(0)})
    register = out / "_outfall" / REGISTER
    old = register.read_bytes().replace(f', "token": "{driver.token}"'.encode(), b"".ljust(29))
    assert b"token" not in old
    register.write_bytes(old)
    driver.run({PART: rows(1)})
    assert ids(out) == [0, 1]


def test_a_log_copied_in_mid_epoch_writes_the_epoch_again_and_the_original_finds_the_target_ahead(out: Path) -> None:
    """What docs/file.md and docs/protocol.md say of copied checkpoints and growing files."""
    log, copied, later = MemoryRecoveryConfig(), MemoryRecoveryConfig(), MemoryRecoveryConfig()
    original = LocalDriver(growing(out), log)
    original.run_epoch(0, [[("k", {"id": 0})]])
    with meanwhile("file: synced", lambda: copied.files.update(log.files)):
        original.run_epoch(1, [[("k", {"id": 1})]])
    later.files.update(copied.files)
    LocalDriver(growing(out), copied).run_epoch(1, [[("k", {"id": 10})]])
    assert ids(out) == [0, 10]
    for driver in (original, LocalDriver(growing(out), log)):
        with pytest.raises(TargetAheadError, match="another copy of it is in use"):
            driver.run_epoch(2, [[("k", {"id": 2})]])
    # A copy is refused once another one has begun a later epoch.
    LocalDriver(growing(out), copied).run_epoch(2, [[("k", {"id": 2})]])
    with pytest.raises(TargetAheadError):
        LocalDriver(growing(out), later).run_epoch(1, [[("k", {"id": 11})]])
    assert ids(out) == [0, 10, 2]
