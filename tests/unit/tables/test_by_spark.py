"""Data files that Spark's writer encodes: what the driver does with them, with a stand-in for Spark's job."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from outfall.capabilities import (
    CleanUpContext,
    CommitRequest,
    CommittableMessage,
    CommitterInitContext,
    SupportsSparkWriter,
    TargetContext,
    WriterInitContext,
)
from outfall.capability_checks import capabilities_of, check_sink
from outfall.delta import DeltaSink, sink_from_options
from outfall.errors import (
    CapabilityError,
    ConfigurationError,
    EpochAbandonedError,
    TransientError,
    UnsharedTargetError,
)
from outfall.recovery import recovery_config
from outfall.source_options import check_for_options
from outfall.tables.data_file import EpochFiles, TaskFiles
from outfall.testing import CrashError, crash_at
from outfall.testing.conformance.stepping import at_step
from outfall.wrappers import FanOutSink
from tests.unit.support.delta_reader import newest
from tests.unit.support.spark_writer import NAME, Cut, Rows, cut, run_epoch

SUFFIX = ".snappy.parquet"
INCARNATION = "0123456789abcdef"


COLUMNS = pa.schema([("id", pa.int64())])


def rows_of(*files: Sequence[int], counted: int | None = None) -> Rows:
    """What Spark leaves, by its files."""
    return Rows({NAME.format(number, SUFFIX): ids for number, ids in enumerate(files)}, counted=counted)


class Driver:
    """What the engine does with a sink, one BEGIN after the other."""

    def __init__(self, path: Path, **options: Any) -> None:
        self.path = path
        self.sink = DeltaSink(path, create_table="if_missing", writer="spark", **options)
        self.sink.check_schema(COLUMNS)
        self.generation, self.epoch = 0, 0
        self.published: int | None = None

    @property
    def token(self) -> str:
        return f"{self.generation:016x}"

    def begin(self) -> None:
        self.generation += 1
        context: TargetContext[Any] = TargetContext(
            "sink", INCARNATION, self.epoch, completed=self.published, first_contact=self.generation == 1, states={},
            generation=self.generation, token=self.token, published=self.published,
        )  # fmt: skip
        self.sink.open_target(context)

    def writer(self) -> Any:
        context = WriterInitContext("sink", INCARNATION, self.generation, self.epoch, None, 0, token=self.token)
        return self.sink.bind(context).build("sink", 0, 0)

    def stage(self, rows: Rows) -> TaskFiles:
        writer = self.writer()
        try:
            writer.write_frame(rows)
            (files,) = writer.prepare_commit()
            return TaskFiles.model_validate_json(files.model_dump_json())
        finally:
            writer.close()

    def stage_unclosed(self, rows: Rows) -> None:
        """What a driver does that is killed before it can close its writer."""
        writer = self.writer()
        writer.write_frame(rows)
        writer.prepare_commit()

    def commit(self, files: TaskFiles) -> None:
        (message,) = EpochFiles.gather([CommittableMessage(files, self.epoch, 0)], overwrite=False)
        context = CommitterInitContext(
            "sink", INCARNATION, self.generation, self.epoch, token=self.token, begun={self.generation: self.token}
        )
        self.sink.create_committer(context).commit([CommitRequest(message.value)])
        self.sink.add_post_commit_topology([message])
        self.published, self.epoch = self.epoch, self.epoch + 1

    def cleaning(self) -> CleanUpContext:
        lost = {number: f"{number:016x}" for number in range(1, self.generation)}
        return CleanUpContext(
            "sink", INCARNATION, self.generation, states=dict, writer_states=tuple, lost=lost, token=self.token
        )

    def ids(self) -> list[int]:
        return sorted(row["id"] for row in newest(self.path).rows())

    def files(self) -> list[Path]:
        return sorted(path for path in self.path.rglob("*") if path.is_file() and "_delta_log" not in path.parts)


@pytest.fixture
def driver(tmp_path: Path) -> Driver:
    driver = Driver(tmp_path / "t")
    driver.begin()
    return driver


def test_the_files_of_spark_are_in_the_table_only_after_the_commit(driver: Driver) -> None:
    files = driver.stage(rows_of([1, 2], [], [3]))
    assert driver.ids() == []
    assert [(file.rows, file.partition) for file in files.files] == [(2, ()), (1, ())]
    driver.commit(files)
    assert driver.ids() == [1, 2, 3]
    assert [path.name for path in driver.files()] == sorted(files.names)
    stats = [file["stats"] for file in newest(driver.path).files.values()]
    assert all('"minValues":{"id":' in each for each in stats)


def test_options_and_settings_reach_the_writer_of_spark(tmp_path: Path) -> None:
    driver = Driver(tmp_path / "t", writer_options={"maxRecordsPerFile": 10})
    driver.begin()
    rows = rows_of([1])
    driver.stage(rows)
    ((url, format, options, partition_by),) = rows.saved
    assert (format, partition_by) == ("parquet", ())
    assert url.startswith(f"file:{tmp_path}/t/outfall/{INCARNATION}/g1-")
    assert options == {
        "maxRecordsPerFile": "10",
        "compression": "snappy",
        "spark.sql.parquet.writeLegacyFormat": "FALSE",
        "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    }
    assert {name: field.type for name, field in rows.sources.items()} == {"id": pa.int64()}


@pytest.mark.parametrize("found", [[[1, 2]], []], ids=["a part", "nothing"])
def test_a_file_that_is_missing_after_the_job_fails_the_epoch(driver: Driver, found: list[list[int]]) -> None:
    with pytest.raises(UnsharedTargetError, match="wrote 3"):
        driver.stage(rows_of(*found, counted=3))
    assert driver.files() == []


@pytest.mark.parametrize("lost", [1, 600, 1 << 20], ids=["a byte", "a part", "all"])
def test_a_file_that_is_shorter_than_spark_wrote_it_fails_the_epoch(driver: Driver, lost: int) -> None:
    with pytest.raises(TransientError, match=r"taking over data files in .*checksums belong to another length"):
        driver.stage(Cut({NAME.format(0, SUFFIX): list(range(1000))}, lost=lost))
    assert driver.files() == []


def test_without_checksums_the_footer_tells_that_a_file_is_shorter(driver: Driver) -> None:
    with pytest.raises(TransientError, match="which Spark wrote, cannot be read"):
        driver.stage(Cut({NAME.format(0, SUFFIX): [1]}, lost=1, checksums=False))
    assert driver.files() == []


def test_a_file_that_is_cut_between_prepared_and_its_commit_is_never_in_the_table(tmp_path: Path) -> None:
    path, recovery = tmp_path / "t", recovery_config(str(tmp_path / "chk"))

    def sink() -> DeltaSink:
        sink = DeltaSink(path, create_table="if_missing", writer="spark")
        sink.check_schema(COLUMNS)
        return sink

    run_epoch(sink(), recovery, rows_of([1]))
    with (
        at_step("after PREPARED", lambda: cut(path, 1)),
        pytest.raises(EpochAbandonedError, match=r"written again.*bytes, and \d+ were recorded"),
    ):
        run_epoch(sink(), recovery, rows_of([2]), 1)
    assert [row["id"] for row in newest(path).rows()] == [1]
    run_epoch(sink(), recovery, rows_of([2]), 1)
    assert sorted(row["id"] for row in newest(path).rows()) == [1, 2]


def test_a_file_is_durable_before_its_name_is(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    fsync = os.fsync

    def watched(fd: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{fd}"))
        fsync(fd)

    driver.stage(rows_of([1]))  # makes the directories
    monkeypatch.setattr(os, "fsync", watched)
    driver.stage(rows_of([2]))
    first, second = (path.rpartition("/")[2] for path in synced[:2])
    assert (first, second) == (NAME.format(0, SUFFIX), f"g1-{driver.token}")


@pytest.mark.parametrize("step", ["table: written by spark", "table: file written", "table: files synced"])
def test_what_a_killed_driver_leaves_is_removed_by_the_next_one(driver: Driver, step: str) -> None:
    rows = rows_of([1], [2])
    with crash_at(step), pytest.raises(CrashError):
        driver.stage_unclosed(rows)
    driver.begin()
    # A late task of Spark makes the directory of its attempt again.
    late = Path(rows.saved[0][0].removeprefix("file:")) / "_temporary" / "0" / "task_1"
    late.mkdir(parents=True, exist_ok=True)
    (late / NAME.format(1, SUFFIX)).write_bytes(b"late")
    assert any(str(late.parents[2]) in path for path in driver.sink.find_leftovers(driver.cleaning()))
    driver.sink.clean_up(driver.cleaning())
    assert driver.files() == []
    assert not late.exists()
    driver.commit(driver.stage(rows_of([1, 2])))
    assert driver.ids() == [1, 2]


def test_what_a_late_task_makes_again_is_removed_after_the_commit(driver: Driver) -> None:
    rows = rows_of([1])
    files = driver.stage(rows)
    late = Path(rows.saved[0][0].removeprefix("file:")) / "_temporary"
    late.mkdir(parents=True)
    driver.commit(files)
    assert not late.exists()
    assert driver.ids() == [1]


def test_links_that_spark_does_not_create_are_not_followed(driver: Driver, tmp_path: Path) -> None:
    (tmp_path / "others").mkdir()
    (tmp_path / "others" / "kept").touch()
    (tmp_path / "others.parquet").write_bytes(b"")
    linking = rows_of([1])
    save = linking.save

    def linked(url: str, **more: Any) -> int:
        counted = save(url, **more)
        (Path(url.removeprefix("file:")) / NAME.format(1, SUFFIX)).symlink_to(tmp_path / "others.parquet")
        return counted

    linking.save = linked  # type: ignore[method-assign]
    with pytest.raises(TransientError, match="is a symbolic link"):
        driver.stage(linking)
    rows = rows_of([2])
    files = driver.stage(rows)
    Path(rows.saved[0][0].removeprefix("file:")).symlink_to(tmp_path / "others")
    driver.commit(files)
    assert driver.ids() == [2]
    assert [path for path in driver.path.rglob("*") if path.is_symlink()] == []
    assert (tmp_path / "others" / "kept").exists()


def test_a_failed_attempt_leaves_nothing(driver: Driver) -> None:
    writer = driver.writer()
    writer.write_frame(rows_of([1]))
    writer.close()
    assert driver.files() == []


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"partition_by": "id"}, "partition_by"),
        ({"write_mode": "upsert", "key_columns": "id"}, "write_mode upsert"),
        ({"target_file_bytes": 1}, "target_file_bytes.*maxRecordsPerFile"),
        ({"max_open_files": 1}, "max_open_files"),
        ({"writer_options": {"Compression": "gzip"}}, "compression"),
        ({"writer": "outfall", "writer_options": {"a": 1}}, "writer_options"),
        ({"writer": "hive"}, "writer"),
    ],
)
def test_options_that_do_not_fit_are_refused(tmp_path: Path, options: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigurationError, match=f"(?s){told}"):
        DeltaSink(**{"path": tmp_path, "create_table": "if_missing", "writer": "spark", **options})


def test_where_rows_come_to_python_such_a_sink_is_refused(tmp_path: Path) -> None:
    sink = DeltaSink(tmp_path, writer="spark")
    assert SupportsSparkWriter in capabilities_of(sink)
    assert SupportsSparkWriter not in capabilities_of(DeltaSink(tmp_path))
    check_sink(sink)
    with pytest.raises(ConfigurationError, match="lets Spark write"):
        check_for_options(sink_from_options({"path": str(tmp_path), "writer": "spark"}), "delta")
    with pytest.raises(CapabilityError, match=r"a.*lets Spark write"):
        check_sink(FanOutSink(a=sink, b=DeltaSink(tmp_path)))
