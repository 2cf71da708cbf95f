"""What recording an epoch costs the driver in each recovery store, with a thousand parts; and whether a store grows.

    python -m benchmarks.bench_recovery --rows 1000 --pairs 15
    python -m benchmarks.bench_recovery --rows 1000 --pairs 15 --epochs 10000

Runs on the local engine, without Spark. `--rows` is how many parts the sink has, each with one row and a state of forty
bytes per epoch. `--epochs` also runs so many epochs of one part on each store and prints its size along the way.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from itertools import count
from pathlib import Path

from benchmarks.common import Given, finish, machine, parse, seconds
from benchmarks.results import Result, now
from outfall.recovery import CheckpointRecoveryConfig, RecoveryConfig, SqliteRecoveryConfig
from outfall.testing import LocalDriver
from outfall.testing.benchmark.scratch import Scratch
from outfall.testing.recovery_sinks import CountingSink

DEFAULT = Given(rows=1000, pairs=15)
MARKS = (100, 200, 1_000, 2_000, 5_000, 10_000)


class Recorded:
    """A query with so many parts, whose rows cost nothing."""

    def __init__(self, parts: int, recovery: RecoveryConfig) -> None:
        self._driver = LocalDriver(CountingSink(parts, padding=40), recovery)
        self._rows = [(str(number), 1) for number in range(parts)]
        self._epochs = count()

    def seconds(self) -> float:
        """Run an epoch; return what the driver took from the last answer to COMPLETED, its store's sweep included."""
        epoch = next(self._epochs)
        with closing(self._driver.coordinator()) as coordinator:
            ticket = coordinator.begin(epoch)
            answers = self._driver.run_tasks(ticket, epoch, [self._rows])
            start = time.perf_counter()
            coordinator.finish(ticket, answers)
            return time.perf_counter() - start


def stores(scratch: Scratch) -> dict[str, RecoveryConfig]:
    """A new store of each kind."""
    return {
        "checkpoint store": CheckpointRecoveryConfig(str(scratch.new())),
        "SQLite": SqliteRecoveryConfig(str(scratch.new())),
    }


def measure(given: Given, scratch: Scratch) -> Result:
    """Run epochs on all stores in turn."""
    started = now()
    queries = {name: Recorded(given.rows, recovery) for name, recovery in stores(scratch).items()}
    for query in queries.values():
        query.seconds()
    figures: dict[str, list[float]] = {name: [] for name in queries}
    for _ in range(given.pairs):
        for name, query in queries.items():
            figures[name].append(query.seconds())
    return Result(
        benchmark="recovery",
        title="Recovery stores",
        unit="s from the last answer to COMPLETED",
        wanted={},
        lines=[seconds(f"{given.rows:,} parts, wanted ≤ 0.1", name, figures, {}) for name in queries],
        pairs=given.pairs,
        started=started,
        machine=machine(),
    )


def growth(epochs: int, scratch: Scratch) -> dict[str, dict[int, int]]:
    """Run epochs of one part; return each store's bytes after some of them."""
    sizes: dict[str, dict[int, int]] = {}
    for name, recovery in stores(scratch).items():
        query = Recorded(1, recovery)
        place = Path(recovery.url().removeprefix("sqlite://"))
        sizes[name] = {}
        for epoch in range(1, epochs + 1):
            query.seconds()
            if epoch in MARKS or epoch == epochs:
                sizes[name][epoch] = sum(file.stat().st_size for file in place.rglob("*") if file.is_file())
    return sizes


def main(arguments: Sequence[str]) -> None:
    """Measure, and print how the stores grew where that was asked for."""
    rest = list(arguments)
    epochs = int(rest[rest.index("--epochs") + 1]) if "--epochs" in rest else 0
    if epochs:
        del rest[rest.index("--epochs") : rest.index("--epochs") + 2]
    with Scratch() as scratch:
        finish(measure(parse(__doc__.splitlines()[0], DEFAULT, rest), scratch))
        for name, sizes in growth(epochs, scratch).items() if epochs else ():
            for epoch, size in sizes.items():
                sys.stdout.write(f"{name}: {size:,} bytes after {epoch:,} epochs{os.linesep}")


if __name__ == "__main__":
    main(sys.argv[1:])
