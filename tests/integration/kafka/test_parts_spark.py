"""Parts through Spark: an epoch that is brought again, and drivers that are killed (-9) until the stream ends."""

from __future__ import annotations

import json
import uuid
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from outfall.kafka import KafkaSink
from outfall.spark import write_stream
from tests.integration.support.kafka_broker import ModelBroker
from tests.integration.support.kafka_reader import read
from tests.integration.support.killed_driver import KILLS, make_job
from tests.integration.support.reading import forget_commit, read_stream, run, write_source

pytestmark = pytest.mark.spark

STEPS = (
    "after BEGIN", "kafka: opening", "kafka: opened", "kafka: fencing", "kafka: before init", "kafka: after init",
    "kafka: begun", "task: after write", "kafka: before commit", "kafka: after commit", "task: after flush",
    "after collect", "before PREPARED", "after PREPARED", "before COMPLETED",
)  # fmt: skip


def options(brokers: str, parts: int) -> dict[str, Any]:
    return {
        "brokers": brokers, "topic": f"spark-{uuid.uuid4().hex}", "parts": parts, "value_format": "json",
        "create_topic": "if_missing", "partitions": 3, "replication_factor": 1, "delivery_timeout": 30,
    }  # fmt: skip


@pytest.mark.thorough
def test_an_epoch_that_is_brought_again_is_not_written_again(spark: SparkSession, kafka: str, tmp_path: Path) -> None:
    given = options(kafka, 2)
    rows = read_stream(spark, write_source(tmp_path / "source"))
    checkpoint = tmp_path / "checkpoint"
    for _ in range(2):
        run(write_stream(rows, KafkaSink(**given), key="k", checkpoint=checkpoint))
        forget_commit(checkpoint, 1)
    found = [json.loads(record.value or b"")["id"] for record in read(kafka, given["topic"])]
    assert sorted(found) == list(range(20))


@pytest.mark.faults
@pytest.mark.long
def test_each_flight_is_there_once_however_often_the_driver_is_killed(model: ModelBroker, tmp_path: Path) -> None:
    """On the model: a reader that goes on after an abort misses records on noida-db."""
    given = options(model.address, 4)
    job, rows = make_job(tmp_path, "parts", "objects", steps=STEPS)
    job.kafka = json.dumps(given)
    job.run_all()
    found = [json.loads(record.value or b"") for record in read(model.address, given["topic"], seconds=120)]
    # JSON leaves out what is NULL.
    wanted = [{name: value for name, value in row.items() if value is not None} for row in rows.to_pylist()]
    assert Counter(row["id"] for row in found) == Counter(row["id"] for row in wanted)
    assert sorted(found, key=lambda row: row["id"]) == wanted
    print(f"\n{job.kills} kills, {len(set(job.obeyed))} steps: {sorted(job.obeyed)}, {len(found)} flights")
    if KILLS >= 20:
        assert len(set(job.obeyed)) > 3
