"""Servers that tests start in processes of their own: where they live, whom they run as, when they are ready."""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Any


class OwnServer:
    """A server in a process of its own, that a test may kill and start again where it was."""

    def __init__(
        self,
        command: Sequence[str],
        log: Path,
        ready: Callable[[], bool],
        user: dict[str, Any] | None = None,
        **settings: str,
    ) -> None:
        """Start nothing yet.

        Args:
            command: what is run.
            log: the file that gets what it says.
            ready: whether it answers.
            user: whom it is run as, from `unprivileged`; else as we are.
            settings: variables of its environment.
        """
        # The tests may be killed themselves, and it with them where there is util-linux.
        dying = ("setpriv", "--pdeathsig", "KILL") if shutil.which("setpriv") else ()
        self._command = [*dying, *command]
        self._user = user or {}
        self._log = log
        self._ready = ready
        self._settings = settings
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start it, and return when it answers. It ends with the thread that calls this, if not before."""
        self.launch()
        self.wait_ready()

    def launch(self) -> None:
        """Start it, and do not wait: one that needs others to answer."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=os.environ | self._settings,
                cwd="/" if self._user else None, **self._user,
            )  # fmt: skip

    def wait_ready(self, seconds: float = 60) -> None:
        """Return when it answers."""
        deadline = time.monotonic() + seconds
        while not self._ready():
            if not self.running or time.monotonic() > deadline:
                self.kill()
                raise AssertionError(f"{self._command} did not start: {self._log.read_text()[-2000:]}")
            time.sleep(0.05)

    def pause(self) -> None:
        """Stop it where it stands (SIGSTOP): its connections stay, and nothing is answered."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """Kill it (-9); what it had promised is on its disk."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()


@contextmanager
def open_folder() -> Iterator[Path]:
    """Make a folder that other users can enter: pytest's own are closed to them. Its path is short."""
    with tempfile.TemporaryDirectory(prefix="outfall-", ignore_cleanup_errors=True) as name:
        Path(name).chmod(0o755)
        yield Path(name)


def free_port() -> int:
    """Find a TCP port that nobody listens on. See `free_ports`."""
    return free_ports(1)[0]


def free_ports(count: int, *, also_above: int = 0) -> list[int]:
    """Find TCP ports that nobody listens on, whose neighbours so many above them are free too.

    They stay free until they are used, and between two lives of a server. So they are none that the kernel gives to
    clients and to servers that ask for any, as Spark does, unless it gives all; and each pytest worker has its own.
    """
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    linux = Path("/proc/sys/net/ipv4/ip_local_port_range")
    # Elsewhere the range of RFC 6335.
    low, high = map(int, linux.read_text().split()) if linux.exists() else (49_152, 65_535)
    given = range(low, high + 1)
    ports = range(10_000, 20_000)
    found = [port for port in ports if port not in given and port + also_above not in given] or list(ports)
    found = found[worker::workers]
    random.SystemRandom().shuffle(found)
    free = list(islice((port for port in found if _is_free(port) and _is_free(port + also_above)), count))
    assert len(free) == count, f"only {len(free)} ports are free"
    return free


def _is_free(port: int) -> bool:
    with socket.socket() as tried, suppress(OSError):
        tried.bind(("127.0.0.1", port))
        return True
    return False


def unprivileged(*folders: Path) -> dict[str, Any]:
    """Whom to run a server as: nobody instead of root, whom servers refuse; the folders become theirs."""
    if os.geteuid() != 0:
        return {}
    import pwd

    nobody = pwd.getpwnam("nobody")
    for folder in folders:
        os.chown(folder, nobody.pw_uid, nobody.pw_gid)
    return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}


def listens(port: int, host: str = "127.0.0.1") -> bool:
    with suppress(OSError), socket.create_connection((host, port), timeout=5):
        return True
    return False
