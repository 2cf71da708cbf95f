"""A distribution of somebody else, installed beside Outfall: its sink is named in options like our own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from outfall.spark.version_check import pyspark_version
from tests.integration.conftest import spark_environment
from tests.third_party.distribution import copy_code_only, install
from tests.third_party.outfall_letterbox import rows_in

pytestmark = [
    pytest.mark.spark,
    pytest.mark.thorough,
    pytest.mark.skipif(pyspark_version() < (4, 1), reason='format("outfall") needs Arrow stream writers, of Spark 4.1'),
]

DRIVER = """
import os, sys
from pyspark.sql import SparkSession

root, executors_path = sys.argv[1:]
session = SparkSession.builder.master("local-cluster[1,1,1024]")
for name, value in {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.local.dir": f"{root}/local",
    "spark.sql.warehouse.dir": f"{root}/local",
    "spark.executorEnv.PYTHONPATH": executors_path,
    "spark.executorEnv.CODE_ONLY": "yes",
}.items():
    session = session.config(name, value)
spark = session.getOrCreate()
spark.sparkContext.setLogLevel("OFF")


def registered(rows):
    from outfall import plugins

    return [(plugins.__file__, plugins.names(plugins.SINKS))]


((place, names),) = spark.sparkContext.parallelize([0], 1).mapPartitions(registered).collect()
assert place.startswith(executors_path.split(":")[0]) and names == [], (place, names)

options = {"sink": "letterbox", "directory": f"{root}/job"}
spark.range(10).write.format("outfall").options(**options).mode("append").save()

spark.range(10).write.parquet(f"{root}/source")
rows = spark.readStream.schema("id long").parquet(f"{root}/source")
options = {"sink": "fanout", "a.sink": "letterbox", "a.directory": f"{root}/stream", "a.batch_size": "3"}
writer = rows.writeStream.format("outfall").options(**options, checkpointLocation=f"{root}/checkpoint")
assert writer.trigger(availableNow=True).start().awaitTermination(120)
spark.stop()
"""


def test_a_sink_of_another_distribution_is_written_by_executors_that_have_the_code_alone(tmp_path: Path) -> None:
    for name in ("job", "stream", "local"):
        (tmp_path / name).mkdir()
    install(tmp_path / "installed")
    executors_path = os.pathsep.join(copy_code_only(tmp_path / "executor"))
    # Spark knows one Python for all its workers: this one has its site-packages on the driver only.
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} ${{CODE_ONLY:+-S}} "$@"\n')
    python.chmod(0o755)
    environment = {**os.environ, **spark_environment(), "PYSPARK_PYTHON": str(python)}
    environment["PYTHONPATH"] += os.pathsep + str(tmp_path / "installed")
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, str(tmp_path), executors_path],
        check=False,
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    for name in ("job", "stream"):
        assert sorted(row["id"] for row in rows_in(tmp_path / name)) == list(range(10))
