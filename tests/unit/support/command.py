"""Runs the command line in this process, and steps for it to look at."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
import types
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from outfall.cli.commands.app import outfall
from outfall.file import FileSink
from outfall.testing import LocalDriver


def run(*arguments: object, answer: str | None = None) -> Result:
    return CliRunner().invoke(outfall, [str(argument) for argument in arguments], input=answer)


def done(*arguments: object, answer: str | None = None) -> str:
    """What is printed by a command that succeeds."""
    result = run(*arguments, answer=answer)
    assert result.exit_code == 0, result.output
    return result.output


def failed(*arguments: object, code: int = 1) -> str:
    """What is printed by a command that fails as it should, without a traceback."""
    result = run(*arguments)
    assert result.exit_code == code, result.output
    assert isinstance(result.exception, SystemExit)
    assert "Traceback" not in result.output
    return result.output


def parsed(*arguments: object) -> Any:
    return json.loads(done(*arguments, "--json"))


def rows(epoch: int, count: int = 3) -> list[list[dict[str, int]]]:
    return [[{"epoch": epoch, "id": number} for number in range(count)], [{"epoch": epoch, "id": count}]]


def in_terminal(*arguments: object, columns: int = 80, interrupt_at: str | None = None, **environment: str) -> str:
    """What a process prints into a terminal of its own, with its colours; interrupted as by Ctrl-C once it has a text.

    It ends with 0 or 1, and prints no traceback.
    """
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 30, columns, 0, 0))
    # A process whose parent runs in the background ignores the signal of Ctrl-C.
    program = "import signal as s; s.signal(s.SIGINT, s.default_int_handler); from outfall.cli import main; main()"
    command = [sys.executable, "-c", program, *map(str, arguments)]
    known = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLUMNS", "LINES")}
    printed = b""
    with subprocess.Popen(
        command, stdin=its, stdout=its, stderr=its, env=known | {"TERM": "xterm-256color"} | environment
    ) as process:
        os.close(its)
        deadline = time.monotonic() + 60
        while select.select([ours], [], [], max(0, deadline - time.monotonic()))[0]:
            try:
                printed += os.read(ours, 65536)
            except OSError:  # the other end is closed
                break
            if interrupt_at is not None and interrupt_at.encode() in printed:
                process.send_signal(signal.SIGINT)
                interrupt_at = None
        else:
            process.kill()
            raise AssertionError(f"no end within a minute; the last text is {printed[-300:]!r}")
    os.close(ours)
    assert process.returncode in (0, 1)
    assert b"Traceback" not in printed
    return printed.decode().replace("\r\n", "\n")


class FileStep:
    """Whole files of one step, with what the command line is told of them."""

    def __init__(self, place: Path, step_id: str = "sink") -> None:
        self.path = place / f"out-{step_id}"
        self.recovery = str(place / "rec")
        self.step_id = step_id
        self.sink = ("--sink", "file", "-o", f"path={self.path}")

    def driver(self) -> LocalDriver:
        return LocalDriver(FileSink(str(self.path)), self.recovery, step_id=self.step_id)

    def write(self, *epochs: int) -> None:
        for epoch in epochs:
            self.driver().run_epoch(epoch, rows(epoch))

    def staged(self) -> list[str]:
        return sorted(path.name for path in (self.path / "_outfall" / "staging").glob("*"))

    def found(self) -> list[tuple[int, int]]:
        """The rows that a reader sees."""
        lines = [line for path in self.path.glob("part-*") for line in path.read_text().splitlines()]
        return sorted((row["epoch"], row["id"]) for row in map(json.loads, lines))

    @staticmethod
    def expected(*epochs: int) -> list[tuple[int, int]]:
        return [(epoch, number) for epoch in epochs for number in range(4)]


def importable(monkeypatch: pytest.MonkeyPatch, sink: Any) -> str:
    """Give a sink a place that --sink can name."""
    module = types.ModuleType("my_job")
    module.make_sink = lambda: sink  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "my_job", module)
    return "my_job:make_sink"


def tree(place: Path) -> dict[str, bytes | None]:
    """All that lies below a directory."""
    return {str(path.relative_to(place)): path.read_bytes() if path.is_file() else None for path in place.rglob("*")}
