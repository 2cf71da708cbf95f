"""Whole files in an object store in which nothing may be replaced or deleted: by missing rights, or by a policy."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from outfall.errors import TargetError
from outfall.file.stores import remote as remote_store
from outfall.testing import LocalDriver
from outfall.testing.crash_points import crash_at
from tests.unit.support.file_target import WholeDriver, rows
from tests.unit.support.remote_target import Memory, remote, worker

pytestmark = pytest.mark.usefixtures("scratch", "write_once")

STEPS = (
    "file: record created", "file: claimed", "file: layout written", "file: synced", "file: epoch claimed",
    "file: record advanced", "file: publishing", "file: copied", "file: published",
)  # fmt: skip


@pytest.fixture
def write_once(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Google's rule: who may not delete may not replace."""

    def denied(*_: Any, **__: Any) -> None:
        raise PermissionError("no right to delete")

    def creating(method: Any, to: int) -> Any:
        def call(self: MemoryFileSystem, *args: Any, **options: Any) -> Any:
            if self._strip_protocol(args[to]) in self.store:
                raise PermissionError(f"no right to replace {args[to]}")
            return method(self, *args, **options)

        return call

    for method, to in (("pipe_file", 0), ("cp_file", 1), ("put_file", 1)):
        monkeypatch.setattr(MemoryFileSystem, method, creating(getattr(MemoryFileSystem, method), to))
    for method in ("rm", "rm_file", "mv"):
        monkeypatch.setattr(MemoryFileSystem, method, denied)
    yield
    remote_store._undeletable.clear()


@pytest.fixture
def place() -> Memory:
    return Memory(uuid.uuid4().hex)


def test_epochs_are_written_and_the_missing_right_is_told_once(
    place: Memory, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "outfall.file"):
        for epoch in range(4):
            LocalDriver(remote(place), str(tmp_path / "rec")).run_epoch(epoch, [rows(epoch), rows(10 + epoch)])
    assert sorted(place.ids()) == [0, 1, 2, 3, 10, 11, 12, 13]
    (told,) = [record.getMessage() for record in caplog.records if "may not be deleted" in record.getMessage()]
    assert "grant the right to delete" in told
    remaining = [path for path in place.everything() if path.startswith("_outfall/")]
    assert len(remaining) == 2 + 4 * (1 + 1 + 2), "record and layout; of each epoch, BEGIN, epoch and staged files"


@pytest.mark.parametrize("step", STEPS)
def test_a_driver_killed_at_any_step_goes_on(place: Memory, tmp_path: Path, step: str) -> None:
    def driver() -> LocalDriver:
        return LocalDriver(remote(place), str(tmp_path / "rec"))

    with crash_at(step) as seen:
        driver().run_epoch(0, [rows(0)])
    assert seen[-1] == step
    for epoch in range(3):
        driver().run_epoch(epoch, [rows(epoch)])
    assert sorted(place.ids()) == [0, 1, 2]


def test_a_layout_is_not_replaced_and_the_newest_counts(place: Memory) -> None:
    store = worker(remote(place)).store
    for text in (b"first", b"second", b"third"):
        store.write_layout(text)
        assert store.read_layout() == text
    assert len([path for path in place.everything() if path.endswith(".layout")]) == 3


def test_what_must_be_deleted_ends_the_query_and_names_the_right(place: Memory) -> None:
    MemoryFileSystem().pipe_file(f"{place.url}/old.jsonl", b'{"id":1}\n')
    driver = WholeDriver(remote(place, on_existing="overwrite"))
    with pytest.raises(TargetError, match=r"no right to delete.*What to do: grant"):
        driver.begin()


def test_doctor_says_what_remains(place: Memory) -> None:
    (told,) = remote(place).check_connection()
    assert "created, and not removed" in told
