"""CPU time and memory of this process and all that it has started: the JVM and Spark's Python workers."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path

from outfall.errors import missing_extra

try:
    import psutil
except ImportError as error:
    raise missing_extra("psutil", "benchmark") from error

_PEAK = re.compile(r"^VmHWM:\s+(\d+) kB$", re.MULTILINE)


def cpu_seconds() -> float:
    """Return the CPU seconds of the whole process tree so far, those of processes that have ended among them."""
    total = 0.0
    for process in _tree():
        with contextlib.suppress(psutil.Error):
            times = process.cpu_times()
            # Of its ended children a process knows the time; those that live count for themselves.
            total += times.user + times.system + times.children_user + times.children_system
    return total


def worker_ids() -> frozenset[int]:
    """Return the process ids of all Python processes that Spark has started."""
    found = set()
    for process in _tree():
        with contextlib.suppress(psutil.Error):
            if any(argument.startswith("pyspark.") for argument in process.cmdline()):
                found.add(process.pid)
    return frozenset(found)


def peak_memory(processes: frozenset[int]) -> int | None:
    """Return the largest resident memory that one of the processes ever had, in bytes; `None` where that is unknown.

    Known on Linux, and only while a process lives.
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
