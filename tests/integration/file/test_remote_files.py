"""Whole files in an object store, through Spark and in front of a real S3 server."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from outfall.file import FileSink
from outfall.spark import write_stream
from outfall.testing import LocalDriver
from outfall.testing.crash_points import crash_at
from tests.integration.support.reading import forget_commit, read_stream, run, write_source
from tests.integration.support.s3 import S3


@pytest.fixture
def bucket(s3_through_fsspec: S3) -> str:
    name = f"outfall-{uuid.uuid4().hex}"
    s3_through_fsspec.client().create_bucket(Bucket=name)
    return name


@pytest.fixture
def spark_with_s3(spark: SparkSession, s3: S3) -> Iterator[SparkSession]:
    environment = spark.sparkContext.environment
    environment.update(s3.environment)
    yield spark
    for name in s3.environment:
        del environment[name]


def ids(s3: S3, bucket: str) -> list[int]:
    found = s3.objects(bucket, "out/")
    data = [content for name, content in found.items() if not name.startswith("_")]
    return sorted(json.loads(line)["id"] for content in data for line in content.splitlines())


def staged(s3: S3, bucket: str) -> list[str]:
    return list(s3.objects(bucket, "out/_outfall/staging/"))


@pytest.mark.thorough
@pytest.mark.spark
def test_a_stream_is_once_in_the_bucket_also_when_an_epoch_is_replayed(
    spark_with_s3: SparkSession, s3: S3, bucket: str, tmp_path: Path
) -> None:
    source, checkpoint = write_source(tmp_path / "source"), tmp_path / "checkpoint"
    sent = sorted(row["id"] for row in spark_with_s3.read.json(str(source)).select("id").collect())
    for _ in range(2):
        frame = read_stream(spark_with_s3, source)
        run(write_stream(frame, FileSink(f"s3://{bucket}/out", roll_bytes="1 KiB"), checkpoint=str(checkpoint)))
        assert ids(s3, bucket) == sent
        assert staged(s3, bucket) == []
        forget_commit(checkpoint, 0)


STEPS = ["file: copied#2"]
MORE_STEPS = [
    "after PREPARED",
    "file: synced", "file: staged", "before PREPARED", "file: record advanced", "file: publishing#2", "file: copied",
    "file: published#2", "after commit", "after COMPLETED",
]  # fmt: skip


@pytest.mark.parametrize("step", [*STEPS, *(pytest.param(step, marks=pytest.mark.thorough) for step in MORE_STEPS)])
def test_a_driver_that_dies_anywhere_leaves_each_row_once(
    s3: S3, bucket: str, tmp_path: Path, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("outfall.file.stores.remote.RemoteStore.parallel", 1)
    sink, recovery = FileSink(f"s3://{bucket}/out"), str(tmp_path / "rec")
    tasks = [[{"id": index}, {"id": index + 10}] for index in range(3)]
    with crash_at(step) as seen:
        LocalDriver(sink, recovery).run_epoch(0, tasks)
    assert step.partition("#")[0] in seen
    LocalDriver(sink, recovery).run_epoch(0, tasks[::-1])
    LocalDriver(sink, recovery).run_epoch(1, [[{"id": 99}]])
    assert ids(s3, bucket) == [0, 1, 2, 10, 11, 12, 99]
    assert staged(s3, bucket) == []
