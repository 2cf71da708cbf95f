"""What a batch job leaves that fails and whose log goes with it."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import fsspec
import pytest

from outfall.errors import OutfallError, TransientError
from outfall.file import FileSink
from outfall.file.stores.local import LocalStore
from outfall.protocol.step import EpochOptions
from outfall.testing import LocalDriver, MemoryRecoveryConfig
from outfall.wrappers import FanOutSink
from tests.unit.support.fake_s3 import FakeS3


def job(sink: Any) -> LocalDriver:
    """A job as `write()` without recovery makes one: its log is its own."""
    recovery = MemoryRecoveryConfig()
    return LocalDriver(sink, recovery, options=EpochOptions(end_of_input=True, final=True))


class BrokenError(Exception):
    """A task fails."""


def values(*ids: int) -> list[dict[str, Any]]:
    """Rows that are large enough to be flushed one by one."""
    return [{"id": number, "pad": "x" * (2 << 20)} for number in ids]


def rows(*ids: int) -> list[tuple[str, dict[str, Any]]]:
    return [("k", row) for row in values(*ids)]


def fail(driver: LocalDriver, *tasks: list[int], part: str | None = None) -> None:
    """Run tasks to their end, and then one that writes a row and fails; the job is given up."""
    coordinator = driver.coordinator()
    ticket = coordinator.begin(0)
    for index, ids in enumerate(tasks):
        driver.run_task(ticket, 0, index, [(part, values(*ids))])

    def broken() -> Any:
        yield part, values(99)
        raise BrokenError

    with pytest.raises(BrokenError):
        driver.run_task(ticket, 0, len(tasks), broken())
    assert driver.coordinator().withdraw()
    coordinator.close()


def sizes(directory: Path) -> dict[str, int]:
    return {path.name: path.stat().st_size for path in directory.iterdir() if not path.name.startswith("_")}


def leftovers(directory: Path) -> list[str]:
    """Markers and staged files."""
    return [path.name for path in (directory / "_outfall").rglob("*") if path.is_file() and path.suffix != ".lock"]


@pytest.mark.parametrize("on_existing", ["error", "resume"])
def test_a_failed_job_with_whole_files_leaves_nothing(tmp_path: Path, on_existing: Any) -> None:
    sink = FileSink(tmp_path, on_existing=on_existing)
    fail(job(sink), [1])
    assert (sizes(tmp_path), leftovers(tmp_path)) == ({}, [])
    job(sink).run_epoch(0, [values(1), values(2)])
    assert len(sizes(tmp_path)) == 2


def test_what_a_late_task_of_a_failed_job_stages_goes_when_the_next_job_comes(tmp_path: Path) -> None:
    driver, sink = job(FileSink(tmp_path)), FileSink(tmp_path)
    ticket = driver.coordinator().begin(0)

    def late() -> Any:
        yield None, [{"id": 1}]
        assert driver.coordinator().withdraw()

    driver.run_task(ticket, 0, 0, late())
    assert len(leftovers(tmp_path)) == 1
    job(sink).run_epoch(0, [values(2)])
    assert len(leftovers(tmp_path)) == 2, "its own record, and its layout"
    assert len(sizes(tmp_path)) == 1


def test_a_failed_job_with_files_in_a_store_leaves_nothing() -> None:
    root = f"memory://{uuid.uuid4().hex}"
    sink = FileSink(root)
    fail(job(sink), [1])
    assert fsspec.filesystem("memory").find(root) == []
    job(sink).run_epoch(0, [values(1), values(2)])


def test_a_failed_job_with_growing_files_leaves_no_row_for_the_next_to_keep(tmp_path: Path) -> None:
    sink = FileSink(tmp_path, parts=2, on_existing="resume")
    job(sink).run_epoch(0, [rows(0)])
    before = sizes(tmp_path)
    fail(job(sink), [1], part="part-00000.jsonl")
    assert sizes(tmp_path) == before
    job(sink).run_epoch(0, [rows(1)])
    assert sum(path.read_text().count('"id":1,') for path in tmp_path.glob("part-*")) == 1


def test_a_first_job_with_growing_files_that_failed_leaves_an_empty_directory(tmp_path: Path) -> None:
    sink = FileSink(tmp_path, parts=2)
    fail(job(sink), [1], part="part-00000.jsonl")
    assert (sizes(tmp_path), leftovers(tmp_path)) == ({}, [])
    job(sink).run_epoch(0, [rows(1)])


def test_a_late_task_of_a_failed_job_with_growing_files_writes_nothing(tmp_path: Path) -> None:
    sink = FileSink(tmp_path, parts=1)
    driver = job(sink)
    coordinator = driver.coordinator()
    ticket = coordinator.begin(0)

    def late() -> Any:
        yield "part-00000.jsonl", [{"id": 1}]
        assert driver.coordinator().withdraw()
        yield "part-00000.jsonl", [{"id": 2, "pad": "x" * (2 << 20)}]

    with pytest.raises(OutfallError):
        driver.run_task(ticket, 0, 0, late())
    assert sum(sizes(tmp_path).values()) == 0


def test_a_failed_job_in_s3_leaves_nothing() -> None:
    fake = FakeS3()
    sink = fake.sink("bucket", inline_bytes=0)
    fail(job(sink), [1])
    assert not fake.objects
    assert not fake.uploads
    job(sink).run_epoch(0, [values(1), values(2)])


def test_each_target_of_a_fan_out_is_given_up(tmp_path: Path) -> None:
    sink = FanOutSink(a=FileSink(tmp_path / "a"), b=FileSink(tmp_path / "b"))
    fail(job(sink), [1])
    for name in "ab":
        assert (sizes(tmp_path / name), leftovers(tmp_path / name)) == ({}, [])


def test_what_a_job_has_recorded_is_not_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = FileSink(tmp_path)
    driver = job(sink)

    def full(self: LocalStore, file: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as broken:
        broken.setattr(LocalStore, "publish", full)
        with pytest.raises(TransientError, match="No space left"):
            driver.run_epoch(0, [values(1), values(2)])
        assert not driver.coordinator().withdraw()
    assert LocalDriver(sink, driver.recovery, options=EpochOptions(any_later=True)).run_epoch(0, [values()]).skipped
    assert len(sizes(tmp_path)) == 2


@pytest.mark.parametrize("parts", [None, 1])
def test_a_job_that_was_refused_at_once_leaves_what_was_there(tmp_path: Path, parts: int | None) -> None:
    (tmp_path / "somebody.txt").write_text("else's")
    driver = job(FileSink(tmp_path, parts=parts))
    with pytest.raises(OutfallError, match="not empty"):
        driver.run_epoch(0, [rows(1)])
    assert driver.coordinator().withdraw()
    assert [path.name for path in tmp_path.rglob("*")] == ["somebody.txt"]


def test_a_job_that_is_completed_has_nothing_to_take_back(tmp_path: Path) -> None:
    driver = job(FileSink(tmp_path))
    driver.run_epoch(0, [values(1)])
    coordinator = driver.coordinator()
    assert (coordinator.withdraw(), coordinator.completed) == (True, 0)
    assert len(sizes(tmp_path)) == 1
