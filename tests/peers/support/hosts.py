"""Hosts on a network of their own, which a test cuts off and heals: network namespaces on a bridge.

They share the disk and the clock of this machine. Needs root and `ip`. Names and the subnet carry the process id of the
run, so that runs beside each other do not meet. A watcher removes the network, its processes and its folder when the
run ends, however it ends; what a run left whose watcher was killed too is removed by the next one.
"""

from __future__ import annotations

import ctypes
import fcntl
import ipaddress
import itertools
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psutil
import pytest

from tests.integration.support.waiting import until
from tests.programs import program

_NAMES = re.compile(r"outf((\d+)x\d+)([a-z]?)")
_numbers = itertools.count()
"""Of the networks of this process."""
_NAMESPACES = Path("/run/netns")
_SUBNETS = ipaddress.ip_network("198.18.0.0/15")
"""Reserved for tests of networks (RFC 2544)."""
_NOBODY = "02:00:00:00:00:01"
"""A link address that no host has: what is sent there vanishes."""
_NETWORK_OF_A_PROCESS = 0x40000000


@dataclass(frozen=True)
class Host:
    """One host."""

    name: str
    """Of its namespace, and of the bridge's end of its link."""
    address: str

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Have this thread be on the host, and with it all processes that it starts meanwhile."""
        with open("/proc/thread-self/ns/net") as home, (_NAMESPACES / self.name).open() as there:
            _enter(there.fileno())
            try:
                yield
            finally:
                _enter(home.fileno())

    def processes(self, command: str = "") -> list[psutil.Process]:
        """Return the processes that run there and have a text in their command."""
        found = []
        for pid in _processes(self.name):
            with suppress(psutil.Error):
                process = psutil.Process(pid)
                if command in " ".join(process.cmdline()):
                    found.append(process)
        return found


class Network:
    """Hosts on a bridge, whose first address is this process's own, and a folder that all of them see."""

    def __init__(self, names: Sequence[str]) -> None:
        """Make one host for each name, of one letter."""
        if os.geteuid() != 0:
            pytest.fail("needs root, for network namespaces. What to do: run this session as root", pytrace=False)
        self._ip = program("ip")
        self._run = f"{os.getpid()}x{next(_numbers)}"
        self._bridge = f"outf{self._run}"
        self.folder = _folder(self._run)
        with _alone():
            sweep()
            self._watcher = self._watch()
            self.folder.mkdir()
            self.folder.chmod(0o755)
            self.subnet = _free_subnet(os.getpid())
            addresses = map(str, self.subnet.hosts())
            self._call("link", "add", self._bridge, "type", "bridge")
            self.address = next(addresses)
            self._call("addr", "add", f"{self.address}/{self.subnet.prefixlen}", "dev", self._bridge)
            self._call("link", "set", self._bridge, "up")
            self.hosts = {name: self._add(f"{self._bridge}{name}", next(addresses)) for name in names}

    def _watch(self) -> subprocess.Popen[bytes]:
        # It outlives this process and its group, and notices by the end of its input.
        command = [sys.executable, "-m", __name__, self._run]
        root = Path(__file__).parents[3]
        return subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True, cwd=root)

    def cut(self, host: Host) -> None:
        """Cut a host off: packets vanish, and nobody is told."""
        self._call("link", "set", host.name, "down")

    def heal(self, host: Host) -> None:
        """Connect a host again."""
        self._call("link", "set", host.name, "up")

    def lose(self, sender: Host, receiver: Host) -> None:
        """Have what one host sends to another one vanish; the other direction and all others stay."""
        self._call(
            "-n", sender.name, "neigh", "replace", receiver.address, "lladdr", _NOBODY, "nud", "permanent", "dev", "e0"
        )

    def find(self, sender: Host, receiver: Host) -> None:
        """End what `lose` began."""
        self._call("-n", sender.name, "neigh", "del", receiver.address, "dev", "e0")

    def close(self) -> None:
        """Remove all."""
        remove(self._run)
        if self._watcher.stdin is not None:
            self._watcher.stdin.close()
        self._watcher.wait()

    def _add(self, name: str, address: str) -> Host:
        self._call("netns", "add", name)
        self._call("link", "add", name, "type", "veth", "peer", "name", "e0", "netns", name)
        self._call("link", "set", name, "master", self._bridge, "up")
        self._call("-n", name, "addr", "add", f"{address}/{self.subnet.prefixlen}", "dev", "e0")
        for device in ("e0", "lo"):
            self._call("-n", name, "link", "set", device, "up")
        return Host(name, address)

    def _call(self, *arguments: str) -> None:
        done = subprocess.run([self._ip, *arguments], capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"ip {' '.join(arguments)}: {done.stderr}"


@contextmanager
def network(names: Sequence[str]) -> Iterator[Network]:
    """Run a network; see `Network`."""
    made = Network(names)
    try:
        yield made
    finally:
        made.close()


def sweep() -> None:
    """Remove what runs have left that are dead."""
    for run in {found[1] for name in _traces() if (found := _NAMES.fullmatch(name))}:
        if not _lives(run):
            remove(run)


def remove(run: str) -> None:
    """Remove the network of a run, with its processes and its folder."""
    mine = {name: found[3] for name in _traces() if (found := _NAMES.fullmatch(name)) and found[1] == run}
    for name in [name for name, host in mine.items() if host]:
        until(partial(_none_left, name), f"the end of all processes on {name}", 60)
        subprocess.run([program("ip"), "netns", "del", name], check=False, capture_output=True)
    # The last one: it tells that there is something left.
    subprocess.run([program("ip"), "link", "del", f"outf{run}"], check=False, capture_output=True)
    shutil.rmtree(_folder(run), ignore_errors=True)


def _traces() -> list[str]:
    """The names of all namespaces, links and folders that may be those of a run."""
    namespaces = _NAMESPACES.iterdir() if _NAMESPACES.is_dir() else ()
    temporary = Path(tempfile.gettempdir()).glob("outf*")
    return [path.name for path in itertools.chain(namespaces, Path("/sys/class/net").iterdir(), temporary)]


def _folder(run: str) -> Path:
    return Path(tempfile.gettempdir(), f"outf{run}")


def _lives(run: str) -> bool:
    """Whether a run is alive: its process, and not a later one of the same id."""
    try:
        began = psutil.Process(int(run.partition("x")[0])).create_time()
    except psutil.NoSuchProcess:
        return False
    made = [path.stat().st_mtime for path in (_folder(run), *_NAMESPACES.glob(f"outf{run}[a-z]")) if path.exists()]
    return not made or began <= max(made) + 1


def _processes(namespace: str) -> list[int]:
    done = subprocess.run([program("ip"), "netns", "pids", namespace], capture_output=True, text=True, check=False)
    return [int(pid) for pid in done.stdout.split()]


def _none_left(namespace: str) -> bool:
    """Kill all processes of a namespace; return whether there were none."""
    found = _processes(namespace)
    for pid in found:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return not found


def _free_subnet(first: int) -> ipaddress.IPv4Network:
    done = subprocess.run([program("ip"), "-o", "-4", "addr"], capture_output=True, text=True, check=True)
    taken = [ipaddress.ip_interface(text).network for text in re.findall(r"inet (\S+)", done.stdout)]
    subnets = list(_SUBNETS.subnets(new_prefix=24))
    first %= len(subnets)
    return next(
        subnet
        for subnet in (*subnets[first:], *subnets[:first])
        if isinstance(subnet, ipaddress.IPv4Network) and not any(subnet.overlaps(other) for other in taken)
    )


@contextmanager
def _alone() -> Iterator[None]:
    """Keep other runs from making or sweeping networks meanwhile."""
    # Not the folder of the namespaces, which `ip` itself locks.
    folder = os.open(_NAMESPACES.parent, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def _enter(namespace: int) -> None:
    # Python has it from version 3.12 on.
    if ctypes.CDLL(None, use_errno=True).setns(namespace, _NETWORK_OF_A_PROCESS) != 0:
        raise OSError(ctypes.get_errno(), "setns failed")


if __name__ == "__main__":
    sys.stdin.buffer.read()
    with _alone():
        remove(sys.argv[1])
