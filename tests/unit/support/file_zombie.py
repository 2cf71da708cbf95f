"""A process that writes a part and stops itself on the way."""

from __future__ import annotations

import os
import signal
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from outfall.file.growing.part_files import FileState
from outfall.trace_points import listen
from tests.unit.support.file_target import GrowingDriver, growing


@dataclass(frozen=True)
class Zombie:
    pid: int
    _says: int

    def wake(self) -> str:
        """Let it go on to its end, and return what came of it."""
        os.kill(self.pid, signal.SIGCONT)
        return os.read(self._says, 100).decode()


@contextmanager
def zombie(out: Path, where: str, token: str) -> Iterator[Zombie]:
    """Fork a process that has stopped at a step of its writing; at the end it is dead."""
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        # Threads of this process are not needed in the child.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        try:
            os.write(writing, _write(out, where, token).encode())
        finally:
            os._exit(0)
    os.close(writing)
    try:
        _, status = os.waitpid(pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        yield Zombie(pid, reading)
    finally:
        os.close(reading)
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(pid, 0)


def _write(out: Path, where: str, token: str) -> str:
    def stop_at(step: str) -> None:
        if step == where:
            os.kill(os.getpid(), signal.SIGSTOP)

    sink = growing(out)
    states = {name: FileState(offset=0) for name in sink.list_parts()}
    driver = GrowingDriver(sink, generation=1, states=states, begun={1: token})
    part = driver.part(attempt=1)
    part.write_batch([{"id": 99}])
    listen(stop_at)
    stop_at("between writes")
    try:
        part.snapshot()
    except Exception as error:
        return type(error).__name__
    return "wrote"
