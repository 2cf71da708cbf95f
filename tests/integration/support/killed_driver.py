"""A stream of flights in a driver of its own, killed (-9) and started again until the stream ends."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from outfall.spark.version_check import pyspark_version
from tests.integration.conftest import spark_environment
from tests.integration.support import flight_driver
from tests.integration.support.flights import flights, write_input
from tests.integration.support.waiting import until

FORMAT_API = pytest.mark.skipif(pyspark_version() < (4, 1), reason='format("outfall") needs Spark 4.1')

KILLS = int(os.environ.get("OUTFALL_TEST_KILLS", "1"))
"""How often each combination is killed; `nox -s faults` sets 50."""

SEED = int(os.environ.get("OUTFALL_TEST_SEED", "20261121"))
FILES_PER_RUN = 8
"""Input files, and so epochs, that a run finds new."""
LONGEST_LIFE = 4.0
"""Seconds from the query's start, or from the step at which a process was told to die, to the kill, at most."""
LONGEST_WAIT = 60.0
"""Seconds for which a step is waited for: on a busy machine the first epoch alone may take many."""
SECONDS_PER_FILE = 20.0
"""How long the last run may take for each input file: on a busy machine an epoch in HDFS takes many seconds."""


class NotStartedError(AssertionError):
    """The driver ended before its query ran."""


