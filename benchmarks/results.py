"""What a benchmark has measured, and where it is kept: one JSON file per run and benchmark."""

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
    """A median with the least and the greatest."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, figures: list[float]) -> Self | None:
        """Describe figures; `None` if there are none."""
        found: Spread | None = spread(figures)
        return None if found is None else cls(median=found.median, low=found.low, high=found.high)


class Line(BaseModel):
    """What one job reached."""

    group: str
    """What it is compared within: rows and API."""
    label: str
    figure: Figure
    """In the unit of its result."""
    per_cpu_second: Figure | None = None
    """Rows per CPU second of the whole process tree."""
    ratios: dict[str, Figure] = {}
    """To a peer, by its name; of the figures of the same pair."""
    cpu_ratios: dict[str, Figure] = {}
    """As `ratios`, of rows per CPU second."""


class Machine(BaseModel):
    """Of what class the machine is, and what ran on it."""

    cores: int
    processor: str
    memory_gib: int
    system: str
    python: str
    java: str
    packages: dict[str, str]

    @classmethod
    def this(cls) -> Self:
        """Describe the one this runs on, without its name."""
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
    """Of its lines' figures."""
    wanted: dict[str, str]
    """Which ratio to which peer is aimed at, as text."""
    lines: list[Line]
    pairs: int
    started: datetime
    machine: Machine
    notes: list[str] = []
    """What follows from the figures, a sentence each."""

    def save(self) -> Path:
        """Keep it beside those of other runs."""
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
    """The time, for `Result.started`."""
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
