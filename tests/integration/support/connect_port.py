"""Spark Connect's local server listens on a fixed port, so only one may run on a machine at a time."""

from __future__ import annotations

import fcntl
import socket
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

PORT = 15002
_held: list[TextIO] = []


def take_port(patience: float = 180) -> None:
    """Wait until no other test has a server. The port is this process's until it dies, and its server with it."""
    lock = Path(tempfile.gettempdir(), "outfall-tests-connect.lock").open("w")  # noqa: SIM115 - until the process dies
    fcntl.flock(lock, fcntl.LOCK_EX)
    _held.append(lock)
    deadline = time.monotonic() + patience
    # The server of a process that has just ended takes a moment longer.
    while time.monotonic() < deadline and _answers():
        time.sleep(0.2)


@contextmanager
def connect_port() -> Iterator[None]:
    """Keep the port for a process that is started within the block, and ends there."""
    take_port()
    try:
        yield
    finally:
        _held.pop().close()


def _answers() -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", PORT)) == 0
