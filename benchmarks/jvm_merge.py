"""Upserts of DeltaSink beside MERGE in the JVM, in foreachBatch, as users write it: changes/s and CPU time.

    python -m benchmarks.jvm_merge --rows 10000000 --pairs 3

Needs the environment of `nox -s peers_bench`. A table of so many rows in 20 partitions gets a hundredth of them as
changes, in a stream of one epoch: nine tenths update a row, the rest insert one. The changes are in all partitions, or
in one. Each engine has a table of its own. The JVM's commits have `txnAppId` and `txnVersion`, which users must set
themselves, and sync nothing.
"""

from __future__ import annotations

import itertools
import sys
import uuid
from collections.abc import Callable
from functools import partial
from pathlib import Path

from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from benchmarks.common import Given, machine, throughput
from benchmarks.jvm_session import Catalog, main_beside
from benchmarks.results import Result, now
from outfall.delta import DeltaSink
from outfall.testing.benchmark import in_turn
from outfall.testing.benchmark.apis import PythonApi
from outfall.testing.benchmark.rows import Scratch
from outfall.testing.benchmark.runs import Job
from outfall.testing.benchmark.session import cpu_seconds

DEFAULT = Given(rows=10_000_000, pairs=3)
PARTITIONS, SHARE = 20, 100
PEER = "MERGE in foreachBatch"
OURS = "DeltaSink, upsert"
WANTED = {PEER: "≥ 1"}
SCHEMA = "p INT, id LONG, seq LONG, name STRING, v DOUBLE, w LONG"
WARM_UP = 1

Upsert = Callable[[DataFrame, str, Path], None]
"""Upserts the rows of a stream into a table, with a checkpoint."""


def measure(spark: SparkSession, given: Given, scratch: Scratch, catalog: Catalog) -> Result:
    """Run both engines alternately, for changes in all partitions and in one."""
    started = now()
    tables = {engine: str(scratch.rows / f"table-{number}") for number, engine in enumerate((OURS, PEER))}
    for table in tables.values():
        _rows(spark, given.rows, 0).repartition(PARTITIONS, "p").write.format("delta").partitionBy("p").save(table)
    changes = given.rows // SHARE
    lines = []
    for spread, partitions in (("all partitions", PARTITIONS), ("one partition", 1)):
        source = scratch.rows / f"changes-{partitions}"
        _changes(spark, given.rows, changes, partitions).coalesce(2).write.parquet(str(source))
        df = spark.readStream.schema(SCHEMA).parquet(str(source))
        ways: dict[str, Upsert] = {OURS: _ours, PEER: partial(_merge, itertools.count())}
        jobs: dict[str, Job] = {engine: partial(_run, way, df, tables[engine], scratch) for engine, way in ways.items()}
        runs = in_turn(
            jobs, changes, pairs=given.pairs, cpu_seconds=cpu_seconds, between=scratch.clear, warm_up=WARM_UP
        )
        group = f"{changes:,} changes into {given.rows:,} rows, {spread}"
        lines += [throughput(group, job, runs, {PEER: PEER} if job == OURS else {}) for job in jobs]
    _check(tables)
    return Result(
        benchmark="jvm_merge",
        title="Upserts into Delta tables, beside MERGE",
        unit="changes/s",
        wanted=WANTED,
        lines=lines,
        pairs=given.pairs,
        started=started,
        machine=machine(),
    )


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


def _run(way: Upsert, df: DataFrame, table: str, scratch: Scratch) -> None:
    way(df, table, scratch.new())


def _ours(df: DataFrame, table: str, checkpoint: Path) -> None:
    sink = DeltaSink(table, write_mode="upsert", key_columns=["p", "id"], order_column="seq", on_existing="resume")
    PythonApi().stream(df, sink, checkpoint).trigger(availableNow=True).start().awaitTermination()


def _merge(numbers: itertools.count[int], df: DataFrame, table: str, checkpoint: Path) -> None:
    application = uuid.uuid4().hex

    def merge(batch: DataFrame, number: int) -> None:
        session = batch.sparkSession
        session.conf.set("spark.databricks.delta.write.txnAppId", application)
        session.conf.set("spark.databricks.delta.write.txnVersion", str(next(numbers)))
        batch.createOrReplaceTempView("changes")
        session.sql(
            f"MERGE INTO delta.`{table}` t USING changes s ON t.p = s.p AND t.id = s.id"
            " WHEN MATCHED AND s.seq >= t.seq THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
        )

    writer = df.writeStream.foreachBatch(merge).option("checkpointLocation", str(checkpoint))
    writer.trigger(availableNow=True).start().awaitTermination()


def _check(tables: dict[str, str]) -> None:
    """Exit if the tables differ in number of rows."""
    counts = {engine: DeltaTable(table).count() for engine, table in tables.items()}
    if len(set(counts.values())) > 1:
        sys.exit(f"the tables differ: {counts}")


if __name__ == "__main__":
    main_beside(__doc__.splitlines()[0], DEFAULT, measure)
