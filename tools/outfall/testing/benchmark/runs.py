"""Jobs that are run in turn and measured, the sink that does nothing among them, and what their runs say together."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import pyarrow as pa

from outfall.sinks import DynamicSink, StatelessSinkPartition


class EmptyPartition(StatelessSinkPartition[Any]):
    """Drops what it is given."""

    def write_batch(self, values: list[Any]) -> None:
        pass

    def write_record_batch(self, batch: pa.RecordBatch) -> None:
        """Drop a batch. No row is made."""

    def close(self) -> None:
        pass


class EmptySink(DynamicSink[Any]):
    """Takes Arrow batches and drops them: what is left is Spark, its Python workers and the epoch protocol.

    Item type: anything. Guarantee: none, there is no target.
    """

    def build(self, step_id: str, worker_index: int, worker_count: int) -> EmptyPartition:
        return EmptyPartition()


@dataclass(frozen=True)
class Spread:
    """A median and how far the figures lie apart."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, figures: Sequence[float]) -> Self:
        """Describe at least one figure."""
        return cls(statistics.median(figures), min(figures), max(figures))


def spread(figures: Sequence[float | None]) -> Spread | None:
    """Return the median, the least and the greatest of the figures that are known; `None` if none is."""
    known = [figure for figure in figures if figure is not None]
    return Spread.of(known) if known else None


def ratios(figures: Sequence[float | None], against: Sequence[float | None]) -> list[float]:
    """Divide each figure by that of the same pair: what slowed the machine down then slowed both."""
    return [a / b for a, b in zip(figures, against, strict=True) if a is not None and b]


Job = Callable[[], int | None]
"""Does the work once, and returns how many bytes it wrote if it knows."""


@dataclass(frozen=True)
class Run:
    """One run of a job."""

    rows: int
    seconds: float
    cpu_seconds: float
    """Of all processes together, so that it may exceed `seconds`."""
    bytes: int | None = None
    """Written; `None` where nobody counted."""

    @property
    def rows_per_second(self) -> float:
        return self.rows / self.seconds

    @property
    def rows_per_cpu_second(self) -> float | None:
        """The steadier figure on a shared machine; `None` for a run too short for the system to count."""
        return self.rows / self.cpu_seconds if self.cpu_seconds > 0 else None

    @property
    def bytes_per_second(self) -> float | None:
        return None if self.bytes is None else self.bytes / self.seconds


def in_turn(
    jobs: Mapping[str, Job],
    rows: int,
    *,
    pairs: int,
    cpu_seconds: Callable[[], float],
    between: Callable[[], None] = lambda: None,
    warm_up: int = 1,
) -> dict[str, list[Run]]:
    """Run every job `pairs` times, one after the other, so that the n-th runs of all of them belong together.

    Every second round goes backwards: what drifts, or what one job leaves behind for the next, hits each in turn.

    Args:
        jobs: by name.
        rows: how many each of them writes.
        pairs: how often each is measured, at least 1.
        cpu_seconds: returns the CPU seconds that were used so far.
        between: called after each run, not measured.
        warm_up: rounds before that, not measured.
    """
    if pairs < 1:
        raise ValueError(f"pairs is {pairs}, and must be at least 1")
    runs: dict[str, list[Run]] = {name: [] for name in jobs}
    for number, name in rounds(jobs, warm_up + pairs):
        run = measured(jobs[name], rows, cpu_seconds)
        between()
        if number >= warm_up:
            runs[name].append(run)
    return runs


def rounds(names: Iterable[str], count: int) -> Iterator[tuple[int, str]]:
    """Name everything `count` times with the number of the round, every second round backwards."""
    forwards = list(names)
    for number in range(count):
        yield from ((number, name) for name in (forwards if number % 2 == 0 else reversed(forwards)))


def measured(job: Job, rows: int, cpu_seconds: Callable[[], float]) -> Run:
    """Run a job once."""
    cpu, start = cpu_seconds(), time.perf_counter()
    written = job()
    seconds = time.perf_counter() - start
    return Run(rows, seconds, cpu_seconds() - cpu, written)
