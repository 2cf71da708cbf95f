"""Taking possession of a target: one table of cases over all kinds of targets that run in this process.

Databases run the same cases on a server: tests/integration/sql/test_possession.py. A copied log, older and
newer copies of a target, lost targets, save modes and failed jobs are checks of the conformance suite.
"""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any, Literal

import pytest

from outfall.errors import ConfigurationError, FencedError, TargetError, TargetLostError, TargetNotEmptyError
from outfall.file import FileSink
from outfall.kafka.options import KafkaOptions
from outfall.testing import LocalDriver, MemoryRecoveryConfig, SinkHarness, crash_at
from tests.one_each import one_each
from tests.unit.file.test_conformance import GrowingFiles, WholeFiles
from tests.unit.kafka.test_parts_conformance import Parts
from tests.unit.s3.test_conformance import Uploads
from tests.unit.support.fake_s3 import FakeS3
from tests.unit.support.kafka_cluster import MemoryDelivery
from tests.unit.support.possession import MODES, STEPS, queries_meet
from tests.unit.support.remote_target import Memory, hdfs_on_disk
from tests.unit.tables.test_conformance import ModelTables


class Remote(SinkHarness):
    """Whole files in a store without locks."""

    def new_target(self, directory: Path) -> Memory:
        return Memory(uuid.uuid4().hex)

    def make_sink(self, target: Memory) -> Any:
        return FileSink(target.url)

    def read(self, target: Memory) -> Any:
        return target.rows()


KINDS: dict[str, type[SinkHarness]] = {
    "whole": WholeFiles,
    "growing": GrowingFiles,
    "remote": Remote,
    "s3": Uploads,
    "table": ModelTables,
    "kafka": Parts,
}


@pytest.mark.parametrize(
    ("kind", "modes"),
    [
        *one_each([kind for kind in KINDS if kind != "kafka"], MODES),
        ("kafka", ("append", "append")),
    ],
    ids=str,
)
def test_of_two_queries_that_meet_none_loses_a_row_unnoticed(kind: str, modes: tuple[str, str], tmp_path: Path) -> None:
    for number, step in enumerate(STEPS):
        directory = tmp_path / str(number)
        directory.mkdir()
        queries_meet(KINDS[kind](), directory, modes, step, stops=kind != "table")


# --- files and objects


class Files:
    """A directory or a prefix, with sinks that write there."""

    def __init__(self, kind: str, directory: Path) -> None:
        self.kind, self.directory = kind, directory
        self.bucket, self.memory = FakeS3(), Memory(uuid.uuid4().hex)

    def sink(self, **options: Any) -> Any:
        if self.kind == "s3":
            return self.bucket.sink("out", **options)
        if self.kind == "remote":
            return FileSink(self.memory.url, **options)
        return FileSink(self.directory / "out", **options, parts=1 if self.kind == "growing" else None)

    def put(self, path: str) -> None:
        """Write a file that is no sink's."""
        if self.kind == "s3":
            self.bucket.put(f"out/{path}", b"theirs")
        elif self.kind == "remote":
            self.memory.put(path, b"theirs")
        else:
            file = self.directory / "out" / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(b"theirs")

    def holds(self, path: str) -> bool:
        if self.kind == "s3":
            return f"out/{path}" in self.bucket.objects
        if self.kind == "remote":
            return path in self.memory.everything()
        return (self.directory / "out" / path).exists()


def run(sink: Any, recovery: MemoryRecoveryConfig, epoch: int = 0) -> None:
    rows: list[Any] = [{"id": epoch, "carrier": "AA"}]
    fixed = hasattr(sink.delegate, "list_parts") if hasattr(sink, "delegate") else False
    LocalDriver(sink, recovery).run_epoch(epoch, [[("0", rows[0])] if fixed else rows])


STORED = ["whole", "growing", "remote", "s3"]


@pytest.mark.parametrize("kind", STORED)
@pytest.mark.parametrize("path", ["archive/x.jsonl", "chk/offsets/0", "carrier=AA/archive/x.jsonl"])
def test_overwriting_deletes_no_directories_but_its_own(kind: str, path: str, tmp_path: Path) -> None:
    files = Files(kind, tmp_path)
    files.put(path)
    options = {} if kind == "growing" else {"partition_by": "carrier"}
    with pytest.raises(TargetNotEmptyError, match=f"holds the directory '{path.split('/')[-2]}'|holds the directory"):
        run(files.sink(on_existing="overwrite", **options), MemoryRecoveryConfig())
    assert files.holds(path)


