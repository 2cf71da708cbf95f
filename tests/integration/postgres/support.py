"""A table, and what lies in it as another connection sees it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import psycopg

from outfall.postgres import PostgresSink
from outfall.steps import listen
from outfall.testing import LocalDriver


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


def rows(*ids: int) -> list[dict[str, Any]]:
    return [{"id": number, "name": f"n{number}"} for number in ids]


def run(sink: PostgresSink, recovery: str, epoch: int, *tasks: Sequence[Any]) -> Any:
    """Run one epoch by a driver of its own, as after a restart."""
    return LocalDriver(sink, recovery).run_epoch(epoch, tasks)
