"""First contact with a directory: every name that is made there is durable before anything is recorded."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from outfall.errors import ConfigurationError, TargetError, TargetNotEmptyError, TransientError
from outfall.file import FileSink
from outfall.testing import LocalDriver, MemoryRecoveryConfig
from outfall.testing.crash_points import crash_at
from tests.unit.support.file_target import (
    OTHERS,
    Driver,
    GrowingDriver,
    WholeDriver,
    everything,
    growing,
    ids,
    rows,
    whole,
)

MAKERS: dict[str, Callable[[Path], Driver]] = {
    "whole": lambda path: WholeDriver(whole(path)),
    "growing": lambda path: GrowingDriver(growing(path)),
}


class Names:
    """Which directories hold names that no fsync has made durable, while each n-th fsync may fail."""

    def __init__(self, patch: pytest.MonkeyPatch, failing: int) -> None:
        self.dirty: set[str] = set()
        self._left = failing
        self._mkdir, self._rename, self._fsync = os.mkdir, os.rename, os.fsync
        for name in ("mkdir", "rename", "fsync"):
            patch.setattr(os, name, getattr(self, name))

    def mkdir(self, path: str, *args: Any) -> None:
        self._mkdir(path, *args)
        self.dirty.add(os.path.dirname(path))

    def rename(self, old: str, new: str) -> None:
        self._rename(old, new)
        self.dirty.add(os.path.dirname(new))

    def fsync(self, fd: int) -> None:
        self._left -= 1
        if self._left == 0:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        self._fsync(fd)
        self.dirty.discard(os.readlink(f"/proc/self/fd/{fd}"))

    @property
    def failed(self) -> bool:
        return self._left <= 0


@pytest.mark.parametrize("mode", MAKERS)
@pytest.mark.parametrize("failing", range(1, 7))
def test_names_are_durable_although_the_first_run_failed_to_make_them_so(
    tmp_path: Path, mode: str, failing: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = MAKERS[mode](tmp_path / "a" / "out")
    names = Names(monkeypatch, failing)
    try:
        driver.begin()
    except TransientError:
        driver.begin()
    else:
        assert not names.failed
    assert names.dirty == set()


def test_a_directory_that_stands_is_not_synced_again_once_an_epoch_is_completed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = WholeDriver(whole(tmp_path / "out"))
    driver.run(rows(1))
    synced: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(os.path.basename(os.readlink(f"/proc/self/fd/{fd}"))))
    driver.begin()
    assert synced == [f"{driver.incarnation}.json"]


@pytest.mark.parametrize("parts", [None, 1])
@pytest.mark.parametrize("spelling", ["{0}/link", "{0}/x/../out", "file:{0}/out", "file://localhost{0}//out/", "out/."])
def test_a_lost_checkpoint_and_another_spelling_of_the_path_are_first_contact_with_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spelling: str, parts: int | None
) -> None:
    (tmp_path / "link").symlink_to("out")
    monkeypatch.chdir(tmp_path)
    batch: list[list[Any]] = [[("1", {"id": 1}) if parts else {"id": 1}]]
    LocalDriver(FileSink(tmp_path / "out", parts=parts), MemoryRecoveryConfig()).run_epoch(0, batch)
    same = FileSink(spelling.format(tmp_path), parts=parts)
    with pytest.raises(TargetNotEmptyError):
        LocalDriver(same, MemoryRecoveryConfig()).run_epoch(0, batch)
    assert same.place() == FileSink(tmp_path / "out").place()


@pytest.mark.parametrize("on_existing", ["error", "overwrite"])
@pytest.mark.parametrize("ours", ["above", "below"])
def test_a_directory_within_another_querys_or_around_it_is_refused(tmp_path: Path, on_existing: str, ours: str) -> None:
    inner, outer = tmp_path / "out" / "carrier=AA", tmp_path / "out"
    WholeDriver(whole(inner if ours == "above" else outer), OTHERS).run(rows(1))
    before = everything(tmp_path)
    partitioned = {"partition_by": "carrier"} if ours == "above" else {}
    mine = WholeDriver(whole(outer if ours == "above" else inner, on_existing=on_existing, **partitioned))
    with pytest.raises(TargetNotEmptyError):
        mine.begin()
    assert everything(tmp_path) == before


@pytest.mark.parametrize("call", ["pwrite", "fsync", "rename"])
def test_a_marker_that_cannot_be_made_leaves_nothing_behind(
    tmp_path: Path, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = WholeDriver(whole(tmp_path / "out"))
    (tmp_path / "out" / "_outfall" / "staging").mkdir(parents=True)

    def fail(fd: Any, *_: Any) -> None:
        if call != "fsync" or ".tmp" in os.readlink(f"/proc/self/fd/{fd}"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, call, fail)
        with pytest.raises(TransientError, match="free space"):
            driver.begin()
    assert sorted(os.listdir(tmp_path / "out" / "_outfall")) == ["open.lock", "staging"]
    driver.run(rows(1))


def written_by_spark(path: Path) -> None:
    """What Spark's own streaming file sink and its batch writers leave."""
    (path / "_spark_metadata").mkdir(parents=True)
    (path / "_spark_metadata" / "0").write_text("v1\n{}\n")
    (path / "part-00000-c000.json").write_text('{"id":1}\n')
    for name in ("_SUCCESS", "_metadata", "_common_metadata"):
        (path / name).touch()


