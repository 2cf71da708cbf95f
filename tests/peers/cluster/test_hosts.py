"""Hosts of tests are cut off one by one, and nothing is left of them when their run is killed."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.integration.support.servers import free_port, listens
from tests.integration.support.waiting import until
from tests.peers.support.hosts import Network, network

ROOT = Path(__file__).parents[3]
RUN = """
import subprocess, sys
from tests.peers.support.hosts import Network
made = Network("ab")
with made.hosts["a"].entered():
    child = subprocess.Popen(["sleep", "3600"])
print(made.hosts["a"].name, child.pid, made._watcher.pid, made.folder, flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="module")
def net() -> Iterator[Network]:
    with network("ab") as made:
        yield made


@pytest.fixture(scope="module")
def port(net: Network) -> Iterator[int]:
    """A port of host b that somebody listens on."""
    b = net.hosts["b"]
    with b.entered():
        server = socket.create_server((b.address, free_port()))
    yield server.getsockname()[1]
    server.close()


def reaches(net: Network, port: int) -> bool:
    b = net.hosts["b"]
    with net.hosts["a"].entered():
        try:
            socket.create_connection((b.address, port), timeout=0.5).close()
        except TimeoutError:
            return False
    return True


def test_a_host_that_is_cut_off_is_silent_until_it_is_healed(net: Network, port: int) -> None:
    b = net.hosts["b"]
    assert reaches(net, port)
    net.cut(b)
    assert not reaches(net, port)
    net.heal(b)
    until(lambda: reaches(net, port), "the healed host", 30)


@pytest.mark.parametrize("way", ["ab", "ba"])
def test_one_direction_between_two_hosts_is_lost(net: Network, port: int, way: str) -> None:
    sender, receiver = (net.hosts[name] for name in way)
    net.lose(sender, receiver)
    assert not reaches(net, port)
    assert listens(port, net.hosts["b"].address), "others reach it"
    net.find(sender, receiver)
    until(lambda: reaches(net, port), "the way", 30)


@pytest.mark.parametrize("watcher", [True, False])
def test_nothing_is_left_of_a_run_that_was_killed(net: Network, watcher: bool) -> None:
    run = subprocess.Popen(
        [sys.executable, "-c", RUN], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    assert run.stdout is not None
    name, child, watching, folder = run.stdout.readline().split()
    if not watcher:
        os.kill(int(watching), signal.SIGKILL)
    run.kill()
    run.wait()
    if not watcher:
        # The next run finds what it left.
        with suppress(psutil.NoSuchProcess):
            psutil.Process(int(watching)).wait(30)
        assert Path("/run/netns", name).exists()
        subprocess.run([sys.executable, "-c", RUN], stdin=subprocess.DEVNULL, check=True, cwd=ROOT, capture_output=True)
    until(lambda: not any(left(name, int(child), Path(folder))), "the end of all that it made", 30)
    assert all(Path("/run/netns", host.name).exists() for host in net.hosts.values()), "those of a run that lives"


def left(name: str, child: int, folder: Path) -> list[bool]:
    return [
        Path("/run/netns", name).exists(),
        Path("/sys/class/net", name).exists(),
        Path("/sys/class/net", name[:-1]).exists(),
        folder.exists(),
        psutil.pid_exists(child) and psutil.Process(child).status() != psutil.STATUS_ZOMBIE,
    ]
