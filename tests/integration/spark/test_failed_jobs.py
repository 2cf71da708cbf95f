"""Batch jobs without recovery data that fail, and what is there when they are run again."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from outfall.capabilities import CleanUpContext
from outfall.file import FileSink
from outfall.file.whole.commit import FileStaging
from outfall.protocol.coordinator import EpochCoordinator
from outfall.spark import write
from outfall.spark.version_check import pyspark_version
from tests.integration.support.reading import found_ids

pytestmark = pytest.mark.spark


def by_objects(df: DataFrame, out: Path) -> None:
    write(df, FileSink(out))


def by_options(df: DataFrame, out: Path) -> None:
    df.write.format("outfall").option("sink", "file").mode("append").save(str(out))


APIS = [
    by_objects,
    pytest.param(
        by_options,
        marks=[
            pytest.mark.skipif(pyspark_version() < (4, 1), reason="data sources take Arrow since 4.1"),
            pytest.mark.thorough,
        ],
    ),
]


@pytest.fixture
def logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where this test's jobs have their logs."""
    place = tmp_path / "logs"
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    return place


@pytest.mark.thorough
@pytest.mark.parametrize("run", APIS)
def test_a_job_that_failed_can_be_run_again(
    spark: SparkSession, tmp_path: Path, run: Callable[[DataFrame, Path], None]
) -> None:
    out = tmp_path / "out"
    ids = spark.range(0, 8, 1, 4)
    with pytest.raises(Exception, match="no such thing"):
        run(ids.selectExpr("id", "if(id = 7, raise_error('no such thing'), 'x') AS v"), out)
    # Of tasks that ended after that a file may be left in staging, until the next job comes.
    assert list((out / "_outfall").glob("*.json")) == []
    run(ids, out)
    assert found_ids(out) == list(range(8))


@pytest.mark.thorough
def test_a_job_that_was_recorded_when_it_failed_says_how_it_is_finished(
    spark: SparkSession, tmp_path: Path, logs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: FileStaging, staged: Any) -> None:
        raise OSError(28, "No space left on device")

    ids, sink = spark.range(8), FileSink(tmp_path / "out")
    with monkeypatch.context() as broken:
        broken.setattr(FileStaging, "publish", full)
        with pytest.raises(Exception, match="No space left") as failed:
            write(ids, sink)
    (log,) = logs.glob("outfall-batch-*")
    assert f"epoch=0 and recovery='{log}'" in "".join(failed.value.__notes__)
    assert write(ids, sink, epoch=0, recovery=str(log)).skipped
    assert found_ids(tmp_path / "out") == list(range(8))


class InterruptedSink(FileSink):
    """Is interrupted in the clean-up after COMPLETED."""

    def clean_up(self, context: CleanUpContext) -> int:
        if context.final:
            raise KeyboardInterrupt
        return 0


WRITTEN = "All rows of the job are written: do not run it again"


def test_a_job_that_is_interrupted_after_it_was_completed_says_so(
    spark: SparkSession, tmp_path: Path, logs: Path
) -> None:
    with pytest.raises(KeyboardInterrupt) as interrupted:
        write(spark.range(8), InterruptedSink(tmp_path / "out"))
    assert WRITTEN in "".join(interrupted.value.__notes__)
    assert found_ids(tmp_path / "out") == list(range(8))
    assert list(logs.iterdir()) == []


@pytest.mark.thorough
@pytest.mark.skipif(pyspark_version() < (4, 1), reason="data sources take Arrow since 4.1")
def test_a_job_by_options_whose_commit_is_killed_after_it_was_completed_says_so(
    spark: SparkSession, tmp_path: Path
) -> None:
    from outfall.spark.data_source import OutfallDataSource  # only Spark 4.1 has what it needs

    class KilledSink(FileSink):
        def clean_up(self, context: CleanUpContext) -> int:
            if context.final:
                os._exit(9)
            return 0

    class Killed(OutfallDataSource):
        @classmethod
        def name(cls) -> str:
            return "outfall_killed"

        def make_sink(self, name: str, options: Mapping[str, str]) -> Any:
            return KilledSink(options["path"])

    spark.dataSource.register(Killed)
    with pytest.raises(Exception, match=WRITTEN):
        spark.range(8).write.format("outfall_killed").option("sink", "file").mode("append").save(f"{tmp_path}/killed")
    assert found_ids(tmp_path / "killed") == list(range(8))


def test_a_job_that_cannot_be_taken_back_keeps_its_log(
    spark: SparkSession, tmp_path: Path, logs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable(self: EpochCoordinator) -> bool:
        raise OSError(112, "Host is down")

    monkeypatch.setattr(EpochCoordinator, "withdraw", unreachable)
    with pytest.raises(Exception, match="no such thing") as failed:
        write(spark.range(1).selectExpr("raise_error('no such thing') AS id"), FileSink(tmp_path / "out"))
    (log,) = logs.glob("outfall-batch-*")
    assert f"outfall gc {log} sink --take-over" in "".join(failed.value.__notes__)