@dataclass
class Job:
    """One stream and where it lives; each run of it may have other cores, shuffle partitions and input splits."""

    root: Path
    mode: str
    api: str
    chance: random.Random
    held_back: list[Path]
    """Input that the stream does not see yet."""
    dsn: str = ""
    """Of the database, when the stream goes into a table."""
    s3: str = ""
    """Options of `S3Sink` as JSON, when the stream goes into a bucket."""
    steps: tuple[str, ...] = ()
    """Where a process may be told to die, for every second life; the others end at a moment of the clock alone."""
    kafka: str = ""
    """Options of `KafkaSink` as JSON, when the stream goes into a topic."""
    lake: str = ""
    """Options of a sink of tables as JSON, `sink` among them, when the stream goes into one."""
    recovery: str = ""
    """Where the recovery data is, when it is not beside the checkpoint."""
    kills: int = 0
    obeyed: list[str] = field(default_factory=list)
    """The steps at which a process died as it was told."""
    exits: list[int] = field(default_factory=list)
    """How the drivers of all lives that began have ended: negative is the signal."""

    @property
    def place(self) -> Path:
        """Where checkpoint and target are."""
        return self.root

    @property
    def checkpoint(self) -> Any:
        return self.place / "checkpoint"

    @property
    def out(self) -> Any:
        return self.place / "out"

    def has_planned(self) -> bool:
        """Whether Spark has planned its first batch."""
        return bool((self.checkpoint / "offsets" / "0").exists())

    @property
    def order(self) -> Path:
        """What `support/site` reads."""
        return self.root / "order"

    def feed(self, files: int) -> None:
        """Let the stream see more input, so that every run has something to do when it is killed."""
        for path in self.held_back[:files]:
            path.rename(self.root / "input" / path.name)
        del self.held_back[:files]

    def start(self) -> subprocess.Popen[str]:
        settings = {
            "input": (self.root / "input").as_uri(),
            "out": self.out,
            "checkpoint": self.checkpoint,
            "local": self.root / "local",
            "mode": self.mode,
            "api": self.api,
            "master": f"local[{self.chance.randint(1, 3)}]",
            "shuffle": self.chance.randint(1, 7),
            "split": self.chance.choice([20_000, 200_000, 128 << 20]),
        }
        if self.dsn:
            settings["dsn"] = self.dsn
        if self.s3:
            settings["s3"] = self.s3
        if self.kafka:
            settings["kafka"] = self.kafka
        if self.lake:
            settings["lake"] = self.lake
        if self.recovery:
            settings["recovery"] = self.recovery
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
                env={**os.environ, **spark_environment(), "OUTFALL_TEST_CRASH_ORDER": str(self.order)},
            )

    def run_until_killed(self) -> None:
        """Run and kill at a random moment. It counts as a kill only when the stream was not at its end before."""
        process = self.start()
        assert process.stdout is not None
        if process.stdout.readline() != "started\n":
            process.wait()
            raise NotStartedError(f"the driver did not start: {self.complaints()}")
        step = self.chance.choice(self.steps) if self.steps and self.chance.random() < 0.5 else None
        if step:
            self.order.write_text(f"kill {step}")
        self._await_first_offset(process)
        over = threading.Event()
        killer = threading.Thread(target=self._kill_later, args=(process, self.chance.uniform(0, LONGEST_LIFE), over))
        killer.start()
        finished = process.stdout.readline() == "finished\n"
        over.set()
        killer.join()
        self._kill(process)
        self.exits.append(process.wait())
        process.stdout.close()
        self.kills += not finished
        if step and not self.order.exists():
            self.obeyed.append(step)
        self.order.unlink(missing_ok=True)

    def run_until_killed_at(self, step: str) -> None:
        """Run until the driver dies at a step, and Spark with it."""
        self.order.write_text(f"kill {step}")
        process = self.start()
        assert process.wait(timeout=600) == -signal.SIGKILL, self.complaints()
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        assert process.stdout is not None
        process.stdout.close()

    def run_to_the_end(self) -> None:
        process = self.start()
        try:
            printed, _ = process.communicate(timeout=max(600, SECONDS_PER_FILE * self._files()))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise
        assert printed.endswith("finished\n"), self.complaints()

    def run_all(self, kills: int = KILLS, files: int = FILES_PER_RUN) -> None:
        """Kill the stream so many times, always with so many files of input before it, then let it end."""
        for _ in range(4 * kills):
            self.feed(files)
            self.run_until_killed()
            if self.kills == kills:
                break
        self.feed(len(self.held_back))
        self.run_to_the_end()
        assert self.kills == kills

    def _files(self) -> int:
        return len(list((self.root / "input").iterdir()))

    def complaints(self) -> str:
        return (self.root / "stderr").read_text(errors="replace")[-3000:]

    def _await_first_offset(self, process: subprocess.Popen[str]) -> None:
        """Let Spark plan its first batch, before which no sink is asked for anything.

        A checkpoint that died earlier, between its directories and its first offset, is one that Spark refuses to go
        on from: STATE_STORE_CHECKPOINT_LOCATION_NOT_EMPTY.
        """
        until(lambda: self.has_planned() or process.poll() is not None, "Spark's first offset")

    def _kill_later(self, process: subprocess.Popen[str], life: float, over: threading.Event) -> None:
        """Kill after some time. Where a step is ordered, it begins when the step was reached: it may be a task's."""
        patience = time.monotonic() + LONGEST_WAIT
        while self.order.exists() and time.monotonic() < patience and not over.wait(0.05):
            pass
        if not over.wait(life):
            self._kill(process)

    def _kill(self, process: subprocess.Popen[str]) -> None:
        """Kill everything, or only Python, so that the JVM's tasks live on for a while."""
        if process.poll() is not None:
            return
        if self.chance.random() < 0.3:
            process.kill()
        else:
            os.killpg(process.pid, signal.SIGKILL)


def make_job(
    tmp_path: Path,
    mode: str,
    api: str,
    *,
    dsn: str = "",
    s3: str = "",
    steps: tuple[str, ...] = (),
    files: int = FILES_PER_RUN * (KILLS + 1 + KILLS // 2),
) -> tuple[Job, pa.Table]:
    """Prepare a stream; returns it with the rows that it is to write.

    By default it has half as many input files again as it needs, for the runs that come to their end unkilled.
    """
    rows = flights() if KILLS >= 20 else flights().slice(0, 30_000)
    write_input(rows, tmp_path / "held back", files=files)
    for name in ("local", "input"):
        (tmp_path / name).mkdir()
    held_back = sorted((tmp_path / "held back").iterdir())
    chance = random.Random(f"{SEED} {mode} {api}")
    return Job(tmp_path, mode, api, chance, held_back, dsn, s3, steps), rows
