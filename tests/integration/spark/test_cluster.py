"""Several executors: they are killed, and a stopped one wakes when its work was long done by another."""

from __future__ import annotations

import json
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
from tests.integration.support.cluster_places import Place, place_of
from tests.integration.support.reading import write_source
from tests.integration.support.waiting import until

pytestmark = [pytest.mark.spark, pytest.mark.faults]

KILLS = int(os.environ.get("OUTFALL_TEST_KILLS", "1"))
EXECUTOR = "CoarseGrainedExecutorBackend"


@contextmanager
def driver(root: Path, mode: str, place: Place) -> Iterator[subprocess.Popen[str]]:
    """Start the driver, and end all that it started."""
    (root / "local").mkdir()
    environment = {**os.environ, **spark_environment(), "OUTFALL_TEST_CRASH_ORDER": str(root / "order")}
    with (root / "stderr").open("wb") as errors:
        process = subprocess.Popen(
            [sys.executable, str(cluster_driver.__file__), str(root), mode, json.dumps(place.options)],
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


def rows_grow(place: Place) -> Callable[[], bool]:
    before = place.progress()
    return lambda: place.progress() > before


@pytest.mark.long
@pytest.mark.parametrize("mode", ["growing", "whole", "by spark", "postgres", "postgres parts", "s3", "s3 rolling"])
def test_killed_executors_lose_and_double_nothing(tmp_path: Path, mode: str) -> None:
    chance = random.Random(f"20261121 {mode}")
    write_source(tmp_path / "source", files=6 + 2 * KILLS, rows=2000)
    with place_of(mode, tmp_path) as place:
        with driver(tmp_path, mode, place) as process:
            for _ in range(KILLS):
                until(rows_grow(place), "progress")
                os.kill(chance.choice(until(lambda: executors(process.pid), "an executor")), signal.SIGKILL)
            assert process.communicate(timeout=600)[0] == "finished\n", complaints(tmp_path)
        assert place.ids() == list(range((6 + 2 * KILLS) * 2000))


@pytest.mark.parametrize(
    "mode", [pytest.param("growing", marks=pytest.mark.thorough), pytest.param("whole", marks=pytest.mark.long)]
)
def test_a_stopped_executor_that_wakes_when_its_task_was_done_by_another_changes_nothing(
    tmp_path: Path, mode: str
) -> None:
    write_source(tmp_path / "source", files=4, rows=25_000)
    with place_of(mode, tmp_path) as place:
        with driver(tmp_path, mode, place) as process:
            until(rows_grow(place), "the first epoch")
            wake_when_all_is_done(process, tmp_path, place)
        assert place.ids() == list(range(100_000))


def wake_when_all_is_done(process: subprocess.Popen[str], root: Path, place: Place) -> None:
    """Stop an executor in the middle of a task, let the query end without it, and let it go on."""
    order = root / "order"
    order.write_text("stop task: before flush")
    worker = int(until(lambda: _text(order.with_name("order.stopped")), "a stopped task"))
    try:
        executor = executor_of(worker)
        os.kill(executor, signal.SIGSTOP)
        assert process.stdout is not None
        assert process.stdout.readline() == "finished\n", complaints(root)
        before = place.content()
        os.kill(worker, signal.SIGCONT)
        until(order.with_name("order.continued").exists, "the zombie's waking")
        with suppress(ProcessLookupError):  # Spark may have ended it, being lost
            os.kill(executor, signal.SIGCONT)
        until(lambda: not Path(f"/proc/{worker}").exists(), "the zombie's end")
    finally:
        with suppress(ProcessLookupError):
            os.kill(worker, signal.SIGKILL)
    assert place.content() == before


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""
