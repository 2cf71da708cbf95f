"""A real process dies by SIGKILL at a named step, and its successor makes each epoch complete once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "support" / "local_script.py"
EPOCHS = 3


def run(directory: Path, content: str, **environment: str) -> int:
    """Run the script to its end or death."""
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(directory), str(EPOCHS), content],
        env={**os.environ, **environment},
        check=False,
        timeout=60,
        capture_output=True,
        text=True,
    )
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    return done.returncode


def found(directory: Path) -> dict[int, Counter[tuple[str, int]]]:
    """Read the files that are not hidden."""
    rows: dict[int, Counter[tuple[str, int]]] = {}
    for file in (directory / "out").glob("[!.]*"):
        for epoch, content, row in json.loads(file.read_text()):
            rows.setdefault(epoch, Counter())[(content, row)] += 1
    return rows


@pytest.mark.parametrize(
    ("point", "of_epoch_1"),
    [
        pytest.param("after BEGIN#2", "b", marks=pytest.mark.thorough),
        pytest.param("task: after snapshot#3", "b", marks=pytest.mark.thorough),
        pytest.param("log: temporary written#6", "b", marks=pytest.mark.thorough),
        pytest.param("after PREPARED#2", "a", marks=pytest.mark.thorough),
        ("script: renamed#3", "a"),
        pytest.param("before COMPLETED#2", "a", marks=pytest.mark.thorough),
        pytest.param("after COMPLETED#2", "a", marks=pytest.mark.thorough),
    ],
)
def test_a_process_killed_at_a_step_is_succeeded(tmp_path: Path, point: str, of_epoch_1: str) -> None:
    assert run(tmp_path, "a", OUTFALL_TEST_CRASH=point) == -signal.SIGKILL
    assert run(tmp_path, "b") == 0
    contents = {0: "a", 1: of_epoch_1, 2: "b"}
    assert found(tmp_path) == {e: Counter((name, row) for row in range(3)) for e, name in contents.items()}


@pytest.mark.thorough
def test_a_crash_that_may_happen_once_happens_once(tmp_path: Path) -> None:
    once = {"OUTFALL_TEST_CRASH": "after PREPARED", "OUTFALL_TEST_CRASH_ONCE": str(tmp_path / "crashed")}
    assert run(tmp_path, "a", **once) == -signal.SIGKILL
    assert run(tmp_path, "a", **once) == 0
    assert found(tmp_path) == {epoch: Counter(("a", row) for row in range(3)) for epoch in range(EPOCHS)}
