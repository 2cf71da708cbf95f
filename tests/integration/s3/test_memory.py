"""A task's memory does not grow with the bytes of its epoch."""

from __future__ import annotations

import subprocess
import sys

import pytest

from benchmarks.discarding_s3 import discarding_s3
from tests.documents import ROOT

MIB = 1 << 20


@pytest.mark.long
def test_five_gigabytes_through_one_task_add_less_than_200_mib_to_an_empty_sink() -> None:
    assert added(5_000) < 200 * MIB


@pytest.mark.thorough
def test_a_task_does_not_hold_its_epoch() -> None:
    """With small parts, so that what an epoch that is held would take is far more than what may be held."""
    assert added(160, "part_bytes=5 MiB", "max_concurrency=2") < 130 * MIB


def added(megabytes: int, *options: str) -> int:
    """How much more memory a task takes at most than one that writes nothing."""
    with discarding_s3() as address:
        empty, sink = (peak(address, megabytes, kind, *options) for kind in ("empty", "sink"))
    return sink - empty


def peak(address: str, megabytes: int, kind: str, *options: str) -> int:
    command = [sys.executable, "-m", "tests.integration.s3.large_task", address, str(megabytes), kind, *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=1200)
    print(f"{kind}: {int(done.stdout) / MIB:.0f} MiB")
    return int(done.stdout)
