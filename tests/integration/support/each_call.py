"""Makes the n-th call of one kind in two epochs fail, for every n, each in a process of its own, and goes on after it.

`strace -f -e inject=fsync,…:error=EIO:when=100 python each_call.py whole <directory> fsync rename`. strace counts the
calls of each process and kind apart, so a process that first makes 100 - n calls for nothing has its n-th call fail
that matters.
Prints what came of each as one JSON document: kind of call → a list.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import socket
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from outfall.errors import OutfallError
from outfall.trace_points import listen
from tests.integration.support.file_epochs import FileEpochs

WHEN = 100
"""More than an epoch and its repetition make of any kind."""

CALLS = {
    "fsync": "fsync",
    "write": "write",
    "writev": "writev",
    "pwrite": "pwrite64",
    "pwritev": "pwritev,pwritev2",
    "rename": "?rename,?renameat,?renameat2",
    "link": "?link,?linkat",
}
"""Each function, and the system calls behind it, as strace calls them."""


def main(mode: str, directory: Path, calls: list[str]) -> None:
    """Fail one call of these kinds after the other, until there is no more of its kind."""
    # What is imported and looked up once must not be so in every process; too few calls for a fault.
    FileEpochs(mode, directory / "warm" / "out", directory / "warm" / "chk").run(0, "a")
    spenders = _spenders(directory)
    print(json.dumps({call: _fail_each(spenders[call], mode, directory / call) for call in calls}))


def _fail_each(spend: Callable[[], object], mode: str, directory: Path) -> list[dict[str, Any]]:
    outcomes = []
    for number in itertools.count(1):
        files = FileEpochs(mode, directory / str(number) / "out", directory / str(number) / "chk")
        outcome = _in_child(partial(_outcome, spend, number, files))
        if not outcome.pop("hit"):
            break
        outcomes.append(outcome)
    return outcomes


def _spenders(directory: Path) -> dict[str, Callable[[], object]]:
    """Each call, made for nothing."""
    name, null, memory = str(directory / "spent"), os.open("/dev/null", os.O_RDWR), os.memfd_create("spent")
    Path(name).touch()
    return {
        "fsync": lambda: os.fsync(memory),
        "write": lambda: os.write(null, b"x"),
        "writev": lambda: os.writev(null, [b"x"]),
        "pwrite": lambda: os.pwrite(null, b"x", 0),
        "pwritev": lambda: os.pwritev(null, [b"x"], 0),
        "rename": lambda: os.rename(name, name),
        "link": lambda: _link_in_vain(name),
    }


def _link_in_vain(name: str) -> None:
    with suppress(FileExistsError):
        os.link(name, name)


def _outcome(spend: Callable[[], object], number: int, files: FileEpochs) -> dict[str, Any]:
    for _ in range(WHEN - number):
        spend()
    watch = _Watch()
    expected = {epoch: _run(files, epoch, watch) for epoch in (0, 1)}
    found = {epoch: sorted(rows.elements()) for epoch, rows in files.found().items()}
    faults = {"errors": watch.errors, "warnings": watch.warnings, "steps": watch.steps[-3:]}
    return {"number": number, "hit": not _fails(spend, number), "expected": expected, "found": found, **faults}


class _Watch(logging.Handler):
    """What was raised and what was only logged."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.errors: list[str] = []
        self.warnings: list[str] = []
        self.steps: list[str] = []
        logging.getLogger("outfall").addHandler(self)
        logging.getLogger("outfall").propagate = False

    def emit(self, record: logging.LogRecord) -> None:
        self.warnings.append(record.getMessage())


def _run(files: FileEpochs, epoch: int, watch: _Watch) -> str:
    """Run an epoch, and after a failure again with another content; return which one must be in the files."""
    stop = listen(watch.steps.append)
    try:
        files.run(epoch, "a")
    except OutfallError as error:
        recorded = files.recorded(epoch)
        watch.errors.append(f"{type(error).__name__}: {error}")
    else:
        return "a"
    finally:
        stop()
    files.run(epoch, "b")
    return "a" if recorded else "b"


def _fails(spend: Callable[[], object], times: int) -> bool:
    """Whether the fault is still to come."""
    try:
        for _ in range(times):
            spend()
    except OSError:
        return True
    return False


def _in_child(action: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    # Sent, not written: writing may be what fails.
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        _answer(theirs, action)
    theirs.close()
    with ours, ours.makefile("rb") as answer:
        text = answer.read()
    if os.waitpid(pid, 0)[1]:
        raise RuntimeError("a process with a fault did not end well")
    return dict(json.loads(text))


def _answer(to: socket.socket, action: Callable[[], dict[str, Any]]) -> None:
    status = 1
    try:
        to.sendall(json.dumps(action()).encode())
        status = 0
    except Exception:
        traceback.print_exc()
    finally:
        os._exit(status)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:])
