"""Whole files that are closed when they are full or old."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from outfall.errors import ConfigurationError, TransientError
from outfall.file import FileSink, sink_from_options
from outfall.file.whole.writer import OpenFiles
from outfall.storage.rolling import RollBounds
from outfall.testing import LocalDriver
from outfall.testing.crash_points import crash_at
from tests.unit.support.file_target import WholeDriver, ids, open_files, rows, visible, whole


def write(driver: WholeDriver, *batches: list[Any]) -> list[Any]:
    """Stage an attempt that gets its rows batch by batch."""
    part = driver.file()
    for batch in batches:
        part.write_batch(batch)
    staged = part.prepare_commit()
    part.close()
    return staged


def test_a_full_file_is_closed_and_the_next_sorts_after_it(out: Path) -> None:
    driver = WholeDriver(whole(out, roll_bytes=20))
    driver.begin()
    staged = write(driver, rows(1), rows(2), rows(3), rows(4), rows(5))
    assert [file.rows for file in staged] == [3, 2]
    driver.commit(staged)
    assert ids(out) == [1, 2, 3, 4, 5]
    assert [file.stat().st_size for file in visible(out)] == [file.size for file in staged] == [27, 18]


def test_a_file_without_bounds_takes_everything(out: Path) -> None:
    driver = WholeDriver(whole(out))
    driver.begin()
    assert [file.rows for file in write(driver, *(rows(number) for number in range(50)))] == [50]


def test_nothing_is_closed_that_holds_nothing() -> None:
    rolling = RollBounds(1, timedelta(seconds=10), clock=lambda: 100.0)
    assert not rolling.due(0, since=0.0)
    assert rolling.due(1, since=100.0)
    assert not RollBounds(2, timedelta(seconds=10), clock=lambda: 100.0).due(1, since=90.1)


def test_an_old_file_is_closed_when_rows_come(out: Path) -> None:
    now = [1000.0]
    sink = whole(out, roll_interval="10 seconds")
    sink.delegate.rolling = RollBounds(None, timedelta(seconds=10), clock=lambda: now[0])
    driver = WholeDriver(sink)
    driver.begin()
    part = driver.file()
    for number, later in enumerate((0, 9.5, 0.5, 9.9)):
        now[0] += later
        part.write_batch(rows(number))
    staged = part.prepare_commit()
    part.close()
    assert [file.rows for file in staged] == [2, 2]


def test_each_file_has_its_header_and_its_compression(out: Path) -> None:
    driver = WholeDriver(whole(out, format="csv", header=True, roll_bytes=1))
    driver.begin()
    driver.commit(write(driver, rows(1), rows(2)))
    assert [file.read_text() for file in visible(out)] == ["id\n1\n", "id\n2\n"]


def test_parquet_files_roll_by_what_they_will_take(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outfall.formats.parquet._GROUP_BYTES", 400_000)
    driver = WholeDriver(whole(out, format="parquet", roll_bytes=60_000))
    driver.begin()
    part = driver.file()
    batch = pa.record_batch({"id": pa.array(range(1000), pa.int64()), "same": pa.array(["x" * 50] * 1000)})
    for _ in range(100):
        part.write_record_batch(batch)
    staged = part.prepare_commit()
    part.close()
    driver.commit(staged)
    sizes = [file.stat().st_size for file in visible(out)]
    assert sum(pq.read_metadata(file).num_rows for file in visible(out)) == 100_000
    assert all(55_000 < size < 80_000 for size in sizes[:-1])


@pytest.mark.parametrize(
    "step", ["file: written", "file: synced", "file: finished", "file: finished#2", "file: staged"]
)
def test_an_attempt_killed_around_a_roll_leaves_nothing_visible(out: Path, step: str) -> None:
    driver = WholeDriver(whole(out, roll_bytes=1))
    driver.begin()
    with crash_at(step):
        write(driver, rows(1), rows(2), rows(3))
    driver.begin()
    staged = write(driver, rows(1), rows(2), rows(3))
    driver.commit(staged)
    driver.clean_up()
    assert ids(out) == [1, 2, 3]
    assert os.listdir(out / "_outfall" / "staging") == []


def test_an_attempt_that_fails_removes_all_its_files(out: Path) -> None:
    driver = WholeDriver(whole(out, roll_bytes=1))
    driver.begin()
    part = driver.file()
    for number in range(3):
        part.write_batch(rows(number))
    assert len(os.listdir(out / "_outfall" / "staging")) == 2  # the third is in memory still
    part.close()
    assert os.listdir(out / "_outfall" / "staging") == []


def test_the_engine_replays_epochs_that_roll_otherwise(out: Path, tmp_path: Path) -> None:
    recovery = str(tmp_path / "rec")
    LocalDriver(FileSink(out, roll_bytes=1), recovery).run_epoch(0, [rows(1, 2), rows(3)])
    sink = FileSink(out, roll_bytes=1)
    with crash_at("before PREPARED"):
        LocalDriver(sink, recovery).run_epoch(1, [rows(4, 5, 6)])
    LocalDriver(sink, recovery).run_epoch(1, [rows(6), rows(4), rows(5)])
    assert sorted(ids(out)) == [1, 2, 3, 4, 5, 6]
    assert len(visible(out)) == 5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"roll_bytes": "0"}, "roll_bytes of .*: must be at least one byte"),
        ({"roll_bytes": "many"}, "roll_bytes of .*: could not parse"),
        ({"roll_interval": "0 s"}, "roll_interval of .*: must be longer than 0"),
        ({"max_open_files": "0"}, "max_open_files"),
    ],
)
def test_wrong_bounds_are_refused(options: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        sink_from_options({"path": "/tmp/x", **options})


def test_bounds_may_come_as_text() -> None:
    options = sink_from_options({"path": "/x", "rollBytes": "128 MiB", "roll_interval": "1 hour"}).options
    assert (options.roll_bytes, options.roll_interval.total_seconds()) == (128 << 20, 3600)  # type: ignore[union-attr]


# --- file descriptors


def test_no_more_descriptors_are_open_than_allowed_and_files_go_on_where_they_were(tmp_path: Path) -> None:
    files = OpenFiles(3, sync=True)
    before = open_files(tmp_path)
    paths = [str(tmp_path / str(number)) for number in range(10)]
    for path in paths:
        os.write(files.create(path), b"a")
        assert open_files(tmp_path) - before <= 3
    for path in reversed(paths):
        os.write(files.get(path), b"b")
        assert open_files(tmp_path) - before <= 3
    for path in paths:
        files.close(path)
    assert open_files(tmp_path) == before
    assert [Path(path).read_bytes() for path in paths] == [b"ab"] * 10


def test_a_file_that_must_be_durable_is_synced_before_its_descriptor_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(os.readlink(f"/proc/self/fd/{fd}")))
    for sync in (False, True):
        files = OpenFiles(1, sync=sync)
        for name in ("a", "b"):
            files.create(str(tmp_path / f"{name}-{sync}"))
        files.close(str(tmp_path / f"b-{sync}"))
    assert synced == [str(tmp_path / "a-True")]


def test_a_sync_that_fails_when_a_descriptor_is_needed_fails_the_attempt(
    out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = WholeDriver(whole(out, partition_by="id", max_open_files=1))
    driver.begin()
    monkeypatch.setattr("outfall.file.encoded_file._PART_BYTES", 1)

    def fail(_: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", fail)
    part = driver.file()
    with pytest.raises(TransientError, match="Input/output"):
        part.write_batch([{"id": number, "x": 1} for number in range(3)])
    part.close()
