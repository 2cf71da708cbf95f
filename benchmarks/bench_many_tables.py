"""Seconds per epoch of 100,000 rows into one table, and into many that a column names, of PostgreSQL and MariaDB.

    python -m benchmarks.bench_many_tables --rows 600000 --pairs 3

Starts its own servers; that of PostgreSQL has its defaults but for `fsync`, which is off. The rows of all tables are
mixed in each epoch. The first epoch of a run, which meets the tables, has lines of its own.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import psycopg
from pyspark.sql import DataFrame, SparkSession

from benchmarks.bench_epochs import percentile
from benchmarks.common import Given, machine, main, seconds
from benchmarks.results import Line, Result, now
from outfall.mysql import MySQLSink
from outfall.postgres import PostgresSink
from outfall.testing.benchmark.apis import PythonApi
from outfall.testing.benchmark.rows import Scratch, small_epochs
from outfall.testing.benchmark.runs import rounds
from outfall.testing.benchmark.session import cpu_seconds
from tests.integration.support import mysql, postgres

DEFAULT = Given(rows=600_000, pairs=3)
EPOCH_ROWS = 100_000
MOST = 1000
ONE = "one table"
JOBS = {ONE: None, "one table, table_column": 1, "100 tables": 100, "1,000 tables": MOST}
"""Name → how many tables the column of tables names; `None` without one."""
WANTED = {ONE: "≤ 1.05 with table_column, ≤ 1.4 for 100 tables, ≤ 2.5 for 1,000"}
CPU, FIRST = ", CPU", ", first epoch"
"""CPU seconds of all processes for each epoch after the first, servers among them; and the seconds of the first."""
_AT_ONCE = 100

Figures = dict[str, list[float]]


@dataclass(frozen=True)
class Server:
    """A database with the table `one` and a thousand others.

    Args:
        name: for texts.
        columns: those of each table.
        sink: makes the sink from its other options.
        run: executes a statement, and returns its rows.
    """

    name: str
    columns: str
    sink: Callable[..., Any]
    run: Callable[[str], Sequence[Sequence[Any]]]

    def make(self) -> None:
        for table in ("one", *_tables(MOST)):
            self.run(f"CREATE TABLE {table} ({self.columns})")

    def count(self, tables: Sequence[str], first: int) -> int:
        """Return the number of rows of a run, by the least of their ids."""
        count = 0
        for start in range(0, len(tables), _AT_ONCE):
            some = (f"(SELECT count(*) FROM {name} WHERE id >= {first})" for name in tables[start : start + _AT_ONCE])
            count += int(self.run(f"SELECT {' + '.join(some)}")[0][0])
        return count


def measure(spark: SparkSession, given: Given, scratch: Scratch) -> Result:
    """Run each stream to its end, in turn, for each server."""
    started = now()
    epochs = max(3, given.rows // EPOCH_ROWS)
    df = small_epochs(spark, scratch.rows / "epochs", epochs=epochs, rows=EPOCH_ROWS).repartition(2)
    lines = list[Line]()
    with ExitStack() as stack:
        for server in _servers(stack):
            server.make()
            lines += _lines(server, df, epochs, given, scratch)
    return Result(
        benchmark="many-tables", title="One stream into many tables", unit="s per epoch", wanted=WANTED, lines=lines,
        pairs=given.pairs, started=started, machine=machine(),
    )  # fmt: skip


def _servers(stack: ExitStack) -> Iterator[Server]:
    dsn = stack.enter_context(postgres.own_server()).new_database()
    columns = "id bigint PRIMARY KEY, x double precision, name text, ts timestamptz, flag boolean"
    yield Server("PostgreSQL", columns, partial(PostgresSink, dsn), partial(_in_postgres, dsn))
    client = stack.enter_context(mysql.own_server()).client
    database = client.new_database()
    columns = "id bigint PRIMARY KEY, x double, name varchar(200), ts datetime(6), flag boolean"
    dsn = f"mysql://{client.user}@{client.host}:{client.port}/{database}"
    yield Server("MariaDB", columns, partial(MySQLSink, dsn), lambda statement: client.run(statement, database))


def _in_postgres(dsn: str, statement: str) -> Sequence[Sequence[Any]]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        cursor = connection.execute(statement.encode())
        return [] if cursor.description is None else cursor.fetchall()


def _tables(number: int) -> list[str]:
    return [f"t{each:04d}" for each in range(number)]


def _lines(server: Server, df: DataFrame, epochs: int, given: Given, scratch: Scratch) -> list[Line]:
    figures = Figures()
    for run, (number, name) in enumerate(rounds(JOBS, 1 + given.pairs)):
        count, first = JOBS[name], run * epochs * EPOCH_ROWS
        tables = ["one"] if count in (None, 1) else _tables(count)
        measured = _measured(server, df.selectExpr(f"id + {first} AS id", "x", "name", "ts", "flag"), count, scratch)
        if number > 0:  # the first warms up
            for what, figure in measured.items():
                figures.setdefault(f"{name}{what}", []).append(figure)
        found = server.count(tables, first)
        if found != epochs * EPOCH_ROWS:
            sys.exit(f"{server.name}, {name}: the tables have {found} of {epochs * EPOCH_ROWS} rows")
        scratch.clear()
    group = f"{server.name}: epochs of {EPOCH_ROWS:,} rows, {epochs} a run"
    return [
        seconds(group, f"{name}{what}", figures, {} if name == ONE else {ONE: f"{ONE}{what}"})
        for what in ("", CPU, FIRST)
        for name in JOBS
    ]


def _measured(server: Server, df: DataFrame, count: int | None, scratch: Scratch) -> dict[str, float]:
    """Run a stream to its end. Returns the figures of its epochs: the median of their seconds, and others."""
    if count is None:
        sink = server.sink("one", on_existing="resume")
    else:
        named = "'one'" if count == 1 else f"format_string('t%04d', id % {count})"
        df = df.selectExpr("*", f"{named} AS place")
        sink = server.sink(table_column="place", allowed_tables=["one", "t*"], on_existing="resume")
    query = PythonApi().stream(df, sink, scratch.new()).trigger(availableNow=True).start()
    while not _seconds(query) and query.isActive:
        time.sleep(0.02)
    cpu = cpu_seconds()
    query.awaitTermination()
    cpu = cpu_seconds() - cpu
    first, *others = _seconds(query)
    return {"": percentile(others, 50), CPU: cpu / len(others), FIRST: first}


def _seconds(query: Any) -> list[float]:
    """Return the seconds of each epoch with rows so far."""
    return [each["durationMs"]["triggerExecution"] / 1000 for each in query.recentProgress if each["numInputRows"]]


if __name__ == "__main__":
    main(__doc__.splitlines()[0], DEFAULT, measure)
