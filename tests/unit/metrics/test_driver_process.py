"""A driver on this host that was seen and has ended, and no other one, counts as ended."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from outfall.metrics.driver_process import DriverProcess

pytestmark = pytest.mark.skipif(not os.path.exists("/proc/self/stat"), reason="this system has no /proc")


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as found:
        yield found
        found.kill()


@pytest.mark.parametrize("reaped", [False, True])
def test_a_driver_that_was_seen_has_ended_when_its_process_has(process: subprocess.Popen[bytes], reaped: bool) -> None:
    watch, driver = DriverProcess(), f"{socket.gethostname()}:{process.pid}"
    assert [watch.has_ended(driver) for _ in range(2)] == [False, False]
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    if reaped:
        process.wait()
    assert watch.has_ended(driver)
    assert not watch.has_ended(f"{socket.gethostname()}:{os.getpid()}")


def test_a_driver_that_was_never_seen_is_unknown(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    watch = DriverProcess()
    for driver in (None, f"{socket.gethostname()}:{process.pid}", "elsewhere:1", f"{socket.gethostname()}:../1"):
        assert [watch.has_ended(driver) for _ in range(2)] == [False, False]
