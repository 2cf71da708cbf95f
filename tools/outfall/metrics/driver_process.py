"""Whether a driver on this host has ended, for the exporter that runs beside it."""

from __future__ import annotations

import socket
from pathlib import Path


class DriverProcess:
    """Watches the process of the driver that is named in the newest BEGIN.

    It counts as ended only if this object has seen it: processes of another container, which has another `/proc`, and
    drivers on other hosts are unknown. On systems without `/proc` (proc(5)) every driver is.
    """

    def __init__(self) -> None:
        self._driver: str | None = None
        self._seen: str | None = None

    def has_ended(self, driver: str | None) -> bool:
        """Return whether the driver, as `host:pid`, was seen on this host before and has ended since."""
        if driver is None or driver.rpartition(":")[0] != socket.gethostname():
            return False
        started = _start_of(driver.rpartition(":")[2])
        if driver != self._driver or self._seen is None:
            self._driver, self._seen = driver, started
        return started != self._seen


def _start_of(pid: str) -> str | None:
    """Return the start time of a process, which tells it from a later one of its number; `None` if it has ended."""
    try:
        stat = Path("/proc", str(int(pid)), "stat").read_text(errors="replace")
    except (OSError, ValueError):
        return None
    state, *fields = stat.rpartition(")")[2].split()
    return None if state in "ZX" else fields[18]
