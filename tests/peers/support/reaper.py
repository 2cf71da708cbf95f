"""Ends every process that works below a folder, and removes it. Used by tests, and run to clean up after them.

A node manager starts containers in sessions of their own, and they outlive it. Each works below the node manager's
directories, as do the Python workers that it starts.

`python reaper.py FOLDER` waits until its standard input ends, as it does when the tests are killed.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

_QUIET = 1.0
"""Seconds without a process, after which nobody is left who could start another."""


def processes_below(folder: Path) -> list[int]:
    """Return the ids of the processes whose working directory is a folder or below it, also if it was removed."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                at = Path(str(entry.joinpath("cwd").readlink()).removesuffix(" (deleted)"))
                if at.is_relative_to(folder) and int(entry.name) != os.getpid():
                    found.append(int(entry.name))
    return sorted(found)


def end_processes_below(folder: Path) -> None:
    """Kill them (-9), until none is left and none is started any more."""
    quiet_since = time.monotonic()
    while time.monotonic() - quiet_since < _QUIET:
        for pid in processes_below(folder):
            quiet_since = time.monotonic()
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)


def main(folder: Path) -> None:
    """Wait until the tests are gone, and clean up after them."""
    sys.stdin.buffer.read()
    end_processes_below(folder)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
