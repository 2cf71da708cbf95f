"""`OpenSearchSink` through Spark, by options, and the example as a user runs it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from outfall.opensearch import OpenSearchSink
from outfall.spark import write_stream
from outfall.spark.version_check import pyspark_version
from tests.documents import ROOT
from tests.integration.conftest import spark_environment
from tests.integration.opensearch.model import Cluster
from tests.integration.support.reading import read_stream, run, write_source

pytestmark = pytest.mark.spark


@pytest.mark.thorough
def test_streams_of_both_apis(cluster: Cluster, name: str, spark: SparkSession, tmp_path: Path) -> None:
    source = write_source(tmp_path / "source", 2, rows=15)
    for number, path in enumerate(sorted(source.iterdir())):
        os.utime(path, (number + 1, number + 1))  # Spark takes the oldest file first
    rows = read_stream(spark, source).repartition(2)
    newest = {f"key-{i % 5}": {"id": i, "k": f"key-{i % 5}"} for i in range(30)}
    cluster.faults(items=0.1, lost=0.1)
    sink = OpenSearchSink(cluster.url, index=name, key_columns="k", order_column="id", retry_backoff=0.01)
    run(write_stream(rows, sink, checkpoint=tmp_path / "checkpoint"))
    assert cluster.rows(name) == newest

    if pyspark_version() < (4, 1):
        return
    writer = rows.writeStream.format("outfall").option("sink", "opensearch").option("url", cluster.url)
    writer = writer.option("index", f"{name}-2").option("keyColumns", "k").option("orderColumn", "id")
    run(writer.option("retryBackoff", "10 ms").option("checkpointLocation", str(tmp_path / "other")))
    assert cluster.rows(f"{name}-2") == newest


@pytest.mark.thorough
def test_the_example_finds_no_difference(cluster: Cluster, name: str) -> None:
    command = [sys.executable, str(ROOT / "examples" / "upserts_to_opensearch.py"), cluster.url, name]
    environment = os.environ | spark_environment()
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr[-3000:]
    assert "wrong or missing 0" in ran.stdout
