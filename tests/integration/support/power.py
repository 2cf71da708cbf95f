"""Epochs on two disks whose power is cut at a step."""

from __future__ import annotations

import shutil
import uuid
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from outfall.errors import OutfallError
from outfall.testing import CrashError, crash_at
from tests.disks import Disk
from tests.integration.support.file_epochs import FileEpochs, at, content


@dataclass(frozen=True)
class Powered:
    """The disks of a target and of a log, which lose their power together."""

    target: Disk
    log: Disk

    def cut(self) -> None:
        """Lose what has not reached the disks, and die."""
        self.target.cut_power()
        self.log.cut_power()
        raise CrashError

    def restart(self) -> None:
        """Bring the power back."""
        self.target.restart()
        self.log.restart()


class PowerLoss:
    """Two epochs, the power failing at a step of one, and what is there when it is back."""

    def __init__(self, disks: Powered, mode: str) -> None:
        name = uuid.uuid4().hex
        self.files = FileEpochs(mode, disks.target.path / name / "out", disks.log.path / name / "chk")
        self.epoch = 0
        self._disks = disks
        self._promised: list[tuple[str, int | None]] = []

    def at(self, epoch: int, step: str) -> Self:
        """Run until the power fails, and bring it back."""
        for self.epoch in range(epoch):
            self._run()
        self.epoch = epoch
        # Promises first: what is told at the step itself is to be kept, too.
        with ExitStack() as stack:
            for told in ("after BEGIN", "after PREPARED", "after COMMITTING", "after COMPLETED"):
                stack.enter_context(at(told, self._promise))
            self._run_until_lost(step)
        self._disks.restart()
        return self

    def check(self) -> None:
        """Find what was promised, finish, find each row once, and leave the room to others."""
        try:
            self._check()
        finally:
            for place in (self.files.target, self.files.recovery):
                shutil.rmtree(place.parent, ignore_errors=True)

    def _check(self) -> None:
        assert set(self._promised) <= set(self.files.entries())
        counts = "a" if self.files.recorded(self.epoch) else "b"
        for number in range(self.epoch, 3):
            self.files.run(number, "b")
        earlier, later = dict.fromkeys(range(self.epoch), "a"), dict.fromkeys(range(self.epoch + 1, 3), "b")
        assert self.files.found() == content(earlier | {self.epoch: counts} | later)

    def _run_until_lost(self, step: str) -> None:
        lost: list[bool] = []

        def lose() -> None:
            lost.append(True)
            self._disks.cut()

        try:
            with at(step, lose):
                self._run()
        except (CrashError, OutfallError):
            # Another thread of the process that dies may see an error of the disk first.
            if not lost:
                raise
        else:
            raise AssertionError(f"{step} was not reached")

    def _run(self) -> None:
        self.files.run(self.epoch, "a")

    def _promise(self) -> None:
        self._promised = self.files.entries()[-1:]


def steps_with_effects(mode: str, place: Path, epoch: int) -> list[str]:
    """Each step of an epoch that changes a disk, each time."""
    files = FileEpochs(mode, place / "out", place / "chk")
    for before in range(epoch):
        files.run(before, "a")
    with crash_at(None) as seen:
        files.run(epoch, "a")
    idle = {"log: newest checked", "log: file created", "log: file filled", "file: opening"}
    chosen = [step for step in seen if step.startswith(("log:", "file:")) and step not in idle]
    return [*_numbered(chosen), "after COMPLETED"]


def _numbered(steps: list[str]) -> list[str]:
    times: Counter[str] = Counter()
    numbered = []
    for step in steps:
        times[step] += 1
        numbered.append(f"{step}#{times[step]}")
    return numbered
