"""The machine loses its power at random moments of a real query whose checkpoint and target are on that disk.

The disk is an ext4 of its own (`outfall.testing.disks`), so root is needed. After each loss the query is started again;
where Spark cannot start, `outfall repair --yes` is run, once. In the end each flight must be there once.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pytest

from tests.disks import Disk, loop_disk
from tests.integration.support.flight_driver import STATEFUL
from tests.integration.support.flights import flights, write_input
from tests.integration.support.killed_driver import FILES_PER_RUN, FORMAT_API, KILLS, SEED, Job
from tests.integration.support.reading import found
from tests.integration.support.waiting import until

pytestmark = [pytest.mark.spark, pytest.mark.faults, pytest.mark.long]

LONGEST_LIFE = 6.0
"""Seconds from the first epoch of a run, or from its start, to the loss, at most."""


@dataclass
class PoweredJob(Job):
    """A stream whose checkpoint and target are on a disk that loses its power."""

    disk: Disk = field(kw_only=True)
    repairs: list[str] = field(default_factory=list)
    """What `outfall repair` said, each time that Spark could not start."""
    survived: int = 0
    """Losses after which Spark started by itself."""

    @property
    def place(self) -> Path:
        return self.disk.path

    def run_until_power_loss(self) -> None:
        """Run and lose the power at a random moment; where Spark does not start by itself, repair first."""
        stopped = self.order.with_name(f"{self.order.name}.stopped")
        stopped.unlink(missing_ok=True)
        names_reach_disk = self.chance.random() < 0.5
        moment = self.chance.random()
        if self.kills and moment < 0.2:
            process = self._begun()
            time.sleep(self.chance.uniform(0, LONGEST_LIFE / 2))
        elif moment < 0.5:
            # When most is torn: Spark has committed a batch and planned the next one, and nothing of that is synced.
            process = self.start_repaired()
            self.order.write_text("stop before the source is durable")
            until(lambda: stopped.exists() or process.poll() is not None, "a batch that is planned")
            self.order.unlink(missing_ok=True)
            names_reach_disk = True
        else:
            process = self.start_repaired()
            time.sleep(self.chance.uniform(0, LONGEST_LIFE))
        ended = process.poll() is not None
        self._lose_power(names_reach_disk)
        if stopped.exists():
            with suppress(ProcessLookupError):
                os.kill(int(stopped.read_text()), signal.SIGKILL)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
        until(self._restarted, "the end of all processes that use the disk", 60)
        self.kills += not ended

    def start_repaired(self) -> subprocess.Popen[str]:
        """Start the query, and return when it has begun an epoch or has come to its end."""
        process = self._started()
        if process is None:
            self._repair()
            process = self._started()
        else:
            self.survived += self.kills > 0
        assert process is not None, f"it does not start after {self.repairs}: {self.complaints()}"
        return process

    def _started(self) -> subprocess.Popen[str] | None:
        """A process whose query runs; `None` where Spark cannot start it."""
        entries = self._entries()
        process = self._begun()
        until(lambda: self._entries() > entries or process.poll() is not None, "a start")
        if process.poll() is None or process.returncode == 0:
            return process
        if process.stdout is not None:
            process.stdout.close()
        return None

    def _begun(self) -> subprocess.Popen[str]:
        process = self.start()
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n", self.complaints()
        return process

    def _repair(self) -> None:
        command = [sys.executable, "-m", "outfall.cli", "repair", str(self.checkpoint), "--yes"]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        said = done.stdout + done.stderr
        assert done.returncode == 0, f"{said}\n{self._torn()}\n{self.complaints()}"
        assert "moved to outfall-repair" in said, f"{said}\n{self._torn()}\n{self.complaints()}"
        self.repairs.append(said)

    def _torn(self) -> list[str]:
        return [str(path) for path in self.checkpoint.rglob("*") if path.is_file() and not path.stat().st_size]

    def _entries(self) -> int:
        return max((int(path.stem) for path in self.checkpoint.glob("outfall/sink/*.json")), default=0)

    def _lose_power(self, names_reach_disk: bool) -> None:
        """Cut it, after some of what is in memory went to the disk as it may at any time."""
        for path in self._some_paths():
            with suppress(OSError):
                descriptor = os.open(path, os.O_RDONLY)
                try:
                    os.fsync(descriptor)
                finally:
                    os.close(descriptor)
        self.disk.cut_power(names_reach_disk=names_reach_disk)

    def _some_paths(self) -> list[Path]:
        if self.chance.random() < 0.4:
            return []
        below = [path for path in self.checkpoint.rglob("*") if "outfall" not in path.parts]
        newest = sorted(below, key=lambda path: path.stat().st_mtime if path.exists() else 0)[-40:]
        return self.chance.sample(newest, min(len(newest), self.chance.randint(1, 6)))

    def _restarted(self) -> bool:
        try:
            self.disk.restart()
        except subprocess.CalledProcessError:
            return False
        return True


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    with loop_disk(tmp_path / "disk", size=256 << 20) as disk:
        yield disk


def powered_job(root: Path, disk: Disk, mode: str, api: str) -> tuple[PoweredJob, pa.Table]:
    rows = flights().slice(0, 60_000)
    files = FILES_PER_RUN * (KILLS + 1 + KILLS // 2)
    write_input(rows, root / "held back", files=files)
    if mode in STATEFUL:
        # Each file brings what the one before brought: without its state the query would write it twice.
        for number in range(files - 1, 0, -1):
            text = (root / "held back" / f"{number - 1:05d}.csv").read_text()
            with (root / "held back" / f"{number:05d}.csv").open("a") as file:
                file.write(text)
    for name in ("local", "input"):
        (root / name).mkdir()
    chance = random.Random(f"{SEED} power {mode} {api}")
    return PoweredJob(root, mode, api, chance, sorted((root / "held back").iterdir()), disk=disk), rows


@pytest.mark.parametrize(
    ("mode", "api"),
    [
        ("whole", "objects"),
        ("by spark", "objects"),
        pytest.param("whole", "options", marks=FORMAT_API),
        ("stateful", "objects"),
        pytest.param("stateful", "options", marks=FORMAT_API),
        ("stateful in rocksdb", "objects"),
        ("growing", "objects"),
    ],
)
def test_each_flight_is_found_once_however_often_the_power_fails(
    tmp_path: Path, disk: Disk, mode: str, api: str
) -> None:
    job, rows = powered_job(tmp_path, disk, mode, api)
    for _ in range(4 * KILLS):
        job.feed(FILES_PER_RUN)
        job.run_until_power_loss()
        if job.kills == KILLS:
            break
    job.feed(len(job.held_back))
    process = job.start_repaired()
    printed, _ = process.communicate(timeout=900)
    assert printed.endswith("finished\n"), job.complaints()
    print(f"{mode}, {api}: {job.kills} losses of power, {len(job.repairs)} repairs, {job.survived} starts without")
    print("\n".join(job.repairs))
    assert job.kills == KILLS
    ids = Counter(row["id"] for row in found(job.out))
    assert {flight: times for flight, times in ids.items() if times > 1} == {}
    assert ids.keys() == set(range(rows.num_rows))
