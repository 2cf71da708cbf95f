"""Upserts of DeltaSink and IcebergSink beside MERGE in foreachBatch, as users write it: changes/s and CPU time.

    python -m benchmarks.jvm_merge --rows 10000000 --pairs 3

Needs the environment of `nox -s peers_bench`. A table of so many rows in 20 partitions gets a hundredth of them as
changes, in a stream of one epoch: nine tenths update a row, the rest insert one. The changes are in all partitions, or
in one. Each engine has a table of its own, which the JVM has written. MERGE copies on write, as is the default of both
formats, and syncs nothing. Its commits to Delta have `txnAppId` and `txnVersion`, which users must set themselves;
Iceberg has no such thing, and a batch that comes again is merged again.
"""

from __future__ import annotations

import itertools
import sys
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from benchmarks.common import Given, machine, throughput
from benchmarks.jvm_session import Catalog, main_beside
from benchmarks.results import Line, Result, now
from outfall.delta import DeltaSink
from outfall.iceberg import IcebergSink
from outfall.testing.benchmark import in_turn
from outfall.testing.benchmark.apis import PythonApi
from outfall.testing.benchmark.rows import Scratch
from outfall.testing.benchmark.runs import Job
from outfall.testing.benchmark.session import cpu_seconds

DEFAULT = Given(rows=10_000_000, pairs=3)
PARTITIONS, SHARE = 20, 100
PEER = "MERGE in foreachBatch"
WANTED = {PEER: "≥ 1"}
SCHEMA = "p INT, id LONG, seq LONG, name STRING, v DOUBLE, w LONG"
WARM_UP = 1
UPSERT: dict[str, Any] = {
    "write_mode": "upsert", "key_columns": ["p", "id"], "order_column": "seq", "on_existing": "resume",
}  # fmt: skip

Upsert = Callable[[DataFrame, Path], None]
"""Upserts the rows of a stream into a table, with a checkpoint."""


class Format(ABC):
    """A table format, with a table for each engine."""

    ours: str
    """What our sink is called in the results."""

    @abstractmethod
    def make(self, rows: DataFrame, number: int) -> None:
        """Make a table of these rows, partitioned by `p`."""

    @abstractmethod
    def name(self, number: int) -> str:
        """Return a table's name in Spark's SQL."""

    @abstractmethod
    def sink(self, number: int) -> DeltaSink | IcebergSink:
        """Return our sink for a table."""


class Delta(Format):
    """Tables in directories."""

    ours = "DeltaSink, upsert"

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def _path(self, number: int) -> str:
        return str(self._directory / f"table-{number}")

    def make(self, rows: DataFrame, number: int) -> None:
        rows.write.format("delta").partitionBy("p").save(self._path(number))

    def name(self, number: int) -> str:
        return f"delta.`{self._path(number)}`"

    def sink(self, number: int) -> DeltaSink:
        return DeltaSink(self._path(number), **UPSERT)


class Iceberg(Format):
    """Tables in the catalog `ice`, of which each gets a name of its own."""

    ours = "IcebergSink, upsert"

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._run = uuid.uuid4().hex[:8]

    def _short(self, number: int) -> str:
        return f"merged.t{self._run}_{number}"

    def make(self, rows: DataFrame, number: int) -> None:
        rows.sparkSession.sql("CREATE NAMESPACE IF NOT EXISTS ice.merged")
        rows.sortWithinPartitions("p").writeTo(self.name(number)).using("iceberg").partitionedBy("p").create()

    def name(self, number: int) -> str:
        return f"ice.{self._short(number)}"

    def sink(self, number: int) -> IcebergSink:
        return IcebergSink(self._short(number), catalog="ice", catalog_options=self._catalog, **UPSERT)


def measure(spark: SparkSession, given: Given, scratch: Scratch, catalog: Catalog) -> Result:
    """Measure both formats."""
    started = now()
    lines: list[Line] = []
    for kind in (Delta(scratch.rows), Iceberg(catalog)):
        lines += _beside(spark, given, scratch, kind)
    return Result(
        benchmark="jvm_merge",
        title="Upserts into Delta and Iceberg tables, beside MERGE",
        unit="changes/s",
        wanted=WANTED,
        lines=lines,
        pairs=given.pairs,
        started=started,
        machine=machine(),
    )


