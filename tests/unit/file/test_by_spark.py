"""Whole files that Spark's writer encodes: what the driver does with the files, with a stand-in for Spark's job."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from outfall.capabilities import SupportsSparkWriter
from outfall.capability_checks import capabilities_of, check_sink
from outfall.errors import (
    CapabilityError,
    CommitRefusedError,
    ConfigurationError,
    OutfallError,
    TransientError,
    UnsharedTargetError,
)
from outfall.file import FileSink, sink_from_options
from outfall.recovery import history, recovery_config
from outfall.s3 import S3Sink
from outfall.source_options import check_for_options
from outfall.testing import CrashError, LocalDriver, crash_at
from outfall.testing.conformance.stepping import at_step
from outfall.wrappers import FanOutSink
from tests.unit.support.command import done
from tests.unit.support.file_target import OURS, WholeDriver, ids, staged_names, visible
from tests.unit.support.remote_target import Hdfs, hdfs_on_disk
from tests.unit.support.spark_writer import NAME, Cut, Rows, cut, run_epoch


def by_spark(out: Path, **options: Any) -> FileSink:
    return FileSink(out, **{"format": "avro", "writer": "spark", **options})


def stage(driver: WholeDriver, rows: Any) -> list[Any]:
    """What the engine does in an epoch, up to PREPARED."""
    writer = driver.sink.bind(driver.writer()).build("sink", 0, 0)
    try:
        writer.write_frame(rows)
        return list(writer.prepare_commit())
    finally:
        writer.close()


def stage_unclosed(driver: WholeDriver, rows: Any) -> None:
    """What a driver does that is killed before it can close its writer."""
    writer = driver.sink.bind(driver.writer()).build("sink", 0, 0)
    writer.write_frame(rows)
    writer.prepare_commit()


@pytest.fixture
def driver(out: Path) -> WholeDriver:
    driver = WholeDriver(by_spark(out))
    driver.begin()
    return driver


def test_the_files_of_spark_are_invisible_until_their_commit(driver: WholeDriver, out: Path) -> None:
    staged = stage(driver, Rows({NAME.format(0, ".avro"): [1, 2], NAME.format(3, ".avro"): [3]}))
    assert visible(out) == []
    driver.commit(staged)
    assert ids(out) == [1, 2, 3]
    assert [file.name.partition("-g1-")[2] for file in visible(out)] == ["a0.avro", "a0.avro"]
    assert staged_names(out) == []


def test_files_keep_their_partition_directories(out: Path) -> None:
    driver = WholeDriver(by_spark(out, format="parquet", partition_by="k"))
    driver.begin()
    rows = Rows({f"k=a%20b/{NAME.format(0, '.snappy.parquet')}": [1, 2]})
    staged = stage(driver, rows)
    driver.commit(staged)
    assert [(file.bucket, file.rows) for file in staged] == [("k=a%20b", 2)]
    (published,) = (out / "k=a%20b").iterdir()
    assert pq.read_table(published, partitioning=None).column("id").to_pylist() == [1, 2]
    assert rows.saved[0][1:] == ("parquet", {}, ("k",))


def test_an_epoch_without_rows_publishes_no_file(out: Path) -> None:
    driver = WholeDriver(by_spark(out, format="parquet"))
    driver.begin()
    # Spark writes one file with the schema only.
    assert stage(driver, Rows({NAME.format(0, ".snappy.parquet"): []})) == []
    assert staged_names(out) == []


@pytest.mark.parametrize("found", [{NAME.format(0, ".snappy.parquet"): [1, 2]}, {}], ids=["a part", "nothing"])
def test_a_file_that_is_missing_after_the_job_fails_the_epoch(out: Path, found: dict[str, list[int]]) -> None:
    driver = WholeDriver(by_spark(out, format="parquet"))
    driver.begin()
    with pytest.raises(UnsharedTargetError, match="wrote 3"):
        stage(driver, Rows(found, counted=3))
    assert staged_names(out) == []
    assert visible(out) == []


def test_executors_look_for_the_directory_where_files_do_not_tell_their_rows(driver: WholeDriver, out: Path) -> None:
    first, second = Rows({NAME.format(0, ".avro"): [1]}), Rows({NAME.format(0, ".avro"): [2]})
    driver.commit(stage(driver, first))
    driver.record_completed()
    driver.begin()
    driver.commit(stage(driver, second))
    assert (first.checks, second.checks) == (1, 0)

    parquet = WholeDriver(by_spark(out.with_name("parquet"), format="parquet"))
    parquet.begin()
    counted = Rows({NAME.format(0, ".snappy.parquet"): [1]})
    stage(parquet, counted)
    assert counted.checks == 0


def test_a_file_is_synced_before_its_name_is(driver: WholeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    fsync = os.fsync

    def watched(fd: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{fd}"))
        fsync(fd)

    monkeypatch.setattr(os, "fsync", watched)
    stage(driver, Rows({NAME.format(0, ".avro"): [1]}))
    assert [path.rpartition("/")[2] for path in synced] == [NAME.format(0, ".avro"), "staging"]


@pytest.mark.parametrize("writer", ["spark", "outfall"])
@pytest.mark.parametrize("step", ["file: written by spark", "file: synced", "file: staged"])
def test_what_a_killed_driver_leaves_is_removed_by_the_next_one(
    driver: WholeDriver, out: Path, step: str, writer: Any
) -> None:
    rows = Rows({NAME.format(0, ".avro"): [1], NAME.format(1, ".avro"): [2]})
    with crash_at(step), pytest.raises(CrashError):
        stage_unclosed(driver, rows)
    driver.sink = FileSink(out, format="avro" if writer == "spark" else "jsonl", writer=writer)
    driver.begin()
    # A late task of Spark makes the directory of its attempt again.
    late = Path(rows.saved[0][0].removeprefix("file:")) / "_temporary" / "0" / "task_1"
    late.mkdir(parents=True, exist_ok=True)
    (late / NAME.format(1, ".avro")).write_text("{}")
    assert driver.leftovers()
    driver.clean_up()
    assert staged_names(out) == []
    driver.sink = by_spark(out)
    driver.commit(stage(driver, Rows({NAME.format(0, ".avro"): [1, 2]})))
    assert ids(out) == [1, 2]


class Links(Rows):
    """What another program does to the files before the driver stages them: a link takes the place of one."""

    def __init__(self, theirs: Path, link: str) -> None:
        super().__init__({NAME.format(0, ".avro"): [1]})
        self._theirs = theirs
        self._link = link

    def save(self, url: str, **given: Any) -> int:
        rows = super().save(url, **given)
        (Path(url.removeprefix("file:")) / self._link).symlink_to(self._theirs)
        return rows + 1


@pytest.mark.parametrize("link", [NAME.format(1, ".avro"), "k=1"])
def test_a_link_among_the_files_of_spark_fails_the_epoch(driver: WholeDriver, out: Path, link: str) -> None:
    theirs = out.with_name("theirs")
    theirs.mkdir()
    (theirs / "theirs.json").write_text("{}")
    with pytest.raises(TransientError, match="is a symbolic link"):
        stage(driver, Links(theirs if link == "k=1" else theirs / "theirs.json", link))
    assert staged_names(out) == []
    assert list(theirs.iterdir()) == [theirs / "theirs.json"]


def test_a_link_in_place_of_an_attempts_directory_is_removed_and_not_followed(driver: WholeDriver, out: Path) -> None:
    theirs = out.with_name("theirs")
    theirs.mkdir()
    (theirs / "theirs.json").write_text("{}")
    (out / "_outfall/staging" / f"part-0000000000-00000-00000-{OURS}-g1-a0.by_spark").symlink_to(theirs)
    driver.begin()
    assert driver.clean_up() == 1
    assert staged_names(out) == []
    assert list(theirs.iterdir()) == [theirs / "theirs.json"]


def test_in_hdfs_files_are_published_and_what_a_killed_driver_leaves_is_removed(out: Path) -> None:
    with hdfs_on_disk():
        place = Hdfs(out)
        driver = WholeDriver(FileSink(place.url, format="avro", writer="spark"))
        driver.begin()
        with crash_at("file: written by spark"), pytest.raises(CrashError):
            stage_unclosed(driver, Rows({f"k=1/{NAME.format(0, '.avro')}": [1]}))
        driver.begin()
        assert [path.endswith(".by_spark") for path in driver.leftovers()] == [True]
        assert driver.clean_up() == 1
        staged = stage(driver, Rows({f"k=1/{NAME.format(0, '.avro')}": [1, 2], NAME.format(1, ".avro"): [3]}))
        assert place.ids() == []
        driver.commit(staged)
        assert (sorted(place.ids()), place.hidden()) == ([1, 2, 3], [])
        assert [file.bucket for file in staged] == ["k=1", ""]


@pytest.mark.parametrize("lost", [1, 600, 1 << 20], ids=["a byte", "a part", "all"])
@pytest.mark.parametrize("suffix", [".avro", ".snappy.parquet"])
def test_a_file_that_is_shorter_than_spark_wrote_it_is_never_staged(out: Path, suffix: str, lost: int) -> None:
    driver = WholeDriver(by_spark(out, format="avro" if suffix == ".avro" else "parquet"))
    driver.begin()
    rows = Cut({NAME.format(0, suffix): list(range(1000)), NAME.format(1, suffix): [1]}, lost=lost)
    with pytest.raises(TransientError, match=r"taking over files in .*staging.*checksums belong to another length"):
        stage(driver, rows)
    assert (staged_names(out), visible(out)) == ([], [])


@pytest.mark.parametrize("lost", [1, 1 << 20], ids=["a byte", "all"])
def test_without_checksums_the_footers_tell_that_a_file_is_shorter(out: Path, lost: int) -> None:
    driver = WholeDriver(by_spark(out, format="parquet"))
    driver.begin()
    with pytest.raises(OutfallError, match=r"which Spark wrote, cannot be read|have 0 rows, but its tasks wrote 1"):
        stage(driver, Cut({NAME.format(0, ".parquet"): [1]}, lost=lost, checksums=False))
    assert (staged_names(out), visible(out)) == ([], [])


def test_a_file_that_is_cut_between_prepared_and_its_publication_is_never_visible(out: Path, tmp_path: Path) -> None:
    recovery = recovery_config(str(tmp_path / "chk"))
    rows = Rows({NAME.format(0, ".avro"): [1, 2]})
    with at_step("after PREPARED", lambda: cut(out)), pytest.raises(CommitRefusedError, match="holds 19 bytes, but 20"):
        run_epoch(by_spark(out), recovery, rows)
    assert visible(out) == []
    with pytest.raises(CommitRefusedError, match=r"holds 19 bytes, but 20 were recorded.*restore the file"):
        run_epoch(by_spark(out), recovery, rows)
    assert visible(out) == []


def test_a_failed_attempt_leaves_nothing(driver: WholeDriver, out: Path) -> None:
    writer = driver.sink.bind(driver.writer()).build("sink", 0, 0)
    writer.write_frame(Rows({NAME.format(0, ".avro"): [1]}))
    writer.close()
    assert staged_names(out) == []


def test_log_and_status_tell_which_writer_wrote_an_epoch(
    out: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    recovery = recovery_config(str(tmp_path / "chk"))
    caplog.set_level("INFO", "outfall.protocol.epoch_report")
    for epoch, values in enumerate([[1, 2], []]):
        run_epoch(by_spark(out, format="parquet"), recovery, Rows({NAME.format(0, ".parquet"): values}), epoch)
    LocalDriver(FileSink(out, format="parquet"), recovery).run_epoch(2, [[{"id": 3}]])
    found = [re.sub(" in .*", "", message) for message in caplog.messages]
    assert found == [
        "step sink, epoch 0: completed 2 rows by Spark's writer",
        "step sink, epoch 1: completed 0 rows by Spark's writer",
        "step sink, epoch 2: completed 1 rows",
    ]
    table = done("status", tmp_path / "chk").splitlines()
    assert [line.split()[-1] for line in table[-3:]] == ["2", "0", "0"]
    assert [epoch.counts.get("rows_by_spark") for epoch in history(recovery)] == [2, 0, None]


def test_options_reach_the_writer_of_spark(out: Path) -> None:
    sink = by_spark(out, format="orc", compression="snappy", writer_options={"maxRecordsPerFile": 10})
    driver = WholeDriver(sink)
    driver.begin()
    rows = Rows({}, counted=0)
    stage(driver, rows)
    ((url, *given),) = rows.saved
    assert url.startswith(f"file:{out}/_outfall/staging/part-")
    assert given == ["orc", {"maxRecordsPerFile": "10", "compression": "snappy"}, ()]
    assert SupportsSparkWriter in capabilities_of(sink)
    check_sink(sink)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"parts": 2}, "parts"),
        ({"path": "s3://bucket/out"}, "a disk that all hosts share"),
        ({"format": "csv", "header": True}, "csv: leave out writer and writer_options.*to_csv"),
        ({"format": "jsonl"}, "jsonl: leave out writer"),
        ({"roll_bytes": 1}, "roll_bytes.*maxRecordsPerFile"),
        ({"directory_pattern": "'dt='yyyy"}, "directory_pattern"),
        ({"writer_options": {"Compression": "gzip"}}, "compression"),
        ({"writer": "outfall", "format": "orc"}, 'orc.*writer="spark"'),
        ({"writer": "outfall", "format": "csv", "writer_options": {"a": 1}}, "leave writer_options out"),
        ({"writer": "hive"}, "writer"),
    ],
)
def test_options_that_do_not_fit_are_refused(out: Path, options: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigurationError, match=f"(?s){named}"):
        FileSink(**{"path": out, "format": "orc", "writer": "spark", **options})


def test_formats_of_spark_only_are_refused_where_rows_come_to_python() -> None:
    with pytest.raises(ConfigurationError, match='writer="spark"'):
        S3Sink("bucket", format="orc")


def test_where_rows_come_to_python_such_a_sink_is_refused(out: Path) -> None:
    with pytest.raises(ConfigurationError, match="lets Spark write"):
        check_for_options(sink_from_options({"path": str(out), "format": "orc", "writer": "spark"}), "file")
    both = FanOutSink(a=by_spark(out / "a"), b=FileSink(out / "b"))
    with pytest.raises(CapabilityError, match=r"a.*lets Spark write"):
        check_sink(both)
