"""A table, and what lies in it as another connection sees it."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, LiteralString

import psycopg
import pytest
from psycopg import sql

from outfall.postgres import PostgresSink
from outfall.testing import LocalDriver
from outfall.trace_points import listen


class Target:
    """One table `t` in an empty database."""

    def __init__(self, dsn: str, ddl: str = "CREATE TABLE t (id bigint, name text)") -> None:
        self.dsn = dsn
        self.run(ddl)

    def run(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """Run a statement on a connection of its own and return its rows."""
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            cursor = connection.execute(statement, values or None)  # the tests' own SQL
            return cursor.fetchall() if cursor.description else []

    def copy(self) -> Callable[[], None]:
        """Copy the database as it is, and return what puts the copy in its place: later commits are lost then."""
        admin = psycopg.conninfo.make_conninfo(self.dsn, dbname="postgres")
        name = str(psycopg.conninfo.conninfo_to_dict(self.dsn)["dbname"])
        names = sql.Identifier(name), sql.Identifier(f"{name}_copy")

        def run(*statements: LiteralString) -> None:
            with psycopg.connect(admin, autocommit=True) as connection:
                for statement in statements:
                    connection.execute(sql.SQL(statement).format(*names))

        # A database that somebody is connected to cannot be copied.
        self.run(
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        run("CREATE DATABASE {1} TEMPLATE {0}")
        return lambda: run("DROP DATABASE {0} WITH (FORCE)", "ALTER DATABASE {1} RENAME TO {0}")

    def ids(self) -> list[int]:
        return [row[0] for row in self.run("SELECT id FROM t ORDER BY id")]

    def attempts(self) -> int:
        """How many attempts may still be published."""
        return int(self.run("SELECT count(*) FROM outfall.attempts")[0][0])

    def staged(self) -> int:
        """How many rows lie in staging, of whatever attempt."""
        (name,) = (row[0] for row in self.run("SELECT tablename FROM pg_tables WHERE tablename LIKE 'staging%'"))
        return int(self.run(f'SELECT count(*) FROM outfall."{name}"')[0][0])

    def sink(self, **options: Any) -> PostgresSink:
        return PostgresSink(options.pop("dsn", self.dsn), "t", **options)


@contextmanager
def listening(listener: Callable[[str], None]) -> Iterator[None]:
    """Call a listener at every step that is reached within the block."""
    with ExitStack() as stack:
        stack.callback(listen(listener))
        yield


THOROUGH = pytest.mark.thorough


def mostly_thorough(values: Sequence[Any], default: Container[Any]) -> list[Any]:
    """Return parameters, of which only some belong to the default run."""
    return [
        value if value in default else pytest.param(*(value if isinstance(value, tuple) else [value]), marks=THOROUGH)
        for value in values
    ]


def rows(*ids: int) -> list[dict[str, Any]]:
    return [{"id": number, "name": f"n{number}"} for number in ids]


def run(sink: PostgresSink, recovery: str, epoch: int, *tasks: Sequence[Any]) -> Any:
    """Run one epoch by a driver of its own, as after a restart."""
    return LocalDriver(sink, recovery).run_epoch(epoch, tasks)
