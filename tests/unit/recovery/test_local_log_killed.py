"""A local log whose process is killed between any two side effects."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.support.logs import files, filled, opened

CHILD = """
import os, signal, sys
from outfall import trace_points
from outfall.recovery import CheckpointRecoveryConfig
location, action, at = sys.argv[1], sys.argv[2], int(sys.argv[3])
log, seen = CheckpointRecoveryConfig(location).open("sink"), []
def listener(step):
    seen.append(step)
    if len(seen) == at:
        os.kill(os.getpid(), signal.SIGKILL)
trace_points.listen(listener)
after = max((entry.number for entry in log.read()), default=0)
if action == "append":
    log.append(b'{"by":"child"}', after=after)
elif action == "state":
    log.write_state("part", b"x" * 100_000, generation=after)
else:
    log.sweep(keep=[after], states=[], generation=99)
print("\\n".join(seen))
"""

WRITING = ["log: file created", "log: file filled"]
APPENDING = [
    *WRITING,
    "log: temporary written",
    "log: linked",
    "log: directory synced",
    "log: temporary removed",
]
MADE = "log: directory made"


def child(location: str, action: str, at: int = 0) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", CHILD, location, action, str(at)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize(
    ("before", "action", "expected"),
    [
        (0, "append", ["log: newest checked", MADE, MADE, MADE, *APPENDING]),
        (2, "append", ["log: newest checked", *APPENDING]),
        (2, "state", [MADE, *WRITING, "log: state written", "log: state durable"]),
        (3, "sweep", ["log: entry swept", "log: entry swept"]),
    ],
)
def test_killed_at_any_step_the_log_is_whole_and_goes_on(
    before: int, action: str, expected: list[str], tmp_path: Path
) -> None:
    assert list(run_unhurt(str(tmp_path / "whole"), before, action)) == expected
    for at, step in enumerate(expected, start=1):
        location = str(tmp_path / str(at))
        if before:
            filled(location, before)
        died = child(location, action, at)
        assert died.returncode == -signal.SIGKILL, died.stderr
        durable = action == "append" and step in APPENDING[3:]
        check_after_death(location, [*range(1, before + 1), *([before + 1] if durable else [])], action, f"at {step!r}")


def run_unhurt(location: str, before: int, action: str) -> list[str]:
    if before:
        filled(location, before)
    done = child(location, action)
    assert done.returncode == 0, done.stderr
    return done.stdout.split("\n")[:-1]


def check_after_death(location: str, expected: list[int], action: str, where: str) -> None:
    log = opened(location)
    found = log.read()
    assert all(entry.data.endswith(b"}") for entry in found), where
    if action == "sweep":
        assert found[-1].number == expected[-1], where
    else:
        assert [entry.number for entry in found] == expected, where
    newest = max(expected, default=0)
    assert log.append(b'{"by":"next"}', after=newest) == newest + 1, where
    log.sweep(keep=[newest + 1], states=[], generation=newest + 1)
    assert files(location) == [f"{newest + 1:020d}.json"], where
