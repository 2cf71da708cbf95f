"""Results of benchmarks, stored as one JSON file per run and benchmark."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

from pydantic import BaseModel

from outfall.testing.benchmark import Spread, spread

DIRECTORY = Path(__file__).parent / "results"
_PACKAGES = ("outfall", "pyspark", "pyarrow")


class Figure(BaseModel):
    """A median with minimum and maximum."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, figures: list[float]) -> Self | None:
        """Summarize figures. Returns `None` if there are none."""
        found: Spread | None = spread(figures)
        return None if found is None else cls(median=found.median, low=found.low, high=found.high)


class Line(BaseModel):
    """The result of one job."""

    group: str
    """The jobs that are compared with each other."""
    label: str
    figure: Figure
    """In the unit of the result."""
    per_cpu_second: Figure | None = None
    """Rows per CPU second of the whole process tree."""
    ratios: dict[str, Figure] = {}
    """Ratio to each peer by name, within the same pair."""
    cpu_ratios: dict[str, Figure] = {}
    """Like `ratios`, for rows per CPU second."""


class Machine(BaseModel):
    """The hardware and software of the machine."""

    cores: int
    processor: str
    memory_gib: int
    system: str
    python: str
    java: str
    packages: dict[str, str]

    @classmethod
    def this(cls) -> Self:
        """Describe this machine, without its name."""
        pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        return cls(
            cores=len(os.sched_getaffinity(0)),
            processor=_processor(),
            memory_gib=round(pages / (1 << 30)),
            system=platform.system(),
            python=platform.python_version(),
            java=_java(),
            packages={name: importlib.metadata.version(name) for name in _PACKAGES},
        )


class Result(BaseModel):
    """One run of one benchmark."""

    benchmark: str
    title: str
    unit: str
    """Unit of the lines' figures."""
    wanted: dict[str, str]
    """Peer → target ratio, as text."""
    lines: list[Line]
    pairs: int
    started: datetime
    machine: Machine
    notes: list[str] = []
    """Conclusions from the figures, one sentence each."""

    def save(self) -> Path:
        """Save the result next to those of other runs."""
        DIRECTORY.mkdir(exist_ok=True)
        path = DIRECTORY / f"{self.started:%Y%m%dT%H%M%SZ}-{self.benchmark}.json"
        path.write_text(self.model_dump_json(indent=1) + "\n")
        return path


def newest(directory: Path = DIRECTORY) -> list[Result]:
    """Return the last result of each benchmark, in the order of their names."""
    found: dict[str, Result] = {}
    for path in sorted(directory.glob("*.json")):
        result = Result.model_validate_json(path.read_text())
        found[result.benchmark] = result
    return [found[name] for name in sorted(found)]


def now() -> datetime:
    """Return the current time, for `Result.started`."""
    return datetime.now(UTC)


def _processor() -> str:
    try:
        found = re.search(r"^model name\s*: (.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        found = None
    return found[1] if found else platform.machine()


def _java() -> str:
    home = os.environ.get("JAVA_HOME")
    java = f"{home}/bin/java" if home else "java"
    printed = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    found = re.search(r'version "([^"]+)"', printed)
    return found[1] if found else "unknown"
