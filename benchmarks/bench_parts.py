"""Driver time per epoch (BEGIN, collect, seal, commit) with ten and with a thousand growing files.

    python -m benchmarks.bench_parts --rows 1000 --pairs 7

Runs on the local engine, without Spark. `--rows` is the number of parts of the larger sink. Each
part gets one row per epoch.
"""

from __future__ import annotations

import sys
import time
from contextlib import closing
from itertools import count

from benchmarks.common import Given, finish, machine, parse, seconds
from benchmarks.results import Result, now
from outfall.file import FileSink
from outfall.testing import LocalDriver
from outfall.testing.benchmark.rows import Scratch

DEFAULT = Given(rows=1000, pairs=7)
FEW = 10


class Parts:
    """A query with a given number of growing files."""

    def __init__(self, parts: int, scratch: Scratch) -> None:
        self._driver = LocalDriver(FileSink(scratch.new(), parts=parts), str(scratch.new()))
        self._rows = [(key, {"a": 1}) for key in _key_for_each(self._driver.sink, parts)]
        self._epochs = count()

    def seconds(self) -> float:
        """Run an epoch with one row per part, and return the driver's seconds, without the tasks."""
        epoch = next(self._epochs)
        with closing(self._driver.coordinator()) as coordinator:
            start = time.perf_counter()
            ticket = coordinator.begin(epoch)
            begun = time.perf_counter() - start
            answers = self._driver.run_tasks(ticket, epoch, [self._rows])
            start = time.perf_counter()
            coordinator.finish(ticket, answers)
            return begun + time.perf_counter() - start


def measure(given: Given, scratch: Scratch) -> Result:
    """Run epochs of both queries alternately."""
    started = now()
    few, many = f"{FEW} parts", f"{given.rows:,} parts"
    queries = {few: Parts(FEW, scratch), many: Parts(given.rows, scratch)}
    for query in queries.values():
        query.seconds()
    figures: dict[str, list[float]] = {name: [] for name in queries}
    for _ in range(given.pairs):
        for name, query in queries.items():
            figures[name].append(query.seconds())
    lines = [seconds("growing files", few, figures, {}), seconds("growing files", many, figures, {few: few})]
    return Result(
        benchmark="parts",
        title="Many parts",
        unit="s of the driver per epoch",
        wanted={few: "≤ 3"},
        lines=lines,
        pairs=given.pairs,
        started=started,
        machine=machine(),
    )


def _key_for_each(sink: FileSink, parts: int) -> list[str]:
    """Find a key for each part."""
    part_fn = sink.part_fn
    found: dict[int, str] = {}
    for number in count():
        found.setdefault(part_fn(f"k{number}") % parts, f"k{number}")
        if len(found) == parts:
            return [found[index] for index in range(parts)]
    raise AssertionError


if __name__ == "__main__":
    with Scratch() as directories:
        finish(measure(parse(__doc__.splitlines()[0], DEFAULT, sys.argv[1:]), directories))
