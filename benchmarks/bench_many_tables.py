"""Seconds per epoch of 100,000 rows into one table, and into many that a column names, of databases and lakes.

    python -m benchmarks.bench_many_tables --rows 600000 --pairs 3

Starts its own servers; that of PostgreSQL has its defaults but for `fsync`, which is off. The rows of all tables are
mixed in each epoch. The first epoch of a run, which meets the tables, has lines of its own; in the lakes, a run that
warms up has created them.
"""

from __future__ import annotations

import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pyarrow.compute as pc
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog
from pyspark.sql import DataFrame, SparkSession

from benchmarks.bench_epochs import percentile
from benchmarks.common import Given, machine, main, seconds
from benchmarks.results import Line, Result, now
from outfall.delta import DeltaSink
from outfall.iceberg import IcebergSink
from outfall.mysql import MySQLSink
from outfall.postgres import PostgresSink
from outfall.testing.benchmark.apis import PythonApi
from outfall.testing.benchmark.rows import Scratch, small_epochs
from outfall.testing.benchmark.runs import rounds
from outfall.testing.benchmark.session import cpu_seconds
from tests.integration.support import mysql, postgres

DEFAULT = Given(rows=600_000, pairs=3)
EPOCH_ROWS = 100_000
ONE = "one table"
JOBS = {ONE: None, "one table, table_column": 1, "10 tables": 10, "100 tables": 100, "1,000 tables": 1000}
"""Name → how many tables the column of tables names; `None` without one."""
IN_DATABASES, IN_LAKES = (1, 100, 1000), (1, 10, 100)
WANTED = {ONE: "≤ 1.05 with table_column, ≤ 1.4 for 100 tables, ≤ 2.5 for 1,000"}
CPU, FIRST = ", CPU", ", first epoch"
"""CPU seconds of all processes for each epoch after the first, servers among them; and the seconds of the first."""
_AT_ONCE = 100

Figures = dict[str, list[float]]


class Target(ABC):
    """A place for the table `one` and many others."""

    name: str
    numbers: Sequence[int]
    """The numbers of tables that are measured."""
    prefix = ""
    """What names of tables in rows begin with."""

    @abstractmethod
    def sink(self, **options: Any) -> Any:
        """Make the sink of many tables."""

    @abstractmethod
    def sink_of_one(self) -> Any:
        """Make the sink of the table `one`."""

    @abstractmethod
    def count(self, tables: Sequence[str], first: int) -> int:
        """Return the number of rows of a run, by the least of their ids."""


class Database(Target):
    """A database, in which the tables exist.

    Args:
        name: for texts.
        columns: those of each table.
        sink: makes the sink from its other options.
        run: executes a statement, and returns its rows.
    """

    numbers = IN_DATABASES

    def __init__(
        self, name: str, columns: str, sink: Callable[..., Any], run: Callable[[str], Sequence[Sequence[Any]]]
    ) -> None:
        self.name = name
        self._sink = sink
        self._run = run
        for table in ("one", *_tables(max(self.numbers))):
            run(f"CREATE TABLE {table} ({columns})")

    def sink(self, **options: Any) -> Any:
        return self._sink(**options)

    def sink_of_one(self) -> Any:
        return self._sink("one", on_existing="resume")

    def count(self, tables: Sequence[str], first: int) -> int:
        count = 0
        for start in range(0, len(tables), _AT_ONCE):
            some = (f"(SELECT count(*) FROM {name} WHERE id >= {first})" for name in tables[start : start + _AT_ONCE])
            count += int(self._run(f"SELECT {' + '.join(some)}")[0][0])
        return count


class Delta(Target):
    """Tables in a directory, which the first epochs create."""

    name = "Delta"
    numbers = IN_LAKES

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def sink(self, **options: Any) -> Any:
        return DeltaSink(str(self._folder), create_table="if_missing", **options)

    def sink_of_one(self) -> Any:
        return DeltaSink(str(self._folder / "one"), create_table="if_missing", on_existing="resume")

    def count(self, tables: Sequence[str], first: int) -> int:
        newer = pc.field("id") >= first
        return sum(
            DeltaTable(str(self._folder / name)).to_pyarrow_dataset().count_rows(filter=newer) for name in tables
        )


