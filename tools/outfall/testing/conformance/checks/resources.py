"""Closing, and what grows."""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import pyarrow as pa

from outfall.testing.conformance.faults import ConformanceError, NotApplicableError, check, when
from outfall.testing.conformance.spying import CLOSING, Probe, probing
from outfall.testing.conformance.stepping import failing_at
from outfall.testing.conformance.trial import Trial
from outfall.testing.conformance.trials import Trials

BATCH = 500
SETTLED = 3.0
"""Seconds until closed resources must be released; a thread may need a moment to end."""
LEAK = 33_000
"""Allowed growth of a driver in ten epochs of sixty rows, in bytes; less than the rows of a few epochs."""


class _Closing(Probe):
    """Compares the visible rows before and after each close."""

    def __init__(self, trial: Trial) -> None:
        self._trial = trial

    def around(self, method: str, args: tuple[Any, ...], call: Callable[[], Any]) -> Any:
        if method not in CLOSING:
            return super().around(method, args, call)
        before = self._trial.found()
        result = super().around(method, args, call)
        if published := self._trial.found() - before:
            raise _PublishedInCloseError(published.total())
        return result


class _PublishedInCloseError(BaseException):
    """Not an `Exception`, because the engine only logs errors of `close()` after another error."""


@check
def close_publishes_nothing(trials: Trials) -> None:
    """`close()` publishes data. It also runs after errors, and that data is in no record."""
    for step in ("never", "task: after write", "task: before flush", "task: after prepare_commit"):
        trial = trials.new()
        trial.run_epochs(1)
        try:
            with probing(_Closing(trial)), failing_at(step):
                trial.run(trial.driver(), trial.bring(1))
        except _PublishedInCloseError as error:
            raise ConformanceError(
                f"close() made {error.args[0]} rows visible",
                place=f"a task ended at {step!r}",
                do="only release resources in close(): write in write_batch or flush, publish in Committer.commit",
            ) from None
        trial.finish(1)


class _ClosingTwice(Probe):
    def around(self, method: str, args: tuple[Any, ...], call: Callable[[], Any]) -> Any:
        if method not in CLOSING:
            return super().around(method, args, call)
        call()
        try:
            return super().around(method, args, call)
        except Exception as error:
            raise ConformanceError(
                f"the second call of close() failed: {type(error).__name__}: {error}",
                do="make close() do nothing if there is nothing to release",
            ) from error


@check
def close_after_errors_and_twice(trials: Trials) -> None:
    """`close()` fails after an error or on a second call, or disturbs the next attempt."""
    for step in ("never", "sink: before write_batch", "task: after write", "task: after snapshot"):
        trial = trials.new()
        trial.run_epochs(1)
        with when(f"a task ended at {step!r}, and everything was closed twice"):
            with probing(_ClosingTwice()), failing_at(step):
                trial.run(trial.driver(), trial.bring(1))
            trial.finish(1)


@check
def files_and_threads_stay_flat(trials: Trials) -> None:
    """Open files, connections or threads accumulate over epochs or after failed attempts."""
    trials.needs(sys.platform == "linux", "open files are counted in /proc/self/fd")
    trial = trials.new()
    driver = trial.run_epochs(3)
    before = _open()
    for _ in range(5):
        trial.run_epochs(1, driver)
    _same(before, "five epochs")
    for _ in range(5):
        with failing_at("task: after write"):
            trial.run(trial.driver(), trial.bring(trial.epoch))
    _same(before, "five failed attempts")


def _open() -> tuple[int, int]:
    gc.collect()
    return len(os.listdir("/proc/self/fd")), threading.active_count()


def _same(before: tuple[int, int], after: str) -> None:
    deadline = time.monotonic() + SETTLED
    while more := _more(before, _open()):
        if time.monotonic() >= deadline:
            raise ConformanceError(f"{more} after {after}", do="release them in close()")
        time.sleep(0.02)


def _more(before: tuple[int, int], now: tuple[int, int]) -> str:
    grown = zip(("open files", "threads"), before, now, strict=True)
    return ", ".join(f"{count - then} more {what}" for what, then, count in grown if count > then)


@check
def memory_over_epochs(trials: Trials) -> None:
    """Memory grows with the number of epochs."""
    trials.needs(trials.outlives_this_process(), "the target is in this process, and grows with its rows")
    trial = trials.new(durable_log=True)
    driver = trial.driver()
    values = trial.values(trial.bring(0, rows=60))

    def run(epochs: range) -> int:
        for epoch in epochs:
            driver.run_epoch(epoch, values)
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        sizes = [run(range(start, start + 10)) for start in range(0, 50, 10)]
    finally:
        tracemalloc.stop()
    # What is kept of each epoch grows every time. A connection or a cache grows when it is made.
    grown = min(after - before for before, after in pairwise(sizes))
    if grown > LEAK:
        raise ConformanceError(
            f"each ten epochs of sixty rows left {grown:,} bytes behind", do="keep no data of an epoch on"
            " classes, modules or the sink"
        )  # fmt: skip


@check
def memory_of_a_task(trials: Trials) -> None:
    """A task's memory grows with its rows beyond the declared limit."""
    limit = trials.harness.memory_limit
    if limit is None:
        raise NotApplicableError("the test sets no memory_limit, so a task may buffer its rows")
    trials.needs(trials.outlives_this_process(), "the target is in this process, and grows with its rows")
    trial = trials.new()
    begun = trial.begin(trial.driver(), trial.bring_numbers(0, [()]))
    part = begun.driver.sink.list_parts()[0] if trial.fixed else None
    batch = [trials.harness.row(number) for number in range(BATCH)]
    batches = 4 * limit // _size(batch) + 1
    watch = _Peak()
    begun.tasks = [_Endless(part, batch, batches, watch)]  # type: ignore[list-item]
    tracemalloc.start()
    try:
        watch.start()
        begun.run_task(0)
        watch.look()
    finally:
        tracemalloc.stop()
    if watch.peak > limit:
        raise ConformanceError(
            f"a task held {watch.peak:,} bytes while it wrote {batches * BATCH:,} rows; its limit is {limit:,}",
            do="write out the buffer when it reaches a size",
        )


class _Peak:
    """Return the peak memory since the start, including Arrow's."""

    peak = 0

    def start(self) -> None:
        gc.collect()
        tracemalloc.reset_peak()
        self._base = tracemalloc.get_traced_memory()[0] + pa.total_allocated_bytes()

    def look(self) -> None:
        self.peak = max(self.peak, tracemalloc.get_traced_memory()[1] + pa.total_allocated_bytes() - self._base)


class _Endless:
    """Yield the same batch repeatedly."""

    def __init__(self, part: str | None, batch: list[Any], times: int, watch: _Peak) -> None:
        self._item = (part, batch)
        self._times = times
        self._watch = watch

    def __iter__(self) -> Iterator[tuple[str | None, list[Any]]]:
        for _ in range(self._times):
            self._watch.look()
            yield self._item


def _size(batch: list[Any]) -> int:
    """Return the size of a batch as Python values in bytes."""
    return sum(len(repr(row)) for row in batch)
