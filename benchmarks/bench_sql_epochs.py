"""Seconds per epoch of a hundred rows into PostgreSQL and MariaDB, beside Spark's JDBC writer in `foreachBatch`.

    python -m benchmarks.bench_sql_epochs --rows 20000 --pairs 3

Starts its own servers; each is also measured behind a proxy that makes a round trip 2 ms longer. JDBC drivers: see
`bench_postgres` and `bench_mysql`. Without one, its peers are skipped with a message.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from psycopg.conninfo import conninfo_to_dict, make_conninfo
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from benchmarks import bench_mysql, bench_postgres, jdbc
from benchmarks.bench_epochs import EPOCH_ROWS, KEPT, percentile
from benchmarks.common import Given, machine, main, seconds
from benchmarks.delaying_proxy import delayed
from benchmarks.results import Line, Result, now
from outfall.mysql import MySQLSink
from outfall.postgres import PostgresSink
from outfall.testing.benchmark.apis import PythonApi
from outfall.testing.benchmark.rows import Scratch, epoch_reports, small_epochs
from outfall.testing.benchmark.runs import Job, rounds
from outfall.testing.benchmark.session import cpu_seconds
from tests.integration.support import mysql, postgres

DEFAULT = Given(rows=20_000, pairs=3)
PERCENTILES = (50, 90, 99)
PARTS = {"": "triggerExecution", ", addBatch": "addBatch"}
"""What is measured of an epoch, by Spark's name."""
CPU = ", CPU"
"""CPU seconds of all processes for each epoch, servers among them."""
DELAY = 0.002
WANTED = {bench_postgres.JDBC: "≤ 1.3, ≤ 1.1 with 2 ms"}

Base = bench_postgres.Base | bench_mysql.Base
Figures = dict[str, list[float]]


@dataclass(frozen=True)
class Peers:
    """A table, the sink that writes to it, and what others write each epoch with."""

    base: Base
    sink: Any
    others: Mapping[str, Callable[[Any], Job]]
    """Name → what makes the job of an epoch from its rows and the table."""

    def streams(self, df: DataFrame, scratch: Scratch) -> dict[str, Callable[[], DataStreamWriter]]:
        return {
            type(self.sink).__name__: lambda: PythonApi().stream(df, self.sink, scratch.new()),
            **{name: partial(self._each, df, make, scratch) for name, make in self.others.items()},
        }

    def _each(self, df: DataFrame, make: Callable[[Any], Job], scratch: Scratch) -> DataStreamWriter:
        def write(rows: DataFrame, epoch: int) -> None:
            make(replace(self.base, df=rows))()

        return df.writeStream.foreachBatch(write).option("checkpointLocation", str(scratch.new()))


def measure(spark: SparkSession, given: Given, scratch: Scratch) -> Result:
    """Run each stream to its end, in turn, for each server without and with a delay."""
    started = now()
    epochs = max(3, given.rows // EPOCH_ROWS)
    df = small_epochs(spark, scratch.rows / "epochs", epochs=epochs, rows=EPOCH_ROWS)
    lines = []
    with ExitStack() as stack:
        for name, peers in _all(df, stack):
            peers.base.make()
            lines += _lines(f"{name}: epochs of {EPOCH_ROWS} rows, {epochs} a run", peers, df, epochs, given, scratch)
    return Result(
        benchmark="sql-epochs", title="Small epochs into databases", unit="s per epoch", wanted=WANTED, lines=lines,
        pairs=given.pairs, started=started, machine=machine(),
    )  # fmt: skip


def _all(df: DataFrame, stack: ExitStack) -> Iterator[tuple[str, Peers]]:
    postgres_server = stack.enter_context(postgres.own_server())
    mysql_server = stack.enter_context(mysql.own_server()).client
    for what, delay in (("", 0.0), (", 2 ms", DELAY)):
        dsn = postgres_server.new_database()
        if delay:
            port = stack.enter_context(delayed(int(str(conninfo_to_dict(dsn)["port"])), delay))
            dsn = make_conninfo(dsn, host="127.0.0.1", port=port)
        yield f"PostgreSQL{what}", _postgres(dsn, df)
        port = stack.enter_context(delayed(mysql_server.port, delay)) if delay else mysql_server.port
        yield (
            f"MariaDB{what}",
            _mysql(bench_mysql.Base(replace(mysql_server, port=port), mysql_server.new_database(), df)),
        )


def _postgres(dsn: str, df: DataFrame) -> Peers:
    others: dict[str, Callable[[Any], Job]] = {bench_postgres.BARE: lambda base: bench_postgres.copying(base, "t")}
    if jdbc.POSTGRES.is_in(df.sparkSession):
        others |= {
            bench_postgres.JDBC: lambda base: bench_postgres.by_jdbc(base, "t"),
            bench_postgres.REWRITING: lambda base: bench_postgres.by_jdbc(base, "t", rewriting=True),
        }
    return Peers(bench_postgres.Base(dsn, df), PostgresSink(dsn, "t"), others)


def _mysql(base: bench_mysql.Base) -> Peers:
    others: dict[str, Callable[[Any], Job]] = {bench_mysql.BARE: bench_mysql.loading}
    if jdbc.MYSQL.is_in(base.df.sparkSession):
        others |= {
            bench_mysql.JDBC: bench_mysql.by_jdbc,
            bench_mysql.REWRITING: lambda base: bench_mysql.by_jdbc(base, rewriteBatchedStatements="true"),
        }
    return Peers(base, MySQLSink(f"mysql://{base.server.user}@{base.place}", "t"), others)


def _lines(group: str, peers: Peers, df: DataFrame, epochs: int, given: Given, scratch: Scratch) -> list[Line]:
    streams, figures = peers.streams(df, scratch), Figures()
    for number, name in rounds(streams, 1 + given.pairs):
        peers.base.reset(0)
        cpu = cpu_seconds()
        reports = epoch_reports(streams[name]())
        if number > 0:  # the first warms up
            _add(figures, name, reports, (cpu_seconds() - cpu) / epochs)
        if peers.base.count() != epochs * EPOCH_ROWS:
            sys.exit(f"{name}: the table has {peers.base.count()} of {epochs * EPOCH_ROWS} rows")
        scratch.clear()
    sink, *others = streams
    return [
        seconds(group, f"{name}{what}", figures, {other: f"{other}{what}" for other in others} if name == sink else {})
        for name in streams
        for what in [*(f"{part}, P{percent}" for part in PARTS for percent in PERCENTILES), CPU]
    ]


def _add(figures: Figures, name: str, reports: list[dict[str, float]], cpu: float) -> None:
    for what, part in PARTS.items():
        for percent in PERCENTILES:
            figure = percentile([report[part] for report in reports], percent)
            figures.setdefault(f"{name}{what}, P{percent}", []).append(figure)
    figures.setdefault(f"{name}{CPU}", []).append(cpu)


if __name__ == "__main__":
    main(__doc__.splitlines()[0], DEFAULT, measure, KEPT | jdbc.jars(jdbc.POSTGRES, jdbc.MYSQL))