class Iceberg(Target):
    """Tables of a catalog in SQLite, which the first epochs create."""

    name = "Iceberg"
    numbers = IN_LAKES
    prefix = "db."

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._options = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}/data"}
        self._catalog = load_catalog("default", **self._options)
        self._catalog.create_namespace("db")

    def sink(self, **options: Any) -> Any:
        return IcebergSink(catalog_options=self._options, create_table="if_missing", **options)

    def sink_of_one(self) -> Any:
        return self.sink(table="db.one", on_existing="resume")

    def count(self, tables: Sequence[str], first: int) -> int:
        return sum(self._catalog.load_table(f"db.{name}").scan(row_filter=f"id >= {first}").count() for name in tables)


def measure(spark: SparkSession, given: Given, scratch: Scratch) -> Result:
    """Run each stream to its end, in turn, for each server."""
    started = now()
    epochs = max(3, given.rows // EPOCH_ROWS)
    df = small_epochs(spark, scratch.rows / "epochs", epochs=epochs, rows=EPOCH_ROWS).repartition(2)
    lines = list[Line]()
    with ExitStack() as stack:
        for target in _targets(stack, scratch.rows / "lakes"):
            lines += _lines(target, df, epochs, given, scratch)
    return Result(
        benchmark="many-tables", title="One stream into many tables", unit="s per epoch", wanted=WANTED, lines=lines,
        pairs=given.pairs, started=started, machine=machine(),
    )  # fmt: skip


def _targets(stack: ExitStack, folder: Path) -> Iterator[Target]:
    dsn = stack.enter_context(postgres.own_server()).new_database()
    columns = "id bigint PRIMARY KEY, x double precision, name text, ts timestamptz, flag boolean"
    yield Database("PostgreSQL", columns, partial(PostgresSink, dsn), partial(_in_postgres, dsn))
    client = stack.enter_context(mysql.own_server()).client
    database = client.new_database()
    columns = "id bigint PRIMARY KEY, x double, name varchar(200), ts datetime(6), flag boolean"
    dsn = f"mysql://{client.user}@{client.host}:{client.port}/{database}"
    yield Database("MariaDB", columns, partial(MySQLSink, dsn), lambda statement: client.run(statement, database))
    folder.mkdir()
    yield Delta(folder / "delta")
    yield Iceberg(folder / "iceberg")


def _in_postgres(dsn: str, statement: str) -> Sequence[Sequence[Any]]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        cursor = connection.execute(statement.encode())
        return [] if cursor.description is None else cursor.fetchall()


def _tables(number: int) -> list[str]:
    return [f"t{each:04d}" for each in range(number)]


def _lines(target: Target, df: DataFrame, epochs: int, given: Given, scratch: Scratch) -> list[Line]:
    figures = Figures()
    jobs = {name: count for name, count in JOBS.items() if count is None or count in target.numbers}
    for run, (number, name) in enumerate(rounds(jobs, 1 + given.pairs)):
        count, first = jobs[name], run * epochs * EPOCH_ROWS
        tables = ["one"] if count in (None, 1) else _tables(count)
        measured = _measured(target, df.selectExpr(f"id + {first} AS id", "x", "name", "ts", "flag"), count, scratch)
        if number > 0:  # the first warms up
            for what, figure in measured.items():
                figures.setdefault(f"{name}{what}", []).append(figure)
        found = target.count(tables, first)
        if found != epochs * EPOCH_ROWS:
            sys.exit(f"{target.name}, {name}: the tables have {found} of {epochs * EPOCH_ROWS} rows")
        scratch.clear()
    group = f"{target.name}: epochs of {EPOCH_ROWS:,} rows, {epochs} a run"
    return [
        seconds(group, f"{name}{what}", figures, {} if name == ONE else {ONE: f"{ONE}{what}"})
        for what in ("", CPU, FIRST)
        for name in jobs
    ]


def _measured(target: Target, df: DataFrame, count: int | None, scratch: Scratch) -> dict[str, float]:
    """Run a stream to its end. Returns the figures of its epochs: the median of their seconds, and others."""
    if count is None:
        sink = target.sink_of_one()
    else:
        named = f"'{target.prefix}one'" if count == 1 else f"format_string('{target.prefix}t%04d', id % {count})"
        df = df.selectExpr("*", f"{named} AS place")
        allowed = [f"{target.prefix}one", f"{target.prefix}t*"]
        sink = target.sink(table_column="place", allowed_tables=allowed, on_existing="resume")
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
