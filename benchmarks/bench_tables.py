"""Throughput into Iceberg and Delta tables, FileSink and collecting; cost of early and late commits.

    python -m benchmarks.bench_tables --rows 2000000 --pairs 3

The catalog is SQLite. Tables are on the same disk as the files of FileSink.
"""

from __future__ import annotations

import statistics
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import write_deltalake
from pyiceberg.catalog import Catalog, load_catalog
from pyspark.sql import DataFrame, SparkSession

from benchmarks.common import Given, machine, main, seconds, throughput
from benchmarks.inputs import mixed
from benchmarks.results import Line, Result, now
from outfall.delta import DeltaSink
from outfall.file import FileSink
from outfall.iceberg import IcebergSink
from outfall.testing import LocalDriver
from outfall.testing.benchmark import EmptySink, in_turn
from outfall.testing.benchmark.apis import PythonApi
from outfall.testing.benchmark.rows import Scratch, mixed_rows, seconds_per_epoch, small_epochs
from outfall.testing.benchmark.runs import Job, rounds
from outfall.testing.benchmark.session import cpu_seconds
from outfall.trace_points import listen

DEFAULT = Given(rows=2_000_000, pairs=3)
COMMITS, PART = 500, 100
"""Epochs of one query, and the number of epochs at its start and end that are averaged."""
EPOCH_ROWS, EPOCHS = 100, 12

FILES, EMPTY = "FileSink", "empty sink"
ICEBERG, DELTA = "IcebergSink", "DeltaSink"
ROWS, ARROW = "collect", "toArrow"
CALLS = {ICEBERG: "append of pyiceberg", DELTA: "write_deltalake"}
FIRST = f"first {PART}"
WANTED = {FILES: "≥ 0.9", ROWS: "≥ 3", ARROW: "≥ 3", FIRST: "≤ 2", EMPTY: "no target"}

Make = Callable[[Path], Any]
Collect = Callable[[], pa.Table]


def measure(spark: SparkSession, given: Given, scratch: Scratch) -> Result:
    """Write the rows with all jobs alternately, then run small epochs with Spark, then many without."""
    started = now()
    lines = list(_throughput(spark, given, scratch))
    epochs, notes = _epochs(spark, given.pairs, scratch)
    return Result(
        benchmark="tables",
        title="Tables",
        unit="rows/s; s",
        wanted=WANTED,
        lines=[*lines, *epochs, *_growth(scratch)],
        pairs=given.pairs,
        started=started,
        machine=machine(),
        notes=notes,
    )


def catalog_in(directory: Path) -> dict[str, str]:
    return {"type": "sql", "uri": f"sqlite:///{directory}/catalog.db", "warehouse": f"file://{directory}/warehouse"}


def into_iceberg(directory: Path, **options: Any) -> IcebergSink:
    """Return the sink of a table that does not exist yet."""
    catalog = catalog_in(directory)
    load_catalog(None, **catalog).create_namespace("bench")
    return IcebergSink("bench.t", catalog_options=catalog, create_table="if_missing", **options)


def into_delta(directory: Path) -> DeltaSink:
    return DeltaSink(str(directory / "table"), create_table="if_missing")


SINKS: dict[str, Make] = {ICEBERG: into_iceberg, DELTA: into_delta}


# --- many rows


