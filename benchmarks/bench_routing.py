"""Cost of routing rows by key into sixteen growing files, compared with unrouted rows in whole files.

python -m benchmarks.bench_routing --rows 3000000 --pairs 5
"""

from __future__ import annotations

from pyspark.sql import SparkSession

from benchmarks.common import Given, machine, main, spark_write, throughput
from benchmarks.inputs import mixed
from benchmarks.results import Result, now
from outfall.file import FileSink
from outfall.testing.benchmark import in_turn
from outfall.testing.benchmark.apis import PythonApi
from outfall.testing.benchmark.rows import Scratch
from outfall.testing.benchmark.runs import Job
from outfall.testing.benchmark.session import cpu_seconds

DEFAULT = Given(rows=3_000_000, pairs=5)
PARTS = 16
UNROUTED, ROUTED, SPARK = "unrouted", f"routed to {PARTS} parts", f"Spark json, repartitioned to {PARTS}"


def measure(spark: SparkSession, given: Given, scratch: Scratch) -> Result:
    """Write JSON lines with three jobs."""
    started = now()
    df = mixed(spark, given.rows, scratch)
    rows = df.count()

    def unrouted() -> int | None:
        return PythonApi().write(df, FileSink(scratch.new()), scratch.new())

    def routed() -> int | None:
        return PythonApi("name").write(df, FileSink(scratch.new(), parts=PARTS), scratch.new())

    def by_spark() -> None:
        spark_write(df.repartition(PARTS, "name"), "json", scratch.new())

    jobs: dict[str, Job] = {UNROUTED: unrouted, ROUTED: routed, SPARK: by_spark}
    runs = in_turn(jobs, rows, pairs=given.pairs, cpu_seconds=cpu_seconds, between=scratch.clear)
    group = f"{rows:,} mixed rows as jsonl"
    return Result(
        benchmark="routing",
        title="Routing by key",
        unit="rows/s",
        wanted={UNROUTED: "≥ 0.625 (at most 1.6 times the duration)"},
        lines=[
            throughput(group, UNROUTED, runs, {}),
            throughput(group, ROUTED, runs, {UNROUTED: UNROUTED, "Spark": SPARK}),
            throughput(group, SPARK, runs, {}),
        ],
        pairs=given.pairs,
        started=started,
        machine=machine(),
    )


if __name__ == "__main__":
    main(__doc__.splitlines()[0], DEFAULT, measure)