MODES: dict[str, Callable[..., Driver]] = {
    "whole": lambda path, **options: WholeDriver(whole(path, **options)),
    "growing": lambda path, **options: GrowingDriver(growing(path, **options)),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("on_existing", ["error", "resume"])
def test_a_directory_of_sparks_own_streaming_sink_is_refused_since_spark_would_not_see_our_rows(
    tmp_path: Path, mode: str, on_existing: str
) -> None:
    written_by_spark(tmp_path)
    if on_existing == "error":
        (tmp_path / "part-00000-c000.json").unlink()
    before = everything(tmp_path)
    with pytest.raises(
        TargetNotEmptyError,
        match=r"contains _spark_metadata.*would not see new rows.*migrate-from-file-sink.*not in the log",
    ):
        MODES[mode](tmp_path, on_existing=on_existing).check()
    assert everything(tmp_path) == before


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("step", [None, "file: log of Spark moved away", "file: existing deleted"])
def test_overwriting_deletes_what_spark_goes_by_too_also_after_a_crash(
    tmp_path: Path, mode: str, step: str | None
) -> None:
    written_by_spark(tmp_path)
    if step is not None:
        with crash_at(step) as seen:
            MODES[mode](tmp_path, on_existing="overwrite").begin()
        assert seen[-1] == step
        # Whatever is left of it, readers do not go by a log in pieces.
        assert not (tmp_path / "_spark_metadata").exists()
    driver: Any = MODES[mode](tmp_path, on_existing="overwrite")
    driver.run(rows(2) if mode == "whole" else {"part-00000.jsonl": rows(2)})
    assert ids(tmp_path) == [2]
    assert [name for name in os.listdir(tmp_path) if name.startswith("_")] == ["_outfall"]
    assert "replaced" not in os.listdir(tmp_path / "_outfall")


@pytest.mark.parametrize("kind", ["file", "dangling link"])
def test_the_check_of_a_connection_refuses_what_is_no_directory(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "out"
    if kind == "file":
        path.touch()
    else:
        path.symlink_to(tmp_path / "nowhere")
    with pytest.raises(TargetError, match="out is not a directory"):
        whole(path).check_connection()


def test_two_slashes_at_the_beginning_of_a_path_are_one() -> None:
    assert FileSink("//tmp/x").target() == FileSink("/tmp/x").target()


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/tmp/\udcff", "must be valid UTF-8"),
        (Path("s3://bucket/x"), "pathlib removes one of its slashes"),
        ("memory://x/a::b", "contains '::'"),
        ("memory://x::file", "contains"),
    ],
    ids=["bytes", "pathlib", "chain in a path", "chain"],
)
def test_a_path_that_would_mean_something_else_is_refused(path: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        FileSink(path)


def test_a_secret_in_a_path_of_pathlib_is_not_repeated() -> None:
    with pytest.raises(ConfigurationError) as caught:
        FileSink(Path("s3://AKIA:hunter2@bucket/x"))
    assert "hunter2" not in str(caught.value)
