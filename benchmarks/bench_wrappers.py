"""Cost of wrappers: a fan-out to two empty sinks, and batches of 100,000 rows across epochs of 1,000.

    python -m benchmarks.bench_wrappers --rows 3000000 --pairs 5

The fan-out runs on Spark with the Python API. The batches run first, on the local engine, and are only printed.
"""

from __future__ import annotations

import time

import pyarrow as pa
from pyspark.sql import SparkSession

from benchmarks.common import Given, machine, main, seconds, throughput
from benchmarks.inputs import mixed
from benchmarks.results import Line, Result, now
from outfall.protocol.step import EpochOptions
from outfall.protocol.task import EpochTask, TaskIdentity
from outfall.sinks import DynamicSink
from outfall.testing import LocalDriver, MemoryRecoveryConfig
from outfall.testing.benchmark import EmptySink, in_turn
from outfall.testing.benchmark.apis import PythonApi
from outfall.testing.benchmark.rows import Scratch
from outfall.testing.benchmark.runs import EmptyPartition, Job
from outfall.testing.benchmark.session import cpu_seconds
from outfall.wrappers import BatchingSink, FanOutSink

DEFAULT = Given(rows=3_000_000, pairs=5)
BATCH = 100_000
EPOCH = 1_000
ONE, TWO = "empty sink", "fan-out to two"
PLAIN, HELD = f"epochs of {EPOCH:,}", f"batches of {BATCH:,}"


class SizesSink(DynamicSink[object]):
    """Records the number of rows in each call."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def build(self, step_id: str, worker_index: int, worker_count: int) -> EmptyPartition:
        return _SizesPartition(self.sizes)


class _SizesPartition(EmptyPartition):
    def __init__(self, sizes: list[int]) -> None:
        self._sizes = sizes

    def write_record_batch(self, batch: pa.RecordBatch) -> None:
        self._sizes.append(batch.num_rows)


def measure(spark: SparkSession, given: Given, scratch: Scratch) -> Result:
    """Write the same rows to one sink and to two; write small epochs unbatched and in large batches."""
    started = now()
    df = mixed(spark, given.rows, scratch)
    rows = df.count()
    api = PythonApi()
    jobs: dict[str, Job] = {
        ONE: lambda: api.write(df, EmptySink(), scratch.new()),
        TWO: lambda: api.write(df, FanOutSink([EmptySink(), EmptySink()]), scratch.new()),
    }
    runs = in_turn(jobs, rows, pairs=given.pairs, cpu_seconds=cpu_seconds, between=scratch.clear)
    lines = [
        throughput(f"{rows:,} mixed rows", ONE, runs, {}),
        throughput(f"{rows:,} mixed rows", TWO, runs, {ONE: ONE}),
    ]
    return Result(
        benchmark="wrappers",
        title="Wrappers",
        unit="rows/s",
        wanted={ONE: "≥ 0.77"},
        lines=lines,
        pairs=given.pairs,
        started=started,
        machine=machine(),
    )


def batches(pairs: int) -> tuple[list[Line], list[int]]:
    """Run small epochs unbatched and in batches, alternately: seconds per epoch, and batch sizes at the target."""
    figures: dict[str, list[float]] = {PLAIN: [], HELD: []}
    sizes: list[int] = []
    for _ in range(pairs):
        target = SizesSink()
        figures[PLAIN].append(_seconds_per_epoch(SizesSink()))
        figures[HELD].append(_seconds_per_epoch(BatchingSink(target, batch_size=BATCH, across_epochs=True)))
        sizes = target.sizes
    group = "one task, local engine"
    return [seconds(group, PLAIN, figures, {}), seconds(group, HELD, figures, {PLAIN: PLAIN})], sizes


def _seconds_per_epoch(sink: object) -> float:
    """The mean over the epochs of two batches."""
    recovery, options, count = MemoryRecoveryConfig(), EpochOptions(worker_count=1), 2 * BATCH // EPOCH
    batch = pa.RecordBatch.from_pydict({"id": list(range(EPOCH)), "text": [f"row {i}" for i in range(EPOCH)]})
    driver = LocalDriver(sink, recovery, options=options)
    start = time.perf_counter()
    for epoch in range(count):
        coordinator = driver.coordinator()
        ticket = coordinator.begin(epoch)
        coordinator.finish(ticket, [EpochTask(sink, ticket, TaskIdentity(epoch, 0, epoch)).run([(None, batch)])])
    return (time.perf_counter() - start) / count


if __name__ == "__main__":
    lines, sizes = batches(DEFAULT.pairs)
    for line in lines:
        print(f"{line.label}: {line.figure.median:.4f} s per epoch")
    print(f"Rows per call at the target: {sizes}")
    main(__doc__.splitlines()[0], DEFAULT, measure)