def _beside(spark: SparkSession, given: Given, scratch: Scratch, kind: Format) -> list[Line]:
    """Run both engines alternately, for changes in all partitions and in one."""
    for number in range(2):
        kind.make(_rows(spark, given.rows, 0).repartition(PARTITIONS, "p"), number)
    changes = given.rows // SHARE
    lines: list[Line] = []
    for spread, partitions in (("all partitions", PARTITIONS), ("one partition", 1)):
        source = scratch.rows / f"changes-{kind.ours.split(',')[0]}-{partitions}"
        _changes(spark, given.rows, changes, partitions).coalesce(2).write.parquet(str(source))
        df = spark.readStream.schema(SCHEMA).parquet(str(source))
        ways: dict[str, Upsert] = {
            kind.ours: partial(_ours, kind.sink(0)),
            PEER: partial(_merge, itertools.count(), kind.name(1)),
        }
        jobs: dict[str, Job] = {engine: partial(_run, way, df, scratch) for engine, way in ways.items()}
        runs = in_turn(
            jobs, changes, pairs=given.pairs, cpu_seconds=cpu_seconds, between=scratch.clear, warm_up=WARM_UP
        )
        group = f"{changes:,} changes into {given.rows:,} rows, {spread}"
        if isinstance(kind, Iceberg):
            group += ", Iceberg"
        lines += [throughput(group, job, runs, {PEER: PEER} if job == kind.ours else {}) for job in jobs]
    _check(spark, kind)
    return lines


def _rows(spark: SparkSession, rows: int, seq: int, step: int = 1) -> DataFrame:
    """Return rows of the table: every `step`-th of so many."""
    number = spark.range(0, rows, step)
    return number.select(
        (sf.col("id") * PARTITIONS / rows).cast("int").alias("p"), "id", sf.lit(seq).cast("long").alias("seq"),
        sf.concat(sf.lit("name-"), sf.col("id") % 1000).alias("name"), sf.rand(seq).alias("v"),
        sf.xxhash64("id").alias("w"),
    )  # fmt: skip


def _changes(spark: SparkSession, rows: int, changes: int, partitions: int) -> DataFrame:
    """Return changes in the first partitions: one in ten has an id that the table does not have."""
    found = _rows(spark, rows * partitions // PARTITIONS, 1, rows * partitions // PARTITIONS // changes)
    new = sf.col("id") % 10 == 0
    return found.withColumn("p", (sf.col("id") * PARTITIONS / rows).cast("int")).withColumn(
        "id", sf.when(new, sf.col("id") + rows).otherwise(sf.col("id"))
    )


def _run(way: Upsert, df: DataFrame, scratch: Scratch) -> None:
    way(df, scratch.new())


def _ours(sink: DeltaSink | IcebergSink, df: DataFrame, checkpoint: Path) -> None:
    PythonApi().stream(df, sink, checkpoint).trigger(availableNow=True).start().awaitTermination()


def _merge(numbers: itertools.count[int], table: str, df: DataFrame, checkpoint: Path) -> None:
    application = uuid.uuid4().hex

    def merge(batch: DataFrame, number: int) -> None:
        session = batch.sparkSession
        session.conf.set("spark.databricks.delta.write.txnAppId", application)
        session.conf.set("spark.databricks.delta.write.txnVersion", str(next(numbers)))
        batch.createOrReplaceTempView("changes")
        session.sql(
            f"MERGE INTO {table} t USING changes s ON t.p = s.p AND t.id = s.id"
            " WHEN MATCHED AND s.seq >= t.seq THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
        )

    writer = df.writeStream.foreachBatch(merge).option("checkpointLocation", str(checkpoint))
    writer.trigger(availableNow=True).start().awaitTermination()


def _check(spark: SparkSession, kind: Format) -> None:
    """Exit if the tables differ in number of rows."""
    counts = [spark.table(kind.name(number)).count() for number in range(2)]
    if len(set(counts)) > 1:
        sys.exit(f"the tables of {kind.ours} and {PEER} differ: {counts}")


if __name__ == "__main__":
    main_beside(__doc__.splitlines()[0], DEFAULT, measure)
