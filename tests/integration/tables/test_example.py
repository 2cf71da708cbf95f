"""`examples/flights_to_iceberg.py` as a user runs it, killed once; what it wrote is compared with the flights."""

from __future__ import annotations

import os
import re
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from outfall.recovery import history
from tests.documents import ROOT
from tests.integration.support.duck import Duck
from tests.integration.support.flights import flights
from tests.integration.support.waiting import until

EXAMPLE = ROOT / "examples" / "flights_to_iceberg.py"
ROWS, EPOCHS = 6000, 12
COLUMNS = ["id", "carrier", "flight", "origin", "dest", "distance"]
PATIENCE = 480.0
"""Seconds; a machine that does nothing else needs a tenth."""


def start(directory: Path) -> subprocess.Popen[str]:
    arguments = ["--directory", str(directory), "--rows", f"{ROWS}", "--rows-per-epoch", f"{ROWS // EPOCHS}"]
    return subprocess.Popen(
        [sys.executable, str(EXAMPLE), *arguments],
        env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": "/bin/false"},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


@pytest.mark.thorough
@pytest.mark.spark
def test_each_flight_is_there_once_and_each_snapshot_whole_although_the_job_was_killed(
    tmp_path: Path, duck: Duck
) -> None:
    checkpoint = str(tmp_path / "checkpoint")
    first = start(tmp_path)
    until(lambda: first.poll() is not None or history(checkpoint), "an epoch being completed", PATIENCE)
    first.send_signal(signal.SIGKILL)
    printed, _ = first.communicate(timeout=PATIENCE)
    assert first.returncode == -signal.SIGKILL, printed[-5000:]
    before = history(checkpoint)
    assert sum(epoch.rows for epoch in before) < ROWS, "it had ended before it was killed"

    second = start(tmp_path)
    printed, _ = second.communicate(timeout=PATIENCE)

    assert second.returncode == 0, printed[-5000:]
    assert f"Continuing after epoch {before[-1].epoch}." in printed
    # Spark may take two files into one epoch where it was killed between the source's log and that of the offsets.
    epochs = [epoch for epoch in history(checkpoint) if epoch.rows]
    assert len(epochs) in (EPOCHS - 1, EPOCHS)
    assert f"flights in {ROWS:,}, out {ROWS:,}, snapshots {len(epochs)}, broken 0" in printed
    assert re.search(rf"^snapshot 1: {ROWS // EPOCHS} flights, whole epochs$", printed, re.MULTILINE)
    with closing(sqlite3.connect(tmp_path / "catalog.db")) as catalog:
        ((metadata,),) = catalog.execute("SELECT metadata_location FROM iceberg_tables").fetchall()
    wanted = flights().slice(0, ROWS).select(COLUMNS)
    assert sorted(duck.iceberg(metadata, ", ".join(COLUMNS))) == list(
        zip(*(column.to_pylist() for column in wanted.columns), strict=True)
    )
