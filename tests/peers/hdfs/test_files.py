"""Whole files in HDFS, read by Hadoop's own client in Spark."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hdfs_native import WriteOptions
from pyspark.sql import SparkSession

from outfall.errors import OutfallError
from outfall.file import FileSink
from outfall.recovery import CheckpointRecoveryConfig
from outfall.testing import LocalDriver, SinkConformance
from tests.integration.support.waiting import until
from tests.peers.support.hadoop import Directory, Hdfs


@pytest.mark.spark
def test_hadoops_own_client_reads_what_was_sent(out: Directory, spark: SparkSession) -> None:
    """Directories have names that URLs give a meaning."""
    kinds = ["a;b", "a#b", "a?b", "a b", "é%20", "a:b", "=", "a/b"]
    rows = [{"id": number, "kind": kind} for number, kind in enumerate(kinds)]
    recovery = CheckpointRecoveryConfig(f"{out.url}-chk")
    LocalDriver(FileSink(out.url, partition_by=["kind"]), recovery).run_epoch(0, [rows[:4], rows[4:]])
    found = spark.read.schema("id int, kind string").json(out.url)
    assert sorted((row["id"], row["kind"]) for row in found.collect()) == list(enumerate(kinds))


@pytest.mark.faults
def test_a_namenode_that_is_killed_keeps_what_was_committed(hdfs: Hdfs, driver: LocalDriver, out: Directory) -> None:
    driver.run_epoch(0, [[{"id": 0}], [{"id": 1}]])
    hdfs.namenode.kill()
    hdfs.namenode.start()
    until(hdfs.writes, "the namenode leaving its safe mode")
    driver.run_epoch(1, [[{"id": 2}]])
    assert out.ids() == [0, 1, 2]


@pytest.mark.faults
@pytest.mark.long
def test_a_datanode_that_is_killed_fails_the_epoch_and_nothing_else(
    hdfs: Hdfs, driver: LocalDriver, out: Directory
) -> None:
    driver.run_epoch(0, [[{"id": 0}]])
    hdfs.datanode.kill()
    try:
        with pytest.raises((OutfallError, OSError)):
            driver.run_epoch(1, [[{"id": 1}]])
    finally:
        hdfs.datanode.start()
    driver.run_epoch(1, [[{"id": 1}]])
    assert out.ids() == [0, 1]


@pytest.mark.faults
def test_safe_mode_and_quotas_are_told_and_waited_for(hdfs: Hdfs, driver: LocalDriver, out: Directory) -> None:
    driver.run_epoch(0, [[{"id": 0}]])
    hdfs.admin("-safemode", "enter")
    try:
        with pytest.raises(OutfallError, match="SafeModeException"):
            driver.run_epoch(1, [[{"id": 1}]])
    finally:
        hdfs.admin("-safemode", "leave")
    hdfs.admin("-setQuota", "1", out.path)
    with pytest.raises(OutfallError, match="quota"):
        driver.run_epoch(1, [[{"id": 1}]])
    hdfs.admin("-clrQuota", out.path)
    driver.run_epoch(1, [[{"id": 1}]])
    assert out.ids() == [0, 1]


@pytest.mark.long
class TestWholeFilesInHdfs(SinkConformance):
    deadline = 600
    """Forty epochs without a sign of life: each takes seconds on a busy machine."""

    @pytest.fixture(autouse=True)
    def _cluster(self, hdfs: Hdfs) -> None:
        self.hdfs = hdfs

    def new_target(self, directory: Path) -> Directory:
        return Directory(self.hdfs, f"{directory.parent.name}-{uuid.uuid4().hex}")

    def make_sink(self, target: Directory) -> Any:
        return FileSink(target.url)

    def read(self, target: Directory) -> Iterable[Any]:
        return target.rows()

    def lose(self, target: Directory, committable: Any) -> None:
        target.remove(f"_outfall/staging/{committable.name}")

    def lose_target(self, target: Directory) -> None:
        target.client.delete(target.path, True)

    def save_target(self, target: Directory) -> Callable[[], None]:
        files = target.everything()

        def restore() -> None:
            self.lose_target(target)
            for path, data in files.items():
                target.put(path, data)

        return restore

    @contextmanager
    def breaking(self, target: Directory) -> Iterator[None]:
        """Have the directory give way to a file."""
        away = f"{target.path}-away"
        target.client.rename(target.path, away)
        target.client.create(target.path, WriteOptions()).close()
        try:
            yield
        finally:
            target.client.delete(target.path, False)
            target.client.rename(away, target.path)

    def leftovers(self, target: Directory) -> int:
        return sum(path.startswith("_outfall/staging/") for path in target.everything())
