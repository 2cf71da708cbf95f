"""Throughput into MariaDB or MySQL: `MySQLSink`, Spark's JDBC writer, and LOAD DATA without any guarantee.

    python -m benchmarks.bench_mysql --rows 300000 --pairs 3
    python -m tests.peers.serve mysql-9.7 python -m benchmarks.bench_mysql --rows 300000 --pairs 3

Starts its own server, MariaDB unless the environment names another. The JDBC driver is MySQL's, from Maven's local
repository: `mvn dependency:get -Dartifact=com.mysql:mysql-connector-j:9.7.0`. Without it, its peers are skipped with a
message.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as csv
import pymysql
from pyspark.sql import DataFrame, SparkSession

from benchmarks import jdbc
from benchmarks.common import Given, machine, main, throughput
from benchmarks.inputs import flights, mixed
from benchmarks.results import Line, Result, now
from outfall.mysql import MySQLSink
from outfall.testing.benchmark import in_turn
from outfall.testing.benchmark.apis import PythonApi
from outfall.testing.benchmark.rows import Scratch
from outfall.testing.benchmark.runs import Job
from outfall.testing.benchmark.session import cpu_seconds
from tests.integration.support.mysql import MySQLServer, own_server

DEFAULT = Given(rows=1_000_000, pairs=3)
SINK, PARTS, BARE = "MySQLSink", "MySQLSink, parts", "bare LOAD DATA"
JDBC, REWRITING = "Spark JDBC", "Spark JDBC, rewriting"
WANTED = {
    REWRITING: "≥ 1 (appended), ≥ 1.5 (by parts, or ≥ 0.9 of a bare LOAD DATA)",
    BARE: "≥ 0.6",
    JDBC: "no target",
}
TYPES = {
    "bigint": "BIGINT", "int": "INT", "double": "DOUBLE", "string": "VARCHAR(200)", "timestamp": "DATETIME(6)",
    "boolean": "BOOLEAN",
}  # fmt: skip
"""Spark type → MariaDB type."""


@dataclass(frozen=True)
class Base:
    """A database with a table `t`.

    Args:
        server: the server.
        database: the database on it.
        df: the rows.
        key: the table's primary key, by which the sink upserts; its peers append.
        half: whether the table begins with every second key, to be updated. Then only the sink writes.
        routed_by: the routing column.
    """

    server: MySQLServer
    database: str
    df: DataFrame
    key: str | None = None
    half: bool = False
    routed_by: str = "id"

    @property
    def place(self) -> str:
        return f"{self.server.host}:{self.server.port}/{self.database}"

    def make(self) -> None:
        """Create the table."""
        fields = [f"`{name}` {TYPES[kind]}" for name, kind in self.df.dtypes]
        keys = [f"PRIMARY KEY (`{self.key}`)"] if self.key else []
        self.run(f"CREATE TABLE t ({', '.join([*fields, *keys])})")

    def reset(self, rows: int) -> None:
        """Empty the table, or fill it with every second of the given number of keys."""
        self.run("TRUNCATE TABLE t")
        if self.half:
            for first in range(0, rows, 100_000):
                keys = range(first, min(first + 100_000, rows), 2)
                self.run(f"INSERT INTO t (`{self.key}`) VALUES " + ",".join(f"({key})" for key in keys))

    def run(self, statement: str) -> list[tuple[str, ...]]:
        return self.server.run(statement, self.database)

    def count(self) -> int:
        return int(self.run("SELECT count(*) FROM t")[0][0])


def measure(spark: SparkSession, given: Given, scratch: Scratch) -> Result:
    """Append rows of both kinds, and upsert mixed rows beside their append by JDBC."""
    started = now()
    inputs = {"mixed rows": mixed(spark, given.rows, scratch), "flights": flights(spark, given.rows // 3, scratch)}
    lines = []
    # The size of the log has another name in each server.
    log = {"loose_innodb_log_file_size": "512M", "loose_innodb_redo_log_capacity": "512M"}
    with own_server(innodb_buffer_pool_size="1G", **log) as server:
        title = server_name(server.client)
        for name, df in inputs.items():
            routed_by = "id" if "id" in df.columns else "flight"
            base = Base(server.client, server.client.new_database(), df, routed_by=routed_by)
            lines += _lines(f"{name}, appended", base, given.pairs, scratch)
        for name, half in (("upserted; others append", False), ("upserted, half of them updates", True)):
            base = Base(server.client, server.client.new_database(), inputs["mixed rows"], "id", half)
            lines += _lines(f"mixed rows, {name}", base, given.pairs, scratch)
    return Result(
        benchmark=title.lower().replace(" ", "-"), title=title, unit="rows/s", wanted=WANTED, lines=lines,
        pairs=given.pairs, started=started, machine=machine(),
    )  # fmt: skip


def server_name(server: MySQLServer) -> str:
    """Return MariaDB, or MySQL with its release, so that the results of one do not replace those of the other."""
    version = server.run("SELECT VERSION()")[0][0]
    return "MariaDB" if server.is_mariadb else f"MySQL {'.'.join(version.split('.')[:2])}"


def _lines(name: str, base: Base, pairs: int, scratch: Scratch) -> list[Line]:
    rows = base.df.count()
    base.make()
    base.reset(rows)
    jobs = _jobs(base, scratch)

    def between() -> None:
        if base.count() != rows:
            sys.exit(f"the table has {base.count()} of {rows} rows")
        scratch.clear()
        base.reset(rows)

    runs = in_turn(jobs, rows, pairs=pairs, cpu_seconds=cpu_seconds, between=between)
    peers = {job: job for job in jobs if job not in (SINK, PARTS)}
    return [throughput(f"{rows:,} {name}", job, runs, {} if job in peers else peers) for job in jobs]


def _jobs(base: Base, scratch: Scratch) -> Mapping[str, Job]:
    mode: dict[str, Any] = (
        {"write_mode": "upsert", "key_columns": base.key, "on_existing": "resume"} if base.key else {}
    )
    sink = MySQLSink(f"mysql://{base.server.user}@{base.place}", "t", **mode)

    def by_sink() -> None:
        PythonApi().write(base.df, sink, scratch.new())

    if base.half:
        return {SINK: by_sink}
    jobs: dict[str, Job] = {SINK: by_sink, BARE: loading(base)}
    if not base.key:
        jobs[PARTS] = _parts(base, scratch)
    if jdbc.MYSQL.is_in(base.df.sparkSession):
        jobs |= {JDBC: by_jdbc(base), REWRITING: by_jdbc(base, rewriteBatchedStatements="true")}
    return jobs


def _parts(base: Base, scratch: Scratch) -> Job:
    """One part per task, without part columns in the table."""
    sink = MySQLSink(f"mysql://{base.server.user}@{base.place}", "t", parts=2, offset_keys="ledger")
    return lambda: PythonApi(key=base.routed_by).write(base.df, sink, scratch.new())


def by_jdbc(base: Base, **options: str) -> Job:
    properties = {"user": base.server.user, "driver": "com.mysql.cj.jdbc.Driver", **options}
    return lambda: base.df.write.jdbc(f"jdbc:mysql://{base.place}", "t", mode="append", properties=properties)


def loading(base: Base) -> Job:
    host, port, user, database = base.server.host, base.server.port, base.server.user, base.database

    def loaded(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows, writer = 0, None
        with tempfile.NamedTemporaryFile(suffix=".tsv") as file:
            for batch in batches:
                texts = _texts(batch)
                if writer is None:
                    options = csv.WriteOptions(include_header=False, delimiter="\t", quoting_style="none")
                    writer = csv.CSVWriter(file.name, texts.schema, write_options=options)
                writer.write(texts)
                rows += batch.num_rows
            if writer is not None:
                writer.close()
                connection = pymysql.connect(host=host, port=port, user=user, database=database, local_infile=True)
                with connection, connection.cursor() as cursor:
                    cursor.execute("LOAD DATA LOCAL INFILE %s INTO TABLE t CHARACTER SET utf8mb4", (file.name,))
                    connection.commit()
        yield pa.RecordBatch.from_pydict({"rows": pa.array([rows], pa.int64())})

    def job() -> None:
        base.df.mapInArrow(loaded, "rows long").collect()

    return job


def _texts(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the values as LOAD DATA reads them."""
    columns = []
    for column in batch.columns:
        if pa.types.is_timestamp(column.type):
            column = column.cast(pa.timestamp("us"))
        elif pa.types.is_boolean(column.type):
            column = column.cast(pa.int8())
        columns.append(pc.fill_null(column.cast(pa.string()), "\\N") if column.null_count else column)
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


if __name__ == "__main__":
    main(__doc__.splitlines()[0], DEFAULT, measure, jdbc.jars(jdbc.MYSQL))
