"""What of Spark's checkpoint is made durable before BEGIN, and which batches are refused."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from outfall.errors import RecordError, TransientError
from outfall.file import FileSink
from outfall.protocol.step import EpochOptions
from outfall.recovery import spark_checkpoint
from outfall.recovery.spark_checkpoint import SparkCheckpoint
from outfall.testing import LocalDriver
from outfall.trace_points import listen
from tests.unit.support.journals import kinds
from tests.unit.support.spark_checkpoint import MadeCheckpoint


class Synced:
    """What is synced, by name and by filesystem, below a checkpoint."""

    def __init__(self, root: Path, patch: pytest.MonkeyPatch) -> None:
        self.names: list[str] = []
        self.trees: list[str] = []
        self.above: list[str] = []

        def fsync(descriptor: int) -> None:
            path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
            inside = path.is_relative_to(root)
            (self.names if inside else self.above).append(str(path.relative_to(root)) if inside else str(path))

        patch.setattr(os, "fsync", fsync)
        patch.setattr(spark_checkpoint, "_sync_filesystem", lambda path: self.trees.append(os.path.relpath(path, root)))


@pytest.fixture
def checkpoint(tmp_path: Path) -> MadeCheckpoint:
    """Batches 0 to 6 are through, and 7 is planned."""
    return made(tmp_path)


def made(tmp_path: Path, *, state: str = "") -> MadeCheckpoint:
    checkpoint = MadeCheckpoint(tmp_path / "chk", state=state)
    for batch in range(7):
        checkpoint.whole(batch)
    checkpoint.plan(7)
    return checkpoint


def both(*names: str) -> set[str]:
    """Files with their checksums."""
    return {*names, *(spark_checkpoint.checksum_of(name) for name in names)}


def at(checkpoint: MadeCheckpoint) -> SparkCheckpoint:
    found = SparkCheckpoint.at(str(checkpoint.root))
    assert found is not None
    return found


DIRECTORIES = {".", "offsets", "commits", "sources", "sources/0"}


@pytest.mark.parametrize("batch", [7, None])
def test_what_is_new_since_the_batch_before_is_synced_by_name(
    checkpoint: MadeCheckpoint, batch: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = Synced(checkpoint.root, monkeypatch)
    at(checkpoint).make_durable(batch, False)
    assert set(synced.names) == DIRECTORIES | both("metadata", "offsets/7", "commits/6", "sources/0/7")
    assert (synced.trees, synced.above) == ([], [])


def test_all_that_a_source_noted_since_is_synced(checkpoint: MadeCheckpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that died before its offsets has left an entry, and the next one another."""
    checkpoint.put("sources/0/8", "v1")
    synced = Synced(checkpoint.root, monkeypatch)
    at(checkpoint).make_durable(7, False)
    assert {"sources/0/7", "sources/0/8"} <= set(synced.names)


def test_all_notes_of_other_sources_are_synced(checkpoint: MadeCheckpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint.put("offsets/6", 'v1\n{}\n{"topic":{"0":5}}')
    synced = Synced(checkpoint.root, monkeypatch)
    at(checkpoint).make_durable(7, False)
    assert {f"sources/0/{number}" for number in range(8)} <= set(synced.names)


def test_state_is_synced_with_its_filesystem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = made(tmp_path, state="delta")
    synced = Synced(checkpoint.root, monkeypatch)
    at(checkpoint).make_durable(7, False)
    assert synced.trees == ["state"]


def test_at_first_everything_is_synced_the_directories_above_too(
    checkpoint: MadeCheckpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that Spark has made with the checkpoint."""
    synced = Synced(checkpoint.root, monkeypatch)
    at(checkpoint).make_durable(7, True)
    assert synced.trees == ["."]
    assert set(synced.above) == {str(level) for level in checkpoint.root.parents}


def test_a_batch_that_is_not_planned_is_refused(checkpoint: MadeCheckpoint) -> None:
    with pytest.raises(RecordError, match=r"Spark runs batch 8, but offsets/8 is not in its checkpoint .*/chk"):
        at(checkpoint).make_durable(8, False)


@pytest.mark.parametrize("state", ["delta", "zip"])
@pytest.mark.parametrize("length", [0, 3])
def test_a_batch_whose_state_is_torn_is_refused_while_the_one_before_can_come_again(
    tmp_path: Path, state: str, length: int
) -> None:
    checkpoint = made(tmp_path, state=state)
    at(checkpoint).make_durable(7, False)
    name = "state/0/1/7.delta" if state == "delta" else "state/0/1/SSTs/7.sst"
    checkpoint.put(name, bytes(2000 if state == "delta" else 4))
    checkpoint.tear(name, length=length)
    with pytest.raises(
        RecordError, match=rf"state of version 7 is damaged .*{name} .*outfall repair {checkpoint.root}"
    ):
        at(checkpoint).make_durable(7, False)


def test_a_disk_that_fails_says_so(checkpoint: MadeCheckpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    def fsync(descriptor: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(TransientError, match=r"syncing Spark's checkpoint in .*/chk.* failed"):
        at(checkpoint).make_durable(7, False)


def test_the_real_calls_succeed(checkpoint: MadeCheckpoint) -> None:
    at(checkpoint).make_durable(7, True)


@pytest.mark.parametrize("location", ["s3://bucket/chk", "hdfs://name/chk", "dbfs:/chk", "{}/elsewhere", None])
def test_other_places_are_not_synced(tmp_path: Path, location: str | None) -> None:
    assert SparkCheckpoint.at(location and location.format(tmp_path)) is None


def test_a_local_checkpoint_is_known_by_path_and_by_url(checkpoint: MadeCheckpoint) -> None:
    for location in (checkpoint.root, str(checkpoint.root), f"file:{checkpoint.root}", f"file://{checkpoint.root}"):
        assert SparkCheckpoint.at(location) == SparkCheckpoint(str(checkpoint.root))


def test_the_source_is_durable_before_begin_and_everything_at_first_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    recovery, calls, order = str(tmp_path / "rec"), [], []

    def make_durable(batch: int | None, everything: bool) -> None:
        calls.append((batch, everything))
        order.append("durable")

    stop = listen(lambda step: order.append(step) if step in {"before BEGIN", "after BEGIN"} else None)
    options = EpochOptions(make_source_durable=make_durable)
    for batch in (0, 1, 1):
        LocalDriver(FileSink(str(tmp_path / "out")), recovery, options=options).run_epoch(batch, [[{"id": batch}]])
    stop()
    assert calls == [(0, True), (1, False)], "a batch that is skipped begins nothing"
    assert order == ["durable", "before BEGIN", "after BEGIN"] * 2
    monkeypatch.setattr("outfall.protocol.takeover.outfall_version", lambda: "99")
    LocalDriver(FileSink(str(tmp_path / "out")), recovery, options=options).coordinator().begin(2)
    assert calls[-1] == (2, True), "another release may not have done it"


def test_nothing_is_begun_where_the_source_cannot_be_made_durable(tmp_path: Path) -> None:
    def fail(batch: int | None, everything: bool) -> None:
        raise TransientError("the disk failed", do="wait")

    recovery = str(tmp_path / "rec")
    driver = LocalDriver(FileSink(str(tmp_path / "out")), recovery, options=EpochOptions(make_source_durable=fail))
    with pytest.raises(TransientError, match="the disk failed"):
        driver.run_epoch(0, [[{"id": 0}]])
    assert kinds(recovery) == []