def _throughput(spark: SparkSession, given: Given, scratch: Scratch) -> Iterator[Line]:
    """Compare with collecting as Arrow, and as rows with fewer rows: Spark stops workers that idle for too long."""
    df = mixed(spark, given.rows, scratch)
    yield from _against(df, given, scratch, ARROW, df.toArrow, [EMPTY, FILES])
    few = mixed(spark, given.rows // 10, scratch)
    yield from _against(few, given, scratch, ROWS, lambda: _collected(few), [])


def _collected(df: DataFrame) -> pa.Table:
    return pa.Table.from_pylist([row.asDict() for row in df.collect()])


def _against(
    df: DataFrame, given: Given, scratch: Scratch, way: str, collect: Collect, others: list[str]
) -> Iterator[Line]:
    """Compare the sinks with other sinks, and with `foreachBatch` code that collects the rows on the driver."""
    collected = {name: f"{way}, then {call}" for name, call in CALLS.items()}
    jobs: dict[str, Job] = {
        EMPTY: lambda: _write(df, EmptySink(), scratch),
        FILES: lambda: _write(df, FileSink(scratch.new(), format="parquet"), scratch),
        ICEBERG: lambda: _write(df, into_iceberg(scratch.new()), scratch),
        DELTA: lambda: _write(df, into_delta(scratch.new()), scratch),
        collected[ICEBERG]: lambda: append(collect, scratch),
        collected[DELTA]: lambda: write_deltalake(scratch.new() / "table", collect()),
    }
    jobs = {name: job for name, job in jobs.items() if name not in (EMPTY, FILES) or name in others}
    rows = df.count()
    runs = in_turn(jobs, rows, pairs=given.pairs, cpu_seconds=cpu_seconds, between=scratch.clear)
    peers = {name: {other: other for other in others} | {way: collected[name]} for name in SINKS}
    return (throughput(f"{rows:,} mixed rows", job, runs, peers.get(job, {})) for job in jobs)


def _write(df: DataFrame, sink: Any, scratch: Scratch) -> int | None:
    return PythonApi().write(df, sink, scratch.new())


def append(collect: Collect, scratch: Scratch) -> None:
    catalog: Catalog = load_catalog(None, **catalog_in(scratch.new()))
    catalog.create_namespace("bench")
    rows = collect()
    catalog.create_table("bench.t", schema=rows.schema).append(rows)


# --- small epochs


def _epochs(spark: SparkSession, pairs: int, scratch: Scratch) -> tuple[list[Line], list[str]]:
    df = small_epochs(spark, scratch.rows / "epochs", epochs=EPOCHS, rows=EPOCH_ROWS)
    sinks: dict[str, Make] = {EMPTY: lambda directory: EmptySink()} | SINKS
    figures: dict[str, list[float]] = {name: [] for name in sinks}
    shares: dict[str, list[float]] = {name: [] for name in SINKS}
    for number, name in rounds(sinks, 1 + pairs):
        with commits_timed() as commits:
            figure = seconds_per_epoch(PythonApi().stream(df, sinks[name](scratch.new()), scratch.new()))
        scratch.clear()
        if number > 0:  # the first warms up
            figures[name].append(figure)
            if name in shares:
                shares[name].append(statistics.median(commits[1:]) / figure)
    group = f"epochs of {EPOCH_ROWS} rows, {EPOCHS} a run"
    lines = [seconds(group, name, figures, {} if name == EMPTY else {EMPTY: EMPTY}) for name in sinks]
    notes = [
        f"{name}: {statistics.median(found):.0%} of a small epoch is its commit." for name, found in shares.items()
    ]
    return lines, notes


@contextmanager
def commits_timed() -> Iterator[list[float]]:
    """Record the seconds of each commit in this process, until the epoch counts as completed."""
    found: list[float] = []
    began = 0.0

    def note(step: str) -> None:
        nonlocal began
        if step == "before commit":
            began = time.perf_counter()
        elif step == "before COMPLETED" and began:
            found.append(time.perf_counter() - began)
            began = 0.0

    stop = listen(note)
    try:
        yield found
    finally:
        stop()


# --- many epochs


def _growth(scratch: Scratch) -> Iterator[Line]:
    """Run one long query per sink. Iceberg's snapshots expire, because each remaining snapshot makes commits slower."""
    queries: dict[str, Make] = {
        f"{ICEBERG}, max_snapshot_age": lambda directory: into_iceberg(directory, max_snapshot_age="1 second"),
        DELTA: into_delta,
    }
    rows = mixed_rows(0, EPOCH_ROWS).to_pylist()
    for name, make in queries.items():
        with commits_timed() as commits:
            run_epochs(make(scratch.new()), scratch.new(), rows)
        scratch.clear()
        bounds = [0, PART, COMMITS - PART, COMMITS]
        first, _, last = (commits[start:end] for start, end in pairwise(bounds))
        parts = {FIRST: sorted(first), f"last {PART}": sorted(last)}
        group = f"a commit in {COMMITS} epochs, {name}"
        yield from (seconds(group, part, parts, {} if part == FIRST else {FIRST: FIRST}) for part in parts)


def run_epochs(sink: Any, log: Path, rows: list[dict[str, Any]]) -> None:
    sink.check_schema(pa.Table.from_pylist(rows).schema)
    driver = LocalDriver(sink, str(log), query_id=uuid.uuid4().hex)
    for epoch in range(COMMITS):
        driver.run_epoch(epoch, [rows])


if __name__ == "__main__":
    main(__doc__.splitlines()[0], DEFAULT, measure)
