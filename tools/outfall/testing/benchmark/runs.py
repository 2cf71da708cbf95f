"""Several jobs, run in turn and measured."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

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
