"""Growing files: what is durable when, kills, disk errors and bounds."""

from __future__ import annotations

import errno
import os
import resource
from pathlib import Path
from typing import Any

import pytest

from outfall.errors import (
    TargetError,
    TransientError,
    ValueRefusedError,
)
from outfall.file.growing.part_files import FileState
from outfall.testing import LocalDriver
from outfall.testing.crash_points import crash_at
from tests.unit.support.file_target import (
    GrowingDriver,
    growing,
    ids,
    open_files,
    rows,
)

PART = "part-00000.jsonl"


@pytest.fixture
def driver(out: Path) -> GrowingDriver:
    return GrowingDriver(growing(out, parts=2))


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


def test_bytes_are_durable_before_the_offset_is_told(
    driver: GrowingDriver, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    for name in ("writev", "fsync"):
        _record(monkeypatch, name, events)
    driver.begin()
    part = driver.part()
    events.clear()
    part.write_batch(rows(1))
    part.snapshot()
    assert events == [f"writev {PART}", f"fsync {PART}", "fsync out"]
    part.close()
    driver.states[PART] = FileState(offset=9)
    part = driver.part(attempt=1)
    events.clear()
    part.write_batch(rows(2))
    part.snapshot()
    # What the attempt before it has removed may not be durable.
    assert events == [f"writev {PART}", f"fsync {PART}", "fsync out"]


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
    assert events == [f"fsync {PART}", "fsync out"]


@pytest.mark.parametrize("then", ["an attempt", "the seal", "the next driver"])
def test_a_cut_whose_author_died_is_made_durable_by_whoever_comes_next(
    driver: GrowingDriver, monkeypatch: pytest.MonkeyPatch, then: str
) -> None:
    driver.run({PART: rows(1)})
    driver.begin()
    driver.write({PART: rows(2)})
    with crash_at("file: cut"):
        driver.part(attempt=1)
    events: list[str] = []
    _record(monkeypatch, "fsync", events)
    if then == "an attempt":
        driver.part(attempt=2).snapshot()
    elif then == "the seal":
        driver.seal({})
    else:
        driver.begin()
    # Otherwise a power loss after COMPLETED would bring back what then seems somebody else's.
    assert [event for event in events if ".lock" not in event] == [f"fsync {PART}", "fsync out"]


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
@pytest.mark.parametrize("call", ["writev", "fsync"])
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
    real = os.write
    monkeypatch.setattr(os, "writev", lambda fd, buffers: real(fd, bytes(buffers[0])[:3]))
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


@pytest.mark.thorough
def test_many_epochs_leave_no_more_behind_than_one(driver: GrowingDriver, out: Path) -> None:
    driver.run({PART: rows(0), "part-00001.jsonl": rows(0)})
    names, files = len(list(out.rglob("*"))), open_files(out)
    for number in range(300):
        driver.run({PART: rows(number)})
    assert (len(list(out.rglob("*"))), open_files(out)) == (names, files)


def test_a_thousand_parts_have_one_open_file_each_and_share_their_memory(out: Path) -> None:
    driver = GrowingDriver(growing(out, parts=100))
    driver.begin()
    before = open_files(out)
    parts = [driver.part(name) for name in driver.sink.list_parts()]
    assert open_files(out) - before == len(parts)
    parts[0].write_batch([{"s": "x" * 400_000}])
    assert (out / PART).stat().st_size > 400_000
    for part in parts:
        part.close()
    assert open_files(out) == before


@pytest.mark.parametrize(
    ("limits", "raised"),
    [((1024, 524288), 1256), ((1024, 1100), 1100), ((4096, 4096), None), ((1024, -1), 1256), ((-1, -1), None)],
)
def test_the_limit_of_open_files_is_raised_as_far_as_the_parts_need_and_the_host_allows(
    out: Path, limits: tuple[int, int], raised: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = GrowingDriver(growing(out, parts=1000))
    driver.begin()
    set_to: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits)
    monkeypatch.setattr(resource, "setrlimit", lambda _, both: set_to.append(both))
    driver.part().close()
    assert set_to == ([] if raised is None else [(raised, limits[1])])


def test_a_limit_that_cannot_be_raised_stops_nothing(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = GrowingDriver(growing(out))
    monkeypatch.setattr(resource, "getrlimit", lambda _: (16, 1024))
    monkeypatch.setattr(resource, "setrlimit", _failing(errno.EPERM))
    driver.run({PART: rows(1)})
    assert ids(out) == [1]


def test_a_task_writes_all_its_parts_before_it_syncs_them_and_syncs_their_names_once(
    out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = growing(out, parts=3)
    local = LocalDriver(sink, str(tmp_path / "recovery"))
    names = sink.list_parts()
    events: list[str] = []
    for epoch, some in enumerate((names[:2], names)):
        coordinator = local.coordinator()
        ticket = coordinator.begin(epoch)
        with monkeypatch.context() as patch:
            for call in ("writev", "fsync"):
                _record(patch, call, events)
            answer = local.run_task(ticket, epoch, 0, [(name, rows(1)) for name in some])
        coordinator.finish(ticket, [answer])
    first, second, _ = names
    assert events == [
        *(f"writev {name}" for name in (first, second)),
        *(f"fsync {first}", "fsync out", f"fsync {second}"),
        *(f"writev {name}" for name in names),
        *(f"fsync {name}" for name in names),
        "fsync out",
    ]
