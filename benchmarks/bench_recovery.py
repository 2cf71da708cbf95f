"""Driver time to record an epoch with a thousand parts in each recovery store, and growth of the stores.

    python -m benchmarks.bench_recovery --rows 1000 --pairs 15
    python -m benchmarks.bench_recovery --rows 1000 --pairs 15 --epochs 10000
    python -m benchmarks.bench_recovery --rows 1 --pairs 51 --checkpoint

Runs on the local engine, without Spark. `--rows` is the number of parts, each with one row and a state of forty bytes
per epoch. `--epochs` also runs that number of epochs with one part on each store and prints the size of the store.
`--checkpoint` also measures the cost per epoch of syncing Spark's checkpoint before BEGIN.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import count
from pathlib import Path

from benchmarks.common import Given, finish, machine, parse, seconds
from benchmarks.results import Result, now
from outfall.protocol.step import EpochOptions
from outfall.recovery import CheckpointRecoveryConfig, RecoveryConfig, SqliteRecoveryConfig
from outfall.recovery.spark_checkpoint import SparkCheckpoint, checksum_of
from outfall.testing import LocalDriver
from outfall.testing.benchmark.rows import Scratch
from outfall.testing.minimal_sinks import CountingSink

DEFAULT = Given(rows=1000, pairs=15)
CHUNK = 512
"""Bytes per checksum in Hadoop's files."""
MARKS = (100, 200, 1_000, 2_000, 5_000, 10_000)


class Recorded:
    """A query with a given number of parts, whose rows cost nothing."""

    def __init__(self, parts: int, recovery: RecoveryConfig) -> None:
        self._driver = LocalDriver(CountingSink(parts, padding=40), recovery)
        self._rows = [(str(number), 1) for number in range(parts)]
        self._epochs = count()

    def seconds(self) -> float:
        """Run an epoch; return the driver's seconds from the last task result to COMPLETED, log clean-up included."""
        epoch = next(self._epochs)
        with closing(self._driver.coordinator()) as coordinator:
            ticket = coordinator.begin(epoch)
            answers = self._driver.run_tasks(ticket, epoch, [self._rows])
            start = time.perf_counter()
            coordinator.finish(ticket, answers)
            return time.perf_counter() - start


def stores(scratch: Scratch) -> dict[str, RecoveryConfig]:
    """Create a new store of each kind."""
    return {
        "checkpoint store": CheckpointRecoveryConfig(str(scratch.new())),
        "SQLite": SqliteRecoveryConfig(str(scratch.new())),
    }


def measure(given: Given, scratch: Scratch) -> Result:
    """Run epochs on all stores alternately."""
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
        unit="s from the last task result to COMPLETED",
        wanted={},
        lines=[seconds(f"{given.rows:,} parts, target ≤ 0.1", name, figures, {}) for name in queries],
        pairs=given.pairs,
        started=started,
        machine=machine(),
    )


def growth(epochs: int, scratch: Scratch) -> dict[str, dict[int, int]]:
    """Run epochs with one part, and return the size of each store at intervals."""
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


class Planned:
    """A query whose checkpoint receives the files that Spark writes per batch, without syncs, as Spark does."""

    def __init__(self, place: Path, partitions: int, *, durable: bool) -> None:
        for name in ("offsets", "commits", "sources/0", *(f"state/0/{number}" for number in range(partitions))):
            (place / name).mkdir(parents=True)
        self._place = place
        self._partitions = partitions
        checkpoint = SparkCheckpoint(str(place))
        options = EpochOptions(make_source_durable=checkpoint.make_durable if durable else None)
        self._driver = LocalDriver(CountingSink(1), str(place), options=options)
        self._epochs = count()
        self._write("metadata", 50)

    def seconds(self) -> float:
        """Run an epoch, and return its seconds from before BEGIN to COMPLETED."""
        epoch = next(self._epochs)
        for number in range(self._partitions):
            self._write(f"state/0/{number}/{epoch}.delta", 1000)
        if epoch:
            self._write(f"commits/{epoch - 1}", 30)
        self._write(f"sources/0/{epoch}", 80)
        self._write(f"offsets/{epoch}", 1200)
        start = time.perf_counter()
        self._driver.run_epoch(epoch, [[("0", 1)]])
        return time.perf_counter() - start

    def _write(self, name: str, size: int) -> None:
        sums = b"crc\0" + CHUNK.to_bytes(4, "big") + bytes(4 * -(-size // CHUNK))
        for path, content in ((self._place / name, bytes(size)), (self._place / checksum_of(name), sums)):
            aside = path.with_name(f".{path.name}.tmp")
            aside.write_bytes(content)
            aside.rename(path)


def durability(pairs: int, scratch: Scratch) -> Iterator[str]:
    """Run epochs with and without syncing the checkpoint, alternately, and describe the difference."""
    for partitions in (0, 200):
        queries = [Planned(Path(scratch.new()), partitions, durable=durable) for durable in (False, True)]
        found = [[query.seconds() for query in queries] for _ in range(pairs + 1)][1:]
        without, durable = (statistics.median(figures) for figures in zip(*found, strict=True))
        more = statistics.median(after - before for before, after in found)
        state = f"{partitions} partitions of state" if partitions else "no state"
        yield f"{state}: {without * 1000:.1f} ms an epoch without, {durable * 1000:.1f} ms with, {more * 1000:.1f} more"


def main(arguments: Sequence[str]) -> None:
    """Measure, and print the growth of the stores if requested."""
    rest = list(arguments)
    epochs = int(rest[rest.index("--epochs") + 1]) if "--epochs" in rest else 0
    if epochs:
        del rest[rest.index("--epochs") : rest.index("--epochs") + 2]
    if is_checkpoint := "--checkpoint" in rest:
        rest.remove("--checkpoint")
    with Scratch() as scratch:
        given = parse(__doc__.splitlines()[0], DEFAULT, rest)
        for line in durability(given.pairs, scratch) if is_checkpoint else ():
            sys.stdout.write(f"{line}{os.linesep}")
        finish(measure(given, scratch))
        for name, sizes in growth(epochs, scratch).items() if epochs else ():
            for epoch, size in sizes.items():
                sys.stdout.write(f"{name}: {size:,} bytes after {epoch:,} epochs{os.linesep}")


if __name__ == "__main__":
    main(sys.argv[1:])
