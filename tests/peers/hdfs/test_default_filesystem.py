"""Where HDFS is Spark's default filesystem, a path without a scheme is not one of this host."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from outfall.errors import reason
from outfall.file import FileSink
from outfall.spark import write_stream
from tests.integration.support.reading import found_ids, read_stream, run, write_source
from tests.peers.support.hadoop import Hdfs

pytestmark = pytest.mark.spark


@pytest.fixture
def on_hdfs(spark: SparkSession, hdfs: Hdfs) -> Iterator[SparkSession]:
    """The session, with HDFS as its default filesystem."""
    spark.conf.set("fs.defaultFS", f"hdfs://{hdfs.address}")
    yield spark
    spark.conf.unset("fs.defaultFS")


def stream(api: str, spark: SparkSession, root: Path, checkpoint: str) -> DataStreamWriter:
    df = read_stream(spark, Path(f"file:{write_source(root / 'source')}"))
    if api == "objects":
        return write_stream(df, FileSink(root / "out"), checkpoint=checkpoint)
    options = {"sink": "file", "path": str(root / "out"), "checkpointLocation": checkpoint}
    return df.writeStream.format("outfall").options(**options)


@pytest.mark.parametrize("api", ["objects", pytest.param("options", marks=pytest.mark.long)])
def test_a_log_that_would_not_be_in_the_checkpoint_is_refused(
    on_hdfs: SparkSession, hdfs: Hdfs, tmp_path: Path, api: str
) -> None:
    """It would be on the disk of the driver's host, where the next driver on another host finds none."""
    checkpoint = f"{tmp_path}/{uuid.uuid4().hex}"
    with pytest.raises(Exception, match=r"fs\.defaultFS") as failed:
        run(stream(api, on_hdfs, tmp_path, checkpoint))
    assert "the log cannot be next to the checkpoint" in reason(failed.value)
    assert found_ids(tmp_path / "out") == []
    assert not Path(checkpoint).exists()
    run(stream(api, on_hdfs, tmp_path, f"hdfs://{hdfs.address}{checkpoint}"))
    assert found_ids(tmp_path / "out") == list(range(20))
