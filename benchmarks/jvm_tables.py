"""IcebergSink and DeltaSink beside the streaming sinks of Iceberg and Delta in the JVM: rows/s, CPU time, bytes.

    python -m benchmarks.jvm_tables --rows 4000000 --pairs 5

Needs the environment of `nox -s peers_bench`. Each job is a stream of one epoch into a new table on the same disk.
Spark's sinks sync nothing.
"""

from __future__ import annotations

import shutil
import sys
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from urllib.parse import urlsplit

import pyarrow.parquet as pq
from pyiceberg.catalog import load_catalog
from pyspark.sql import DataFrame, SparkSession

from benchmarks.common import Given, known, machine, throughput
from benchmarks.inputs import mixed_stream
from benchmarks.jvm_session import LIMITS, Catalog, limited, main_beside
from benchmarks.results import Figure, Line, Result, now
from outfall.delta import DeltaSink
from outfall.iceberg import IcebergSink
from outfall.testing.benchmark import EmptySink, Run, in_turn, ratios
from outfall.testing.benchmark.apis import PythonApi
from outfall.testing.benchmark.rows import SCHEMA, Scratch
from outfall.testing.benchmark.runs import Job
from outfall.testing.benchmark.session import cpu_seconds

DEFAULT = Given(rows=4_000_000, pairs=5)
EMPTY = "empty sink"
OWN = {"IcebergSink": "Spark's Iceberg sink", "DeltaSink": "Spark's Delta sink"}
PEER = "the format's own"
WANTED = {PEER: "≥ 1 by CPU, ≤ 1.05 by bytes", EMPTY: "no target"}
WARM_UP = 2

Write = Callable[[DataFrame, str, Path], None]
"""Writes a stream into a new table of this name, or in this directory."""


def measure(spark: SparkSession, given: Given, scratch: Scratch, catalog: Catalog) -> Result:
    """Run all sinks alternately."""
    started = now()
    lake = Lake(spark, catalog)
    df = mixed_stream(spark, given.rows, scratch)
    jobs: dict[str, Job] = {}
    for suffix, limit in LIMITS.items():
        jobs[f"{EMPTY}{suffix}"] = limited(spark, limit, lambda: _run(df, EmptySink(), scratch.new()))
        jobs[f"IcebergSink{suffix}"] = limited(spark, limit, lambda: lake.iceberg(df, lake.outfalls, scratch.new()))
        jobs[f"DeltaSink{suffix}"] = limited(spark, limit, lambda: lake.delta(df, _outfalls_delta, scratch.new()))
    jobs[OWN["IcebergSink"]] = lambda: lake.iceberg(df, lake.sparks, scratch.new())
    jobs[OWN["DeltaSink"]] = lambda: lake.delta(df, _sparks_delta, scratch.new())

    def between() -> None:
        lake.check(given.rows)
        scratch.clear()

    runs = in_turn(jobs, given.rows, pairs=given.pairs, cpu_seconds=cpu_seconds, between=between, warm_up=WARM_UP)
    peers = {
        f"{sink}{suffix}": {PEER: own, EMPTY: f"{EMPTY}{suffix}"} for sink, own in OWN.items() for suffix in LIMITS
    }
    group = f"{given.rows:,} mixed rows, streamed"
    return Result(
        benchmark="jvm_tables",
        title="Tables, beside the formats' own engines",
        unit="rows/s; bytes",
        wanted=WANTED,
        lines=[
            *(throughput(group, job, runs, peers.get(job, {})) for job in jobs),
            *(_size(job, runs, peers.get(job, {})) for job in jobs if not job.startswith(EMPTY)),
        ],
        pairs=given.pairs,
        started=started,
        machine=machine(),
    )


class Lake:
    """The tables of this benchmark, and the rows of the last one."""

    def __init__(self, spark: SparkSession, catalog: Catalog) -> None:
        """Create the namespace."""
        self._spark = spark
        self._properties = catalog
        self._catalog = load_catalog("ice", **catalog)
        self._catalog.create_namespace_if_not_exists("bench")
        self._rows: int | None = None

    def iceberg(self, df: DataFrame, write: Write, checkpoint: Path) -> int:
        """Write a new Iceberg table, and return the bytes of its data files."""
        name = f"bench.t{uuid.uuid4().hex}"
        write(df, name, checkpoint)
        table = self._catalog.load_table(name)
        directory = Path(urlsplit(table.location()).path)
        size = self._looked_at(directory)
        self._catalog.drop_table(name)
        shutil.rmtree(directory)
        return size

    def outfalls(self, df: DataFrame, table: str, checkpoint: Path) -> None:
        sink = IcebergSink(table, catalog="ice", catalog_options=self._properties, create_table="if_missing")
        _run(df, sink, checkpoint)

    def sparks(self, df: DataFrame, table: str, checkpoint: Path) -> None:
        self._spark.sql(f"CREATE TABLE ice.{table} ({SCHEMA}) USING iceberg")
        writer = df.writeStream.format("iceberg").option("checkpointLocation", str(checkpoint))
        writer.trigger(availableNow=True).toTable(f"ice.{table}").awaitTermination()

    def delta(self, df: DataFrame, write: Write, directory: Path) -> int:
        """Write a new Delta table, and return the bytes of its data files."""
        table = directory / "table"
        write(df, str(table), directory / "checkpoint")
        return self._looked_at(table)

    def _looked_at(self, directory: Path) -> int:
        """Count the rows of a table's data files, and return their bytes."""
        files = list(directory.rglob("part-*.parquet")) or list(directory.rglob("*.parquet"))
        self._rows = sum(pq.read_metadata(path).num_rows for path in files)
        return sum(path.stat().st_size for path in files)

    def check(self, rows: int) -> None:
        """Exit if the last table's data files have other rows."""
        found, self._rows = self._rows, None
        if found not in (None, rows):
            sys.exit(f"{found} rows are in the table, of {rows}")


def _outfalls_delta(df: DataFrame, table: str, checkpoint: Path) -> None:
    _run(df, DeltaSink(table, create_table="if_missing"), checkpoint)


def _sparks_delta(df: DataFrame, table: str, checkpoint: Path) -> None:
    writer = df.writeStream.format("delta").option("checkpointLocation", str(checkpoint))
    writer.trigger(availableNow=True).start(table).awaitTermination()


def _run(df: DataFrame, sink: object, checkpoint: Path) -> None:
    PythonApi().stream(df, sink, checkpoint).trigger(availableNow=True).start().awaitTermination()


def _size(job: str, runs: Mapping[str, list[Run]], peers: Mapping[str, str]) -> Line:
    """Return the line of a job's bytes per row."""

    def sizes(job: str) -> list[float]:
        return [run.bytes / run.rows for run in runs[job] if run.bytes is not None]

    found = {PEER: Figure.of(ratios(sizes(job), sizes(peers[PEER])))} if PEER in peers else {}
    return Line(
        group="bytes of a row in data files",
        label=job,
        figure=known(Figure.of(sizes(job))),
        ratios={name: figure for name, figure in found.items() if figure is not None},
    )


if __name__ == "__main__":
    main_beside(__doc__.splitlines()[0], DEFAULT, measure)
