"""Runs jobs alternately and measures them; the empty sink; statistics of runs."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import pyarrow as pa

from outfall.sinks import DynamicSink, StatelessSinkPartition


class EmptyPartition(StatelessSinkPartition[Any]):
    """Discards its input."""

    def write_batch(self, values: list[Any]) -> None:
        pass

    def write_record_batch(self, batch: pa.RecordBatch) -> None:
        """Discard a batch without creating rows."""

    def close(self) -> None:
        pass


class EmptySink(DynamicSink[Any]):
    """Discards Arrow batches, so that only Spark, its Python workers and the epoch protocol are measured.

    Item type: any. Guarantee: none, because there is no target.
    """

    def build(self, step_id: str, worker_index: int, worker_count: int) -> EmptyPartition:
        return EmptyPartition()


@dataclass(frozen=True)
class Spread:
    """A median with the range of the figures."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, figures: Sequence[float]) -> Self:
        """Summarize one or more figures."""
        return cls(statistics.median(figures), min(figures), max(figures))


def spread(figures: Sequence[float | None]) -> Spread | None:
    """Return median, minimum and maximum of the known figures; `None` if there are none."""
    known = [figure for figure in figures if figure is not None]
    return Spread.of(known) if known else None


def ratios(figures: Sequence[float | None], against: Sequence[float | None]) -> list[float]:
    """Divide each figure by the figure of the same pair, because other load affects both."""
    return [a / b for a, b in zip(figures, against, strict=True) if a is not None and b]


Job = Callable[[], int | None]
"""Runs the job once, and returns the written bytes if they are known."""


@dataclass(frozen=True)
class Run:
    """One run of a job."""

    rows: int
    seconds: float
    cpu_seconds: float
    """CPU seconds of all processes, which can exceed `seconds`."""
    bytes: int | None = None
    """Written bytes; `None` if unknown."""

    @property
    def rows_per_second(self) -> float:
        return self.rows / self.seconds

    @property
    def rows_per_cpu_second(self) -> float | None:
        """The more stable figure on a shared machine; `None` if the run was too short to measure."""
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
    """Run every job `pairs` times in rounds, so that the n-th runs of all jobs form a group.

    Every second round runs in reverse order, so that drift and effects of the previous job affect all jobs. Each job
    writes `rows` rows. Before, `warm_up` rounds run unmeasured, and `between` is called after each run, also
    unmeasured. `cpu_seconds` returns the CPU seconds used so far.
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
    """Yield round number and name for `count` rounds, every second round in reverse order."""
    forwards = list(names)
    for number in range(count):
        yield from ((number, name) for name in (forwards if number % 2 == 0 else reversed(forwards)))


def measured(job: Job, rows: int, cpu_seconds: Callable[[], float]) -> Run:
    """Run a job once."""
    cpu, start = cpu_seconds(), time.perf_counter()
    written = job()
    seconds = time.perf_counter() - start
    return Run(rows, seconds, cpu_seconds() - cpu, written)
