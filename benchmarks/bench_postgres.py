"""Throughput into PostgreSQL: `PostgresSink`, Spark's JDBC writer, and COPY without any guarantee.

    python -m benchmarks.bench_postgres --rows 300000 --pairs 3

Starts its own server with `fsync` off, to compare work and not disks. The JDBC driver is Debian's package
`libpostgresql-jdbc-java`. Without it, its peers are skipped with a message.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import psycopg
import pyarrow as pa
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict
from pyspark.sql import DataFrame, SparkSession

from benchmarks import jdbc
from benchmarks.common import Given, machine, main, throughput
from benchmarks.inputs import flights, mixed
from benchmarks.results import Line, Result, now
from outfall.postgres import PostgresSink
from outfall.postgres.catalogue.columns import TableColumn, read_columns
from outfall.postgres.connection.database import PostgresConnection
from outfall.postgres.copy.stream import CopyEncoder
from outfall.postgres.names import TableName
from outfall.testing.benchmark import in_turn
from outfall.testing.benchmark.apis import PythonApi
from outfall.testing.benchmark.rows import Scratch
from outfall.testing.benchmark.runs import Job
from outfall.testing.benchmark.session import cpu_seconds
from tests.integration.support.postgres import own_server

DEFAULT = Given(rows=3_000_000, pairs=3)
TYPES = {
    "bigint": "bigint",
    "int": "integer",
    "double": "double precision",
    "string": "text",
    "timestamp": "timestamptz",
    "boolean": "boolean",
}
"""Spark type → PostgreSQL type."""

PARTS, OFFSETS = "PostgresSink, parts", "PostgresSink, the source's offsets"
SINK, BARE, NO_LEDGER = "PostgresSink", "bare COPY", "COPY, INSERT … SELECT"
JDBC, REWRITING = "Spark JDBC", "Spark JDBC, rewriting"
STAGED, STAGED_REWRITING = "Spark JDBC and ON CONFLICT", "Spark JDBC, rewriting, and ON CONFLICT"
WANTED = {
    JDBC: "≥ 5",
    REWRITING: "≥ 2",
    BARE: "≥ 0.8",
    NO_LEDGER: "≥ 0.95 (the rest is ledger and log)",
    STAGED: "≥ 3",
    STAGED_REWRITING: "no target",
}


@dataclass(frozen=True)
class Base:
    """A database with a table `t`, and a staging table `s` for peers that stage by themselves.

    Args:
        dsn: the database.
        df: the rows.
        key: the table's primary key.
        half: whether the table begins with every second key, to be updated.
        routed_by: the routing column.
    """

    dsn: str
    df: DataFrame
    key: str | None = None
    half: bool = False
    routed_by: str = "id"

    @property
    def columns(self) -> sql.Composed:
        return sql.SQL(", ").join(map(sql.Identifier, self.df.columns))

    def make(self) -> None:
        """Create the tables."""
        fields = [sql.SQL("{} {}").format(sql.Identifier(name), sql.SQL(TYPES[kind])) for name, kind in self.df.dtypes]
        key = [sql.SQL("PRIMARY KEY ({})").format(sql.Identifier(self.key))] if self.key else []
        self.run(sql.SQL("CREATE TABLE t ({})").format(sql.SQL(", ").join([*fields, *key])))
        self.run(sql.SQL("CREATE UNLOGGED TABLE s ({})").format(sql.SQL(", ").join(fields)))

    def reset(self, rows: int) -> None:
        """Empty the tables, or fill them with every second of the given number of keys."""
        self.run(sql.SQL("TRUNCATE t, s"))
        if self.half and self.key:
            fill = sql.SQL("INSERT INTO t ({}) SELECT generate_series(0, {}, 2)")
            self.run(fill.format(sql.Identifier(self.key), sql.Literal(rows - 1)))
        self.run(sql.SQL("VACUUM ANALYZE t"))
        self.run(sql.SQL("CHECKPOINT"))

    def move(self) -> None:
        """Move staged rows into the table in one transaction."""
        conflict = sql.Composed([])
        if self.key:
            pairs = [sql.SQL("{0} = EXCLUDED.{0}").format(sql.Identifier(name)) for name in self.df.columns]
            conflict = sql.SQL(" ON CONFLICT ({}) DO UPDATE SET {}").format(
                sql.Identifier(self.key), sql.SQL(", ").join(pairs)
            )
        self.run(sql.SQL("INSERT INTO t ({0}) SELECT {0} FROM s").format(self.columns) + conflict)
        self.run(sql.SQL("TRUNCATE s"))

    def run(self, statement: sql.SQL | sql.Composed) -> None:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            connection.execute(statement)

    def count(self) -> int:
        with psycopg.connect(self.dsn) as connection:
            (found,) = connection.execute("SELECT count(*) FROM t").fetchone() or (0,)
        return int(found)


def measure(spark: SparkSession, given: Given, scratch: Scratch) -> Result:
    """Append rows of both kinds, append mixed rows to a table with a key, and upsert mixed rows."""
    started = now()
    inputs = {"mixed rows": mixed(spark, given.rows, scratch), "flights": flights(spark, given.rows // 3, scratch)}
    lines = []
    with own_server() as server:
        for name, df in inputs.items():
            base = Base(server.new_database(), df, routed_by="id" if "id" in df.columns else "flight")
            lines += _lines(f"{name}, appended", base, _appends(base, scratch), given.pairs, scratch)
        base = Base(server.new_database(), inputs["mixed rows"], key="id")
        lines += _lines("mixed rows, appended under a key", base, _keyed_appends(base, scratch), given.pairs, scratch)
        base = Base(server.new_database(), inputs["mixed rows"], key="id", half=True)
        lines += _lines("mixed rows, upserted", base, _upserts(base, scratch), given.pairs, scratch)
    return Result(
        benchmark="postgres",
        title="PostgreSQL",
        unit="rows/s",
        wanted=WANTED,
        lines=lines,
        pairs=given.pairs,
        started=started,
        machine=machine(),
        notes=overheads(lines),
    )


def overheads(lines: Iterable[Line]) -> list[str]:
    """Describe the cost of ledger and recovery log, relative to the same work without them."""
    found = [(line, line.ratios[NO_LEDGER]) for line in lines if line.label == SINK and NO_LEDGER in line.ratios]
    return [
        f"{line.group}: ledger and recovery log cost {100 / ratio.median - 100:.0f} %"
        f" ({100 / ratio.high - 100:.0f} to {100 / ratio.low - 100:.0f} %)."
        for line, ratio in found
    ]


def _lines(name: str, base: Base, jobs: Mapping[str, Job], pairs: int, scratch: Scratch) -> list[Line]:
    rows = base.df.count()

    def between() -> None:
        if base.count() != rows:
            sys.exit(f"the table has {base.count()} of {rows} rows")
        scratch.clear()
        base.reset(rows)

    base.make()
    base.reset(rows)
    runs = in_turn(jobs, rows, pairs=pairs, cpu_seconds=cpu_seconds, between=between)
    peers = {job: job for job in jobs if job not in (SINK, PARTS, OFFSETS)}
    group = f"{rows:,} {name}"
    return [throughput(group, job, runs, {} if job in peers else peers) for job in jobs]


def _appends(base: Base, scratch: Scratch) -> dict[str, Job]:
    jobs: dict[str, Job] = {
        SINK: _sink(base, PostgresSink(base.dsn, "t"), scratch),
        PARTS: _parts(base, scratch),
        BARE: copying(base, "t"),
        NO_LEDGER: _staged(base, copying(base, "s")),
    }
    if jdbc.POSTGRES.is_in(base.df.sparkSession):
        jobs |= {JDBC: by_jdbc(base, "t"), REWRITING: by_jdbc(base, "t", rewriting=True)}
    return jobs


def _keyed_appends(base: Base, scratch: Scratch) -> dict[str, Job]:
    """Source offsets require an index, so all jobs run with the index."""
    by_offsets = PostgresSink(base.dsn, "t", offset_columns=base.key or "")
    return {
        SINK: _sink(base, PostgresSink(base.dsn, "t"), scratch),
        OFFSETS: _sink(base, by_offsets, scratch),
        PARTS: _parts(base, scratch),
        BARE: copying(base, "t"),
    }


def _parts(base: Base, scratch: Scratch) -> Job:
    """One part per task, without part columns in the table."""
    sink = PostgresSink(base.dsn, "t", parts=2, offset_keys="ledger")
    return lambda: PythonApi(key=base.routed_by).write(base.df, sink, scratch.new())


def _upserts(base: Base, scratch: Scratch) -> dict[str, Job]:
    sink = PostgresSink(base.dsn, "t", write_mode="upsert", key_columns=base.key or "", on_existing="resume")
    jobs: dict[str, Job] = {SINK: _sink(base, sink, scratch), NO_LEDGER: _staged(base, copying(base, "s"))}
    if jdbc.POSTGRES.is_in(base.df.sparkSession):
        jobs[STAGED] = _staged(base, by_jdbc(base, "s"))
        jobs[STAGED_REWRITING] = _staged(base, by_jdbc(base, "s", rewriting=True))
    return jobs


def _sink(base: Base, sink: PostgresSink, scratch: Scratch) -> Job:
    return lambda: PythonApi().write(base.df, sink, scratch.new())


def by_jdbc(base: Base, table: str, *, rewriting: bool = False) -> Job:
    given = conninfo_to_dict(base.dsn)
    url = f"jdbc:postgresql://{given['host']}:{given['port']}/{given['dbname']}"
    properties = {"user": str(given["user"]), "driver": "org.postgresql.Driver"}
    if rewriting:
        properties["reWriteBatchedInserts"] = "true"

    def job() -> None:
        base.df.write.jdbc(url, table, mode="append", properties=properties)

    return job


def copying(base: Base, table: str) -> Job:
    dsn = base.dsn

    def copied(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with PostgresConnection.connect(dsn) as connection:
            columns = {column.name: column for column in read_columns(connection, TableName(None, table))}
            with connection.cursor() as cursor:
                rows = _send(cursor, table, columns, batches)
        yield pa.RecordBatch.from_pydict({"rows": pa.array([rows], pa.int64())})

    def job() -> None:
        base.df.mapInArrow(copied, "rows long").collect()

    return job


def _send(
    cursor: psycopg.Cursor, table: str, columns: Mapping[str, TableColumn], batches: Iterable[pa.RecordBatch]
) -> int:
    batches = iter(batches)
    first = next(batches, None)
    if first is None:
        return 0
    names = first.schema.names
    encoder = CopyEncoder(first.schema, [columns[name] for name in names])
    command = sql.SQL("COPY {} ({}) FROM STDIN (FORMAT {})").format(
        sql.Identifier(table), sql.SQL(", ").join(map(sql.Identifier, names)), sql.SQL(encoder.format)
    )
    rows = int(first.num_rows)
    with cursor.copy(command) as copy:
        copy.write(encoder.header())
        copy.write(encoder.encode(first))
        for batch in batches:
            copy.write(encoder.encode(batch))
            rows += batch.num_rows
        copy.write(encoder.trailer())
    return rows


def _staged(base: Base, stage: Job) -> Job:
    def job() -> None:
        stage()
        base.move()

    return job


if __name__ == "__main__":
    main(__doc__.splitlines()[0], DEFAULT, measure, jdbc.jars(jdbc.POSTGRES))
