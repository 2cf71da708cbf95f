"""Rows per second of `FileSink`, of the empty sink through the same API, and of Spark's own writers.

python -m benchmarks.bench_file --rows 3000000 --pairs 5
"""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import DataFrame, SparkSession

from benchmarks.common import Given, machine, main, spark_write, throughput
from benchmarks.inputs import flights, mixed
from benchmarks.results import Line, Result, now
from outfall.file import FileSink
from outfall.recovery import history
from outfall.spark.version_check import OLDEST_FOR_OPTIONS, pyspark_version
from outfall.testing.benchmark import EmptySink, in_turn
from outfall.testing.benchmark.apis import Api, FormatApi, PythonApi
from outfall.testing.benchmark.rows import Scratch
from outfall.testing.benchmark.runs import Job
from outfall.testing.benchmark.session import cpu_seconds

DEFAULT = Given(rows=3_000_000, pairs=5)
FORMATS = {"jsonl": "json", "csv": "csv", "parquet": "parquet"}
"""Format name of Outfall → format name of Spark."""
BY_SPARK = ("parquet", "orc")
"""Formats that Spark's writer encodes for `FileSink(writer="spark")`."""

EMPTY = "empty sink"
PYTHON_API, FORMAT_API = "Python API", 'format("outfall")'


def measure(spark: SparkSession, given: Given, scratch: Scratch) -> Result:
    """Write whole files through each API."""
    started = now()
    # A flight has 19 columns and costs four times as much as a mixed row.
    inputs = {"mixed rows": mixed(spark, given.rows, scratch), "flights": flights(spark, given.rows // 3, scratch)}
    lines = [line for name, df in inputs.items() for line in _lines(name, df, given.pairs, scratch)]
    return Result(
        benchmark="file",
        title="Whole files",
        unit="rows/s",
        wanted={EMPTY: "≥ 0.95", "Spark": "≥ 0.75 for JSON"},
        lines=lines,
        pairs=given.pairs,
        started=started,
        machine=machine(),
    )


def _lines(name: str, df: DataFrame, pairs: int, scratch: Scratch) -> list[Line]:
    rows = df.count()
    jobs = _jobs(df, scratch)
    runs = in_turn(jobs, rows, pairs=pairs, cpu_seconds=cpu_seconds, between=scratch.clear)
    group = f"{rows:,} {name}"
    lines = []
    for api in (PYTHON_API, FORMAT_API):
        if _job(EMPTY, api) in jobs:
            lines.append(throughput(group, _job(EMPTY, api), runs, {}))
            for ours, theirs in FORMATS.items():
                peers = {EMPTY: _job(EMPTY, api), "Spark": f"Spark {theirs}"}
                lines.append(throughput(group, _job(ours, api), runs, peers))
    for kind in BY_SPARK:
        lines.append(throughput(group, _by_spark(kind), runs, {"Spark": f"Spark {kind}"}))
    return lines + [throughput(group, job, runs, {}) for job in jobs if job.startswith("Spark ")]


def _jobs(df: DataFrame, scratch: Scratch) -> dict[str, Job]:
    jobs: dict[str, Job] = {_job(EMPTY, PYTHON_API): _empty(df, PythonApi(), scratch)}
    for ours in FORMATS:
        jobs[_job(ours, PYTHON_API)] = _python_api(df, ours, scratch)
    for kind in BY_SPARK:
        jobs[_by_spark(kind)] = _python_api(df, kind, scratch, writer="spark")
    for kind in (*FORMATS.values(), "orc"):
        jobs[f"Spark {kind}"] = _spark(df, kind, scratch)
    if pyspark_version() >= OLDEST_FOR_OPTIONS:
        jobs[_job(EMPTY, FORMAT_API)] = _empty(df, FormatApi(), scratch)
        jobs |= {_job(ours, FORMAT_API): _format_api(df, ours, scratch) for ours in FORMATS}
    return jobs


def _job(name: str, api: str) -> str:
    return f"{name}, {api}"


def _by_spark(name: str) -> str:
    return f'{name}, writer="spark"'


def _empty(df: DataFrame, api: Api, scratch: Scratch) -> Job:
    return lambda: api.write(df, EmptySink(), scratch.new())


def _python_api(df: DataFrame, kind: str, scratch: Scratch, writer: str = "outfall") -> Job:
    make: Callable[..., FileSink] = FileSink
    return lambda: PythonApi().write(df, make(scratch.new(), format=kind, writer=writer), scratch.new())


def _format_api(df: DataFrame, kind: str, scratch: Scratch) -> Job:
    def job() -> int:
        log = str(scratch.new())
        options = {"sink": "file", "path": str(scratch.new()), "format": kind, "epoch": "0", "recovery": log}
        # A separate option: Spark's own `format` is the name of the data source.
        df.write.format("outfall").options(**options).mode("append").save()
        return history(log)[-1].bytes

    return job


def _spark(df: DataFrame, kind: str, scratch: Scratch) -> Job:
    def job() -> None:
        spark_write(df, kind, scratch.new())

    return job


if __name__ == "__main__":
    main(__doc__.splitlines()[0], DEFAULT, measure)
