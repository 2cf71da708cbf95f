"""Two queries that meet at one target, for every kind of target."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any, cast

from outfall.capabilities import SaveMode
from outfall.capability_checks import resolve
from outfall.errors import OutfallError, StaleWriterError, TargetError, TransientError
from outfall.protocol.step import EpochOptions
from outfall.testing import LocalDriver, MemoryRecoveryConfig, SinkHarness
from outfall.trace_points import listen

_MODES = ("error", "append", "overwrite")
MODES = list(product(_MODES, _MODES))

STEPS = ["before BEGIN", "after BEGIN", "target: announced", "after open target", "task: after write",
         "before PREPARED", "before COMMITTING", "after COMMITTING", "after COMPLETED"]  # fmt: skip
"""Where the second query begins, in the first epoch of the first one."""


@dataclass
class Running(ABC):
    """A query that goes on until an error stops it."""

    done: int = field(default=0, kw_only=True)
    """Epochs that were completed."""
    error: OutfallError | None = field(default=None, kw_only=True)

    def go_on(self, epochs: int = 1) -> None:
        for _ in range(epochs):
            if self.error is None:
                try:
                    self.run(self.done)
                    self.done += 1
                except OutfallError as error:
                    self.error = error

    @abstractmethod
    def run(self, epoch: int) -> None:
        """Run an epoch."""


@dataclass
class Query(Running):
    """A query with its own recovery data, and what it was told."""

    harness: SinkHarness
    target: Any
    mode: str
    first: int
    """The number of its first row."""
    recovery: MemoryRecoveryConfig = field(default_factory=MemoryRecoveryConfig)

    def run(self, epoch: int) -> None:
        sink = resolve(self.harness.make_sink(self.target)).in_save_mode(cast(SaveMode, self.mode))
        number = self.first + epoch
        row = self.harness.row(number)
        rows = [(self.harness.key(number), row)] if resolve(sink).fixed else [row]
        LocalDriver(sink, self.recovery, options=EpochOptions(worker_count=1)).run_epoch(epoch, [rows])

    @property
    def rows(self) -> list[Any]:
        """The rows of its completed epochs."""
        return [self.harness.row(self.first + epoch) for epoch in range(self.done)]


def queries_meet(
    harness: SinkHarness, directory: Path, modes: tuple[str, str], step: str, *, stops: bool = True
) -> None:
    """Run a query, and a second one from one of its steps on. Each row is there once, or its query has an error.

    An overwrite removes rows of the other query. With `stops`, that query must get an error in its next epoch. A table
    of a database goes on as after any DELETE.
    """
    target = harness.new_target(directory)
    one, other = (Query(harness, target, mode, first) for mode, first in zip(modes, (100, 200), strict=True))
    waiting = [lambda: other.go_on(2)]

    def listener(reached: str) -> None:
        if reached == step and waiting:
            waiting.pop()()

    with ExitStack() as stack:
        stack.callback(listen(listener))
        one.go_on(2)
    for query in (other, one):
        query.go_on()
    place = f"{type(harness).__name__}, {modes}, the second one came {step!r}: {one.error}, {other.error}"
    found = Counter(map(repr, harness.read(target)))
    for query, rival in ((one, other), (other, one)):
        if query.error is None and (stops or rival.mode != "overwrite"):
            assert all(found[repr(row)] == 1 for row in query.rows), f"{place}: {query.rows} are missing in {found}"
        elif query.error is not None:
            assert isinstance(query.error, TargetError | StaleWriterError | TransientError), place
    assert max(found.values(), default=1) == 1, f"{place}: {found}"
