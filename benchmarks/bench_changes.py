"""Changes of keys into PostgreSQL, in Kafka's order: `PostgresSink`, and `INSERT … ON CONFLICT` in `foreachBatch`.

    python -m benchmarks.bench_changes --rows 1000000 --pairs 3

A stream of ten epochs has changes of a tenth as many keys: one of ten removes its row, the others write it. The peers
are what users write: psycopg's pipelines in the tasks, or Spark's JDBC writer into a staging table. They compare the
sequence with that of the stored row, too, but keep none of removed rows, and have no transaction per epoch. The JDBC
driver is Debian's package `libpostgresql-jdbc-java`. Without it, its peers are skipped with a message. The server of
this benchmark runs with `fsync` off, to compare work and not disks.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
from psycopg.conninfo import conninfo_to_dict
from pyspark.sql import DataFrame, Row, SparkSession

from benchmarks import jdbc
from benchmarks.common import Given, machine, main, throughput
from benchmarks.results import Result, now
from outfall.delivery_order import PER_GENERATION, PER_OFFSET
from outfall.postgres import PostgresSink
from outfall.testing.benchmark import in_turn
from outfall.testing.benchmark.apis import PythonApi
from outfall.testing.benchmark.rows import Scratch
from outfall.testing.benchmark.runs import Job
from outfall.testing.benchmark.session import cpu_seconds
from tests.integration.support.postgres import own_server

DEFAULT = Given(rows=1_000_000, pairs=3)
EPOCHS, PARTITIONS, PER_KEY = 10, 2, 10
SINK = "PostgresSink, changes"
PIPELINE, JDBC, REWRITING = "psycopg's pipelines", "Spark JDBC, then ON CONFLICT", "the same, rewriting"
WANTED = {PIPELINE: "≥ 1.5", JDBC: "≥ 1.5", REWRITING: "≥ 1.5"}
SCHEMA = "id LONG, name STRING, amount DOUBLE, made TIMESTAMP, op STRING, seq DECIMAL(38,0)"

_COLUMNS = "id bigint, name text, amount double precision, made timestamptz"
_UPSERT = """
    ON CONFLICT (id) DO UPDATE SET name = EXCLUDED.name, amount = EXCLUDED.amount, made = EXCLUDED.made,
        seq = EXCLUDED.seq
    WHERE t.seq < EXCLUDED.seq"""
_ONE = f"INSERT INTO t (id, name, amount, made, seq) VALUES (%s, %s, %s, %s, %s){_UPSERT}"
_ALL = f"""
    CREATE TEMPORARY TABLE latest ON COMMIT DROP AS SELECT DISTINCT ON (id) * FROM s ORDER BY id, seq DESC;
    DELETE FROM t USING latest l WHERE t.id = l.id AND l.op = 'd' AND t.seq < l.seq;
    INSERT INTO t (id, name, amount, made, seq) SELECT id, name, amount, made, seq FROM latest WHERE op <> 'd'{_UPSERT};
    TRUNCATE s"""
_DIGEST = "SELECT count(*), coalesce(sum(hashtext(ROW(id, name, amount, made, seq)::text)), 0) FROM t"


@dataclass(frozen=True)
class Base:
    """A database with a table `t`, and a staging table `s` for peers that stage by themselves."""

    dsn: str

    def make(self) -> None:
        self.run(f"CREATE TABLE t ({_COLUMNS}, seq numeric(38), PRIMARY KEY (id))")
        self.run(f"CREATE UNLOGGED TABLE s ({_COLUMNS}, op text, seq numeric(38))")

    def reset(self) -> None:
        """Empty the tables, and forget earlier runs of the sink."""
        for statement in ("TRUNCATE t, s", "DROP SCHEMA IF EXISTS outfall CASCADE", "VACUUM ANALYZE t", "CHECKPOINT"):
            self.run(statement)

    def digest(self) -> tuple[Any, ...]:
        """Return what tells the content of `t` from another one."""
        with psycopg.connect(self.dsn) as connection:
            return connection.execute(_DIGEST).fetchone() or ()

    def run(self, statement: str) -> None:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            connection.execute(statement.encode())


def measure(spark: SparkSession, given: Given, scratch: Scratch) -> Result:
    """Apply the same changes with each job."""
    started = now()
    source = scratch.rows / "changes"
    write_changes(source, given.rows)
    df = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", PARTITIONS).parquet(str(source))
    with own_server() as server:
        base = Base(server.new_database())
        base.make()
        base.reset()
        jobs = _jobs(base, df, scratch)
        ends: set[tuple[Any, ...]] = set()

        def between() -> None:
            ends.add(base.digest())
            if len(ends) > 1:
                sys.exit(f"the tables differ: {ends}")
            scratch.clear()
            base.reset()

        runs = in_turn(jobs, given.rows, pairs=given.pairs, cpu_seconds=cpu_seconds, between=between)
    group = f"{given.rows:,} changes of {_keys(given.rows):,} keys in {EPOCHS} epochs"
    peers = {job: job for job in jobs if job != SINK}
    return Result(
        benchmark="changes",
        title="Changes into PostgreSQL",
        unit="changes/s",
        wanted=WANTED,
        lines=[throughput(group, job, runs, peers if job == SINK else {}) for job in jobs],
        pairs=given.pairs,
        started=started,
        machine=machine(),
    )


def write_changes(directory: Path, rows: int) -> None:
    """Write the changes of a topic with two partitions: a file for each epoch and partition."""
    directory.mkdir(parents=True)
    drawn = np.random.default_rng(54)
    ids = drawn.integers(0, _keys(rows), rows)
    removed = drawn.integers(0, 10, rows) == 0
    partitions = ids % PARTITIONS
    for epoch, numbers in enumerate(np.array_split(np.arange(rows), EPOCHS)):
        for partition in range(PARTITIONS):
            chosen = numbers[partitions[numbers] == partition]
            pq.write_table(
                _changes(ids[chosen], removed[chosen], chosen, partition),
                directory / f"{epoch:03d}-{partition}.parquet",
            )


def _changes(ids: Any, removed: Any, offsets: Any, partition: int) -> pa.Table:
    empty = pa.array(removed)
    sequences = [Decimal(PER_GENERATION + int(offset) * PER_OFFSET + partition) for offset in offsets]
    values = {
        "name": pa.array([f"name {offset}" for offset in offsets]),
        "amount": pa.array(offsets * 1.5),
        "made": pa.array(1_700_000_000_000_000 + offsets * 1_000_003, pa.timestamp("us", "UTC")),
    }
    return pa.table(
        {
            "id": pa.array(ids),
            **{name: pa.compute.if_else(empty, None, column) for name, column in values.items()},
            "op": pa.array(np.where(removed, "d", "u")),
            "seq": pa.array(sequences, pa.decimal128(38, 0)),
        }
    )


def _keys(rows: int) -> int:
    return rows // PER_KEY


def _jobs(base: Base, df: DataFrame, scratch: Scratch) -> dict[str, Job]:
    jobs: dict[str, Job] = {
        SINK: partial(_ours, base, df, scratch),
        PIPELINE: partial(_in_batches, partial(_by_pipelines, base.dsn), df, scratch),
    }
    if jdbc.POSTGRES.is_in(df.sparkSession):
        jobs[JDBC] = partial(_in_batches, partial(_by_jdbc, base, {}), df, scratch)
        rewriting = {"reWriteBatchedInserts": "true"}
        jobs[REWRITING] = partial(_in_batches, partial(_by_jdbc, base, rewriting), df, scratch)
    return jobs


def _ours(base: Base, df: DataFrame, scratch: Scratch) -> None:
    sink = PostgresSink(
        base.dsn,
        "t",
        write_mode="changes",
        key_columns="id",
        operation_column="op",
        sequence_column="seq",
        sequence_kind="kafka",
    )
    PythonApi().stream(df, sink, scratch.new()).trigger(availableNow=True).start().awaitTermination()


def _in_batches(apply: Callable[[DataFrame], None], df: DataFrame, scratch: Scratch) -> None:
    writer = df.writeStream.foreachBatch(lambda batch, number: apply(batch))
    writer.option("checkpointLocation", str(scratch.new())).trigger(availableNow=True).start().awaitTermination()


def _by_pipelines(dsn: str, batch: DataFrame) -> None:
    def applied(rows: Iterable[Row]) -> None:
        # A task has all changes of its keys, in their order.
        newest = {row.id: row for row in rows}
        written = [(row.id, row.name, row.amount, row.made, row.seq) for row in newest.values() if row.op != "d"]
        removed = [(row.id, row.seq) for row in newest.values() if row.op == "d"]
        with psycopg.connect(dsn) as connection, connection.pipeline(), connection.cursor() as cursor:
            cursor.executemany("DELETE FROM t WHERE id = %s AND seq < %s", removed)
            cursor.executemany(_ONE, written)

    batch.foreachPartition(applied)


def _by_jdbc(base: Base, properties: Mapping[str, str], batch: DataFrame) -> None:
    given = conninfo_to_dict(base.dsn)
    url = f"jdbc:postgresql://{given['host']}:{given['port']}/{given['dbname']}"
    known = {"user": str(given["user"]), "driver": "org.postgresql.Driver"}
    batch.write.jdbc(url, "s", mode="append", properties=known | dict(properties))
    with psycopg.connect(base.dsn) as connection:
        connection.execute(_ALL.encode())


if __name__ == "__main__":
    main(__doc__.splitlines()[0], DEFAULT, measure, jdbc.jars(jdbc.POSTGRES))
