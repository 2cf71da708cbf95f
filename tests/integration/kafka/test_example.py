"""`examples/kafka_to_kafka.py` as a user runs it, killed once; a reader of our own compares the topics."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from outfall.recovery import history
from outfall.spark.version_check import pyspark_version
from tests.documents import ROOT
from tests.integration.support.kafka_reader import read
from tests.integration.support.waiting import until

EXAMPLE = ROOT / "examples" / "kafka_to_kafka.py"
ROWS = 800
PATIENCE = 480.0
"""Seconds; a machine that does nothing else needs a tenth."""


def start(kafka: str, name: str, directory: Path) -> subprocess.Popen[str]:
    arguments = ["--name", name, "--directory", str(directory), "--rows", f"{ROWS}", "--rows-per-epoch", "100"]
    return subprocess.Popen(
        [sys.executable, str(EXAMPLE), kafka, *arguments],
        env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": "/bin/false"},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


@pytest.mark.thorough
@pytest.mark.skipif(pyspark_version() < (4, 0), reason="Spark has Python data sources since 4.0")
def test_each_record_is_there_once_although_the_job_was_killed(kafka: str, tmp_path: Path) -> None:
    name = f"example-{uuid.uuid4().hex}"
    first = start(kafka, name, tmp_path)
    until(lambda: first.poll() is not None or history(str(tmp_path / name)), "an epoch being completed", PATIENCE)
    first.send_signal(signal.SIGKILL)
    printed, _ = first.communicate(timeout=PATIENCE)
    assert first.returncode == -signal.SIGKILL, printed[-5000:]
    before = history(str(tmp_path / name))
    assert sum(epoch.rows for epoch in before) < ROWS, "it had ended before it was killed"

    second = start(kafka, name, tmp_path)
    printed, _ = second.communicate(timeout=PATIENCE)

    assert second.returncode == 0, printed[-5000:]
    assert f"Continuing after epoch {before[-1].epoch}." in printed
    assert f"rows in {ROWS:,}, rows out {ROWS:,}, duplicates 0, lost 0" in printed
    given = sorted((record.partition, record.offset, record.key, record.value) for record in read(kafka, f"{name}-in"))
    rows = [(json.loads(record.value or b""), record.key) for record in read(kafka, f"{name}-out")]
    assert sorted((row["partition"], row["offset"], key, row["value"].encode()) for row, key in rows) == given
    assert len(given) == ROWS
