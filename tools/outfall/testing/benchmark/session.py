"""A Spark session in this process; CPU time and memory of the JVM and its Python workers."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from outfall.errors import require_extra

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

require_extra("benchmark", "psutil")

import psutil

_PEAK = re.compile(r"^VmHWM:\s+(\d+) kB$", re.MULTILINE)


def cpu_seconds() -> float:
    """Return the CPU seconds of the whole process tree, including ended processes."""
    total = 0.0
    for process in _tree():
        with contextlib.suppress(psutil.Error):
            times = process.cpu_times()
            # The CPU time of a process includes ended children. Live children are counted separately.
            total += times.user + times.system + times.children_user + times.children_system
    return total


def worker_ids() -> frozenset[int]:
    """Return the process ids of all Python processes of Spark."""
    found = set()
    for process in _tree():
        with contextlib.suppress(psutil.Error):
            if any(argument.startswith("pyspark.") for argument in process.cmdline()):
                found.add(process.pid)
    return frozenset(found)


def peak_memory(processes: frozenset[int]) -> int | None:
    """Return the peak resident memory of the largest process in bytes; `None` if unknown.

    Available on Linux, while the process is alive.
    """
    peaks = []
    for process in processes:
        with contextlib.suppress(OSError):
            found = _PEAK.search(Path(f"/proc/{process}/status").read_text())
            peaks += [int(found[1]) * 1024] if found else []
    return max(peaks, default=None)


def _tree() -> Iterator[psutil.Process]:
    this = psutil.Process()
    yield this
    yield from this.children(recursive=True)


_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.log.level": "ERROR",
    "spark.sql.session.timeZone": "UTC",
    # Keeps the progress of every epoch of a measured stream.
    "spark.sql.streaming.numRecentProgressUpdates": "1000",
}


def start_session(master: str, settings: Mapping[str, str]) -> SparkSession:
    """Start Spark with settings that replace the defaults. Raises `ImportError` if pyspark is not installed.

    The master is `local[…]`; other processes are not measured.
    """
    from outfall.spark.version_check import check_pyspark

    check_pyspark()
    # Workers use this Python and the same module path.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [os.getcwd(), os.environ.get("PYTHONPATH")]))
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(master).appName("outfall benchmark")
    for name, value in {**_SETTINGS, **settings}.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def worker_memory(spark: SparkSession, job: Callable[[], object]) -> int | None:
    """Run a job in new Python workers, and return the peak memory of the largest in bytes.

    Reused workers would still have the memory of an earlier job.
    """
    # Spark reuses workers per environment.
    spark.sparkContext.environment["OUTFALL_BENCHMARK_WORKERS"] = uuid.uuid4().hex
    before = worker_ids()
    job()
    return peak_memory(worker_ids() - before)
