"""Several executors: they are killed, and a stopped one wakes when its work was long done by another."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.integration.conftest import spark_environment
from tests.integration.support import cluster_driver
from tests.integration.support.reading import found_ids, visible, write_source
from tests.integration.support.waiting import until

pytestmark = [pytest.mark.spark, pytest.mark.faults]

KILLS = int(os.environ.get("OUTFALL_TEST_KILLS", "1"))
EXECUTOR = "CoarseGrainedExecutorBackend"


@contextmanager
def driver(root: Path, mode: str) -> Iterator[subprocess.Popen[str]]:
    """Start the driver, and end all that it started."""
    (root / "local").mkdir()
    environment = {**os.environ, **spark_environment(), "OUTFALL_TEST_CRASH_ORDER": str(root / "order")}
    with (root / "stderr").open("wb") as errors:
        process = subprocess.Popen(
            [sys.executable, str(cluster_driver.__file__), str(root), mode],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,
            cwd=root,
            env=environment,
        )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n", complaints(root)
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def complaints(root: Path) -> str:
    return (root / "stderr").read_text(errors="replace")[-3000:]


def executors(session: int) -> list[int]:
    """The process ids of the executors that a driver started."""
    return [pid for pid in processes() if EXECUTOR in command_of(pid) and session_of(pid) == session]


def processes() -> list[int]:
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]


def command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return ""


def session_of(pid: int) -> int:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return 0


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def executor_of(worker: int) -> int:
    """The JVM above a Python worker."""
    while EXECUTOR not in command_of(worker):
        worker = parent_of(worker)
    return worker


def rows_grow(root: Path) -> Callable[[], bool]:
    before = bytes_written(root)
    return lambda: bytes_written(root) > before


def bytes_written(root: Path) -> int:
    return sum(path.stat().st_size for path in visible(root / "out"))


@pytest.mark.parametrize("mode", [pytest.param("growing", marks=pytest.mark.long), "whole"])
def test_killed_executors_lose_and_double_nothing(tmp_path: Path, mode: str) -> None:
    chance = random.Random(f"20261121 {mode}")
    write_source(tmp_path / "source", files=6 + 2 * KILLS, rows=2000)
    with driver(tmp_path, mode) as process:
        for _ in range(KILLS):
            until(rows_grow(tmp_path), "progress")
            os.kill(chance.choice(until(lambda: executors(process.pid), "an executor")), signal.SIGKILL)
        assert process.communicate(timeout=300)[0] == "finished\n", complaints(tmp_path)
    assert found_ids(tmp_path / "out") == list(range((6 + 2 * KILLS) * 2000))


@pytest.mark.parametrize("mode", ["growing", pytest.param("whole", marks=pytest.mark.long)])
def test_a_stopped_executor_that_wakes_when_its_task_was_done_by_another_changes_nothing(
    tmp_path: Path, mode: str
) -> None:
    write_source(tmp_path / "source", files=4, rows=1000)
    order = tmp_path / "order"
    with driver(tmp_path, mode) as process:
        until(rows_grow(tmp_path), "the first epoch")
        order.write_text("stop task: before flush")
        worker = int(until(lambda: _text(order.with_name("order.stopped")), "a stopped task"))
        executor = executor_of(worker)
        os.kill(executor, signal.SIGSTOP)
        assert process.stdout is not None
        assert process.stdout.readline() == "finished\n", complaints(tmp_path)
        before = {path.name: path.read_bytes() for path in visible(tmp_path / "out")}
        os.kill(worker, signal.SIGCONT)
        until(order.with_name("order.continued").exists, "the zombie's waking")
        with suppress(ProcessLookupError):  # Spark may have ended it, being lost
            os.kill(executor, signal.SIGCONT)
        until(lambda: not Path(f"/proc/{worker}").exists(), "the zombie's end")
        assert {path.name: path.read_bytes() for path in visible(tmp_path / "out")} == before
    assert found_ids(tmp_path / "out") == list(range(4000))


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""
