"""Epochs of a `FileSink` without Spark, and a reader of its files that knows nothing of the sink."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outfall.file import FileSink
from outfall.protocol.messages import EpochResult
from outfall.recovery import recovery_config
from outfall.recovery.log import RecoveryLog
from outfall.testing import LocalDriver
from outfall.trace_points import listen
from tests.unit.support.spark_writer import WrittenInPython

MODES = ("whole", "growing")
BY_SPARK = "by spark"
"""Whole files that Spark's own writer has written, of which the driver does the rest; with a stand-in for Spark."""
ROLLING = "rolling"
"""Growing files of which each epoch begins new ones."""
ROWS = 6
"""Rows of an epoch, in two tasks; with two growing files, both get some."""

Content = dict[int, Counter[tuple[str, int]]]


@dataclass(frozen=True)
class FileEpochs:
    """One step: its target, its log, and the rows that its source brings."""

    mode: str
    target: Path
    recovery: Path
    pad: int = 10
    """Characters that make a row larger."""

    def sink(self) -> Any:
        """Make the sink anew, as each process does."""
        if self.mode == "whole":
            return FileSink(self.target)
        if self.mode == BY_SPARK:
            return WrittenInPython(FileSink(self.target, format="avro", writer="spark"))
        return FileSink(self.target, parts=2, roll_bytes=1 if self.mode == ROLLING else None)

    def driver(self) -> LocalDriver:
        """Start a driver that remembers nothing."""
        return LocalDriver(self.sink(), str(self.recovery))

    def run(self, epoch: int, content: str, driver: LocalDriver | None = None) -> EpochResult:
        """Run an epoch with one of its contents."""
        return (driver or self.driver()).run_epoch(epoch, self.tasks(epoch, content))

    def tasks(self, epoch: int, content: str) -> list[list[Any]]:
        """The rows of an epoch, as the sink takes them."""
        rows = [{"epoch": epoch, "content": content, "row": row, "pad": "x" * self.pad} for row in range(ROWS)]
        values: list[Any] = rows if self.mode in ("whole", BY_SPARK) else [(str(row["row"]), row) for row in rows]
        return [values[::2], values[1::2]]

    def found(self) -> Content:
        """Read the files that readers see."""
        rows: Content = {}
        for file in self.target.glob("[!._]*"):
            for row in map(json.loads, file.read_text().splitlines()):
                rows.setdefault(row["epoch"], Counter())[row["content"], row["row"]] += 1
        return rows

    def entries(self) -> list[tuple[str, int | None]]:
        """Kind and epoch of the log's entries, read without the engine."""
        files = sorted((self.recovery / "outfall" / "sink").glob("*.json"))
        records = [json.loads(file.read_text()) for file in files]
        return [(record["kind"], record.get("epoch")) for record in records]

    def recovery_log(self) -> RecoveryLog:
        """Open the log as a driver does."""
        return recovery_config(str(self.recovery)).open("sink")

    def recorded(self, epoch: int) -> bool:
        """Whether the log says that the epoch is written."""
        return ("prepared", epoch) in self.entries()

    def staged(self) -> list[Path]:
        """Whole files that readers do not see."""
        return list((self.target / "_outfall" / "staging").glob("*"))


def content(epochs: Mapping[int, str]) -> Content:
    """What the files hold when each row of each epoch is there once."""
    return {epoch: Counter((name, row) for row in range(ROWS)) for epoch, name in epochs.items()}


def at(spec: str, action: Callable[[], object]) -> ExitStack:
    """Run an action when a step is reached within the block, with `#n` the n-th time."""
    step, _, times = spec.partition("#")
    left = [int(times or 1)]

    def listener(reached: str) -> None:
        if reached == step:
            left[0] -= 1
            if left[0] == 0:
                action()

    stack = ExitStack()
    stack.callback(listen(listener))
    return stack