@pytest.mark.parametrize("kind", ["whole", "remote", "s3"])
def test_overwriting_deletes_partitions_of_columns_and_times(kind: str, tmp_path: Path) -> None:
    files = Files(kind, tmp_path)
    files.put("carrier=AA/2026-11/day 01/x.jsonl")
    options = {"partition_by": "carrier", "directory_pattern": "yyyy-MM/'day 'dd"}
    run(files.sink(on_existing="overwrite", **options), MemoryRecoveryConfig())
    assert not files.holds("carrier=AA/2026-11/day 01/x.jsonl")


@pytest.mark.parametrize("kind", ["whole", "remote", "s3"])
@pytest.mark.parametrize(
    ("changed", "named"),
    [({"format": "csv"}, "format"), ({"partition_by": "carrier"}, "partition_by"), ({"compression": "gzip"}, None)],
    ids=["format", "directories", "compression"],
)
def test_a_query_goes_on_only_with_files_that_readers_can_read_together(
    kind: str, changed: dict[str, Any], named: str | None, tmp_path: Path
) -> None:
    files, recovery = Files(kind, tmp_path), MemoryRecoveryConfig()
    run(files.sink(), recovery)
    if named is None:
        run(files.sink(**changed), recovery, 1)
        return
    with pytest.raises(ConfigurationError, match=f"{named}.* has changed"):
        run(files.sink(**changed), recovery, 1)
    run(files.sink(), recovery, 1)


@pytest.mark.parametrize("kind", ["whole", "growing"])
@pytest.mark.parametrize("link", ["_outfall", "_outfall/staging"])
def test_links_in_place_of_the_sinks_own_directories_are_refused(kind: str, link: str, tmp_path: Path) -> None:
    theirs, inner = tmp_path / "theirs", tmp_path / "out" / link
    theirs.mkdir()
    (theirs / "part-0000000000-00000-00000-00000000000000aa-g1-a0.jsonl").write_text("theirs")
    inner.parent.mkdir(parents=True)
    inner.symlink_to(theirs)
    with pytest.raises(TargetError, match="is a symbolic link"):
        run(Files(kind, tmp_path).sink(), MemoryRecoveryConfig())
    assert len(list(theirs.iterdir())) == 1


def test_a_job_that_appends_to_the_parts_of_a_query_is_refused_and_the_query_goes_on(tmp_path: Path) -> None:
    query = MemoryRecoveryConfig()
    run(Files("growing", tmp_path).sink(), query)
    with pytest.raises(TargetNotEmptyError, match=r"has ended permanently, delete .*\.json"):
        run(Files("growing", tmp_path).sink(on_existing="resume"), MemoryRecoveryConfig())
    run(Files("growing", tmp_path).sink(), query, 1)


def test_rows_under_a_lost_checkpoint_are_kept_in_kafka_only_if_told_and_end_the_other_query(tmp_path: Path) -> None:
    place = Parts().new_target(tmp_path)

    def run(recovery: MemoryRecoveryConfig, epoch: int, on_existing: Literal["check", "resume"]) -> None:
        options = KafkaOptions(
            brokers="memory:9092", topic=place.topic, ledger_topic="ledger", parts=2, value_format="json",
            on_existing=on_existing,
        )  # fmt: skip
        LocalDriver(MemoryDelivery(options, place.connect), recovery).run_epoch(epoch, [[("0", {"id": epoch})]])

    old, new = MemoryRecoveryConfig(), MemoryRecoveryConfig()
    run(old, 0, "check")
    with pytest.raises(TargetNotEmptyError, match="wrote under another checkpoint, up to epoch 0"):
        run(MemoryRecoveryConfig(), 0, "check")
    run(old, 1, "check")
    with crash_at("after open target"):
        run(new, 0, "resume")
    with pytest.raises(FencedError, match="another query has permanently taken over"):
        run(old, 2, "check")
    run(new, 0, "resume")
    with pytest.raises(TargetLostError, match="it has no epoch of this query"):
        run(old, 2, "check")
    run(new, 1, "resume")


def test_hdfs_on_a_disk_is_one_of_the_stores(tmp_path: Path) -> None:
    with hdfs_on_disk():
        sink = FileSink(f"hdfs://namenode:8020{tmp_path}/out", on_existing="overwrite")
        (tmp_path / "out" / "archive").mkdir(parents=True)
        (tmp_path / "out" / "archive" / "x.jsonl").write_text("theirs")
        with pytest.raises(TargetNotEmptyError, match="holds the directory 'archive'"):
            run(sink, MemoryRecoveryConfig())
