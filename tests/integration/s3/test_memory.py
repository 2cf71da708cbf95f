"""A task's memory does not grow with the bytes of its epoch."""

from __future__ import annotations

import subprocess
import sys

import pytest

from benchmarks.discarding_s3 import discarding_s3
from tests.documents import ROOT

MIB = 1 << 20


@pytest.mark.parametrize("megabytes", [120, pytest.param(5_000, marks=pytest.mark.long)])
def test_five_gigabytes_through_one_task_add_less_than_200_mib_to_an_empty_sink(megabytes: int) -> None:
    with discarding_s3() as address:
        peaks = [peak(address, megabytes, kind) for kind in ("empty", "sink")]
    assert peaks[1] - peaks[0] < 200 * MIB


def peak(address: str, megabytes: int, kind: str) -> int:
    command = [sys.executable, "-m", "tests.integration.s3.large_task", address, str(megabytes), kind]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=1200)
    print(f"{kind}: {int(done.stdout) / MIB:.0f} MiB")
    return int(done.stdout)
