"""A sink that is added to a fan-out: its target is new, whatever was completed before it came."""

from __future__ import annotations

import json
import os
import shutil
import uuid
from pathlib import Path
from typing import Any

import fsspec
import pytest

from outfall.errors import TargetAheadError, TargetLostError, TargetNotEmptyError
from outfall.file import FileSink
from outfall.testing import LocalDriver, crash_at
from outfall.wrappers import FanOutSink
from tests.unit.support.fake_s3 import FakeS3


@pytest.fixture(autouse=True)
def no_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


class Place:
    """Where sinks of one kind write, each under a name."""

    def __init__(self, kind: str, base: Path) -> None:
        self.kind = kind
        self.recovery = str(base / "recovery")
        self.bucket = FakeS3()
        self._root = f"memory://{uuid.uuid4().hex}" if kind == "remote" else str(base)

    def sink(self, name: str) -> Any:
        if self.kind == "s3":
            return self.bucket.sink(name)
        return FileSink(f"{self._root}/{name}", parts=2 if self.kind == "growing" else None)

    def write(self, names: str, epoch: int) -> None:
        sink = FanOutSink(**{name: self.sink(name) for name in names})
        row: Any = {"epoch": epoch}
        LocalDriver(sink, self.recovery).run_epoch(epoch, [[("0", row) if self.kind == "growing" else row]])

    def epochs(self, name: str) -> list[int]:
        if self.kind == "s3":
            bodies = [body for key, body in self.bucket.data().items() if key.startswith(f"{name}/")]
        else:
            system, root = fsspec.url_to_fs(f"{self._root}/{name}")
            bodies = [system.cat_file(path) for path in system.find(root) if "/_" not in path.removeprefix(root)]
        return sorted(json.loads(line)["epoch"] for body in bodies for line in body.splitlines())

    def empty(self, name: str) -> None:
        if self.kind == "s3":
            for key in [key for key in self.bucket.objects if key.startswith(f"{name}/")]:
                del self.bucket.objects[key]
            return
        system, root = fsspec.url_to_fs(f"{self._root}/{name}")
        system.rm(root, recursive=True)


@pytest.fixture(params=["whole", "growing", "remote", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return Place(request.param, tmp_path)


def test_it_gets_the_epochs_from_then_on(place: Place) -> None:
    for epoch, names in enumerate(("a", "ab", "abc", "abc")):
        place.write(names, epoch)
    assert [place.epochs(name) for name in "abc"] == [[0, 1, 2, 3], [1, 2, 3], [2, 3]]


@pytest.mark.parametrize("point", ["after BEGIN", "after open target", "after COMMITTING"])
def test_a_crash_in_its_first_epoch_changes_nothing(place: Place, point: str) -> None:
    place.write("a", 0)
    for _ in range(2):
        with crash_at(point):
            place.write("ab", 1)
    place.write("ab", 1)
    place.write("ab", 2)
    assert [place.epochs(name) for name in "ab"] == [[0, 1, 2], [1, 2]]


@pytest.mark.parametrize("point", ["after BEGIN", "after PREPARED"])
def test_it_may_come_while_an_epoch_without_it_is_unfinished(place: Place, point: str) -> None:
    place.write("a", 0)
    with crash_at(point):
        place.write("a", 1)
    for epoch in (1, 2, 3):
        place.write("ab", epoch)
    assert place.epochs("a") == [0, 1, 2, 3]
    assert place.epochs("b") == ([1, 2, 3] if point == "after BEGIN" else [2, 3])


def test_data_of_others_in_its_target_is_refused_also_after_a_crash(place: Place, tmp_path: Path) -> None:
    place.write("a", 0)
    with crash_at("after BEGIN"):
        place.write("ab", 1)
    other = LocalDriver(place.sink("b"), str(tmp_path / "other"))
    other.run_epoch(0, [[("0", {"epoch": 9}) if place.kind == "growing" else {"epoch": 9}]])
    with pytest.raises(TargetNotEmptyError):
        place.write("ab", 1)


def test_its_target_counts_once_an_epoch_with_it_is_completed(place: Place) -> None:
    place.write("a", 0)
    place.write("ab", 1)
    place.empty("b")
    with pytest.raises(TargetLostError):
        place.write("ab", 2)


def test_recovery_data_from_before_it_came_is_behind_it(place: Place, tmp_path: Path) -> None:
    place.write("a", 0)
    before = shutil.copytree(place.recovery, tmp_path / "before")
    place.write("ab", 1)
    place.recovery = str(before)
    with pytest.raises(TargetAheadError):
        place.write("ab", 1)
