"""The driver is killed (-9) at random moments of a stream of real flights, and started again until the stream ends."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from outfall.spark.requirement import pyspark_version
from tests.integration.conftest import spark_environment
from tests.integration.support import flight_driver
from tests.integration.support.flights import flights, write_input
from tests.integration.support.reading import found, visible

KILLS = int(os.environ.get("OUTFALL_TEST_KILLS", "2"))
"""How often each combination is killed; `nox -s faults` sets 50."""

SEED = int(os.environ.get("OUTFALL_TEST_SEED", "20261121"))
FILES_PER_RUN = 8
"""Input files, and so epochs, that a run finds new."""
LONGEST_LIFE = 4.0
"""Seconds from the query's start to the kill, at most."""

OPTIONS_DOOR = pytest.mark.skipif(pyspark_version() < (4, 1), reason='format("outfall") needs Spark 4.1')

pytestmark = [pytest.mark.spark, pytest.mark.faults]


@dataclass
class Job:
    """One stream and where it lives; each run of it may have other cores, shuffle partitions and input splits."""

    root: Path
    mode: str
    door: str
    chance: random.Random
    held_back: list[Path]
    """Input that the stream does not see yet."""
    kills: int = 0

    @property
    def out(self) -> Path:
        return self.root / "out"

    def feed(self, files: int) -> None:
        """Let the stream see more input, so that every run has something to do when it is killed."""
        for path in self.held_back[:files]:
            path.rename(self.root / "input" / path.name)
        del self.held_back[:files]

    def start(self) -> subprocess.Popen[str]:
        settings = {
            "input": self.root / "input",
            "out": self.out,
            "checkpoint": self.root / "checkpoint",
            "local": self.root / "local",
            "mode": self.mode,
            "door": self.door,
            "master": f"local[{self.chance.randint(1, 3)}]",
            "shuffle": self.chance.randint(1, 7),
            "split": self.chance.choice([20_000, 200_000, 128 << 20]),
        }
        command = [sys.executable, str(flight_driver.__file__)]
        for name, value in settings.items():
            command += [f"--{name}", str(value)]
        with (self.root / "stderr").open("ab") as errors:
            return subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
                env={**os.environ, **spark_environment()},
            )

    def run_until_killed(self) -> None:
        """Run and kill at a random moment. It counts as a kill only when the stream was not at its end before."""
        process = self.start()
        assert process.stdout is not None
        if process.stdout.readline() != "started\n":
            process.wait()
            raise AssertionError(f"the driver did not start: {self.complaints()}")
        timer = threading.Timer(self.chance.uniform(0, LONGEST_LIFE), self._kill, [process])
        timer.start()
        finished = process.stdout.readline() == "finished\n"
        timer.cancel()
        self._kill(process)
        process.wait()
        process.stdout.close()
        self.kills += not finished

    def run_to_the_end(self) -> None:
        process = self.start()
        printed, _ = process.communicate(timeout=600)
        assert printed.endswith("finished\n"), self.complaints()

    def complaints(self) -> str:
        return (self.root / "stderr").read_text(errors="replace")[-3000:]

    def _kill(self, process: subprocess.Popen[str]) -> None:
        """Kill everything, or only Python, so that the JVM's tasks live on for a while."""
        if process.poll() is not None:
            return
        if self.chance.random() < 0.3:
            process.kill()
        else:
            os.killpg(process.pid, signal.SIGKILL)


@contextmanager
def watched(directory: Path) -> Iterator[list[str]]:
    """Poll a directory like a reader of whole files; yields what was seen and went away or changed again."""
    complaints: list[str] = []
    seen: dict[str, tuple[int, int]] = {}
    done = threading.Event()

    def poll() -> None:
        while not done.wait(0.01):
            now = {}
            for path in visible(directory):
                status = path.stat()
                now[path.name] = (status.st_ino, status.st_size)
            complaints.extend(
                f"{name} was {was}, is {now.get(name)}" for name, was in seen.items() if now.get(name) != was
            )
            seen.update(now)

    thread = threading.Thread(target=poll)
    thread.start()
    try:
        yield complaints
    finally:
        done.set()
        thread.join()


def make_job(tmp_path: Path, mode: str, door: str) -> tuple[Job, int]:
    rows = flights() if KILLS >= 20 else flights().slice(0, 30_000)
    write_input(rows, tmp_path / "held back", files=FILES_PER_RUN * (KILLS + 1))
    for name in ("local", "input"):
        (tmp_path / name).mkdir()
    held_back = sorted((tmp_path / "held back").iterdir())
    return Job(tmp_path, mode, door, random.Random(f"{SEED} {mode} {door}"), held_back), rows.num_rows


@pytest.mark.parametrize(
    ("mode", "door"),
    [
        ("growing", "objects"),
        pytest.param("rolling", "objects", marks=pytest.mark.long),
        pytest.param("whole", "objects", marks=pytest.mark.long),
        pytest.param("whole", "options", marks=OPTIONS_DOOR),
    ],
)
def test_each_flight_is_found_once_however_often_the_driver_is_killed(tmp_path: Path, mode: str, door: str) -> None:
    job, rows = make_job(tmp_path, mode, door)
    with watched(job.out) as complaints:
        for _ in range(4 * KILLS):
            job.feed(FILES_PER_RUN)
            job.run_until_killed()
            if job.kills == KILLS:
                break
        job.feed(len(job.held_back))
        job.run_to_the_end()
    assert job.kills == KILLS
    ids = Counter(row["id"] for row in found(job.out))
    assert ids.keys() == set(range(rows))
    assert {flight: times for flight, times in ids.items() if times > 1} == {}
    if mode == "rolling":
        assert len(visible(job.out)) > 5
    if mode == "whole":
        assert complaints == []
