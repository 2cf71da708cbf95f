"""`S3Sink` through Spark, by both APIs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from outfall.spark import drain, write_stream
from outfall.spark.version_check import pyspark_version
from tests.integration.s3.support import Target, credentials_file
from tests.integration.support.reading import forget_commit, read_stream, run, write_source

pytestmark = pytest.mark.spark


@pytest.fixture
def spark_with_s3(spark: SparkSession, target: Target) -> Iterator[SparkSession]:
    """A session all of whose processes have credentials."""
    with credentials_file(target.server):
        yield spark


def sent(spark: SparkSession, source: Path) -> list[int]:
    return sorted(row["id"] for row in spark.read.json(str(source)).select("id").collect())


@pytest.mark.thorough
def test_a_stream_of_objects_is_once_in_the_bucket_also_when_an_epoch_is_replayed(
    spark_with_s3: SparkSession, target: Target, tmp_path: Path
) -> None:
    """The session factory goes to the tasks with the sink."""
    source, checkpoint = write_source(tmp_path / "source", 1), tmp_path / "checkpoint"
    for _ in range(2):
        sink = target.sink(partition_by="k", inline_bytes=100)
        run(write_stream(read_stream(spark_with_s3, source), sink, checkpoint=checkpoint))
        assert target.ids() == sent(spark_with_s3, source)
        assert target.uploads() == []
        forget_commit(checkpoint, 0)
    assert {key.partition("/")[0] for key in target.data()} == {f"k=key-{number}" for number in range(5)}


@pytest.mark.thorough
@pytest.mark.parametrize("epochs", [1, pytest.param(2, marks=pytest.mark.thorough)])
def test_a_stream_by_options(spark_with_s3: SparkSession, target: Target, tmp_path: Path, epochs: int) -> None:
    """Every micro-batch is planned and committed in processes of their own; the last of several comes again."""
    if pyspark_version() < (4, 1):
        pytest.skip("options need Spark 4.1")
    source, checkpoint = write_source(tmp_path / "source", epochs), tmp_path / "checkpoint"
    for _ in range(epochs):
        writer = read_stream(spark_with_s3, source).writeStream.format("outfall").option("sink", "s3")
        writer = writer.option("path", target.url.replace("s3:", "s3a:")).option("inlineBytes", "0")
        writer = writer.option("endpointUrl", target.server.endpoint).option("region", "us-east-1")
        run(writer.option("checkpointLocation", str(checkpoint)))
        assert target.ids() == sent(spark_with_s3, source)
        assert target.uploads() == []
        forget_commit(checkpoint, 1)


@pytest.mark.thorough
def test_micro_batches_of_a_stream_wait_for_one_object_of_each_worker(
    spark_with_s3: SparkSession,
    target: Target,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source, checkpoint = write_source(tmp_path / "source"), tmp_path / "checkpoint"
    sink = target.sink(roll_bytes="64 MiB", inline_bytes=0)
    # A period of the clock that begins within a run makes the line due again.
    monkeypatch.setattr("outfall.protocol.epoch_report._REPEAT_AFTER", 1e12)
    caplog.set_level("INFO", "outfall.protocol.epoch_report")
    for replayed in (0, 1):
        run(write_stream(read_stream(spark_with_s3, source), sink, workers=2, checkpoint=checkpoint))
        forget_commit(checkpoint, replayed)
    run(write_stream(read_stream(spark_with_s3, source), sink, workers=2, checkpoint=checkpoint))
    commands = [record for record in caplog.records if f"outfall drain {checkpoint} sink" in record.getMessage()]
    assert len(commands) == 2, "once in each run that Spark brings a batch to"
    assert target.data() == {}
    drain(sink, checkpoint=checkpoint)
    assert target.ids() == sent(spark_with_s3, source)
    assert len(target.data()) == 2
    assert [key for key in target.objects() if key.startswith("_outfall/pieces/")] == []
