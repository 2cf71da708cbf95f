"""A table, and what lies in it as another connection sees it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from urllib.parse import quote

from outfall.mysql import MySQLSink
from outfall.testing import LocalDriver
from outfall.trace_points import listen
from tests.integration.support.mariadb import MariaDB

TABLE = "CREATE TABLE t (id BIGINT, name TEXT)"


class Target:
    """One table `t` in an empty database, which holds the sink's own tables too."""

    def __init__(self, server: MariaDB, database: str, ddl: str = TABLE) -> None:
        self.server = server
        self.database = database
        self.run(ddl)

    def run(self, statements: str) -> list[tuple[str, ...]]:
        """Run statements on a connection of its own, and return the rows as text."""
        return self.server.run(statements, self.database)

    def json(self, query: str) -> list[Any]:
        """Return the values of a column `row` of JSON texts, which the client would escape."""
        return [json.loads(bytes.fromhex(text)) for (text,) in self.run(f"SELECT HEX(`row`) FROM ({query}) AS rows_")]

    def dsn(self, port: int = 0, user: str = "", query: str = "tls=prefer") -> str:
        given = self.server
        who = user or quote(given.user, safe="") + (f":{quote(given.password, safe='')}" if given.password else "")
        place = f"127.0.0.1:{port}" if port else f"{given.host}:{given.port}"
        return f"mysql://{who}@{place}/{self.database}?{query}"

    def sink(self, **options: Any) -> MySQLSink:
        table = options.pop("table", "t")
        return MySQLSink(options.pop("dsn", self.dsn()), table, **{"metadata_schema": self.database} | options)

    def ids(self) -> list[int]:
        return [int(number) for (number,) in self.run("SELECT id FROM t ORDER BY id")]

    def rows(self, columns: str = "*") -> list[tuple[str, ...]]:
        return self.run(f"SELECT {columns} FROM t ORDER BY 1")

    def attempts(self) -> int:
        """How many attempts may still be published."""
        return int(self.run("SELECT count(*) FROM attempts")[0][0])

    def staged(self) -> int:
        """How many rows lie in staging, of whatever attempt."""
        ((name,),) = self.run("SHOW TABLES LIKE 'staging\\_%'")
        return int(self.run(f"SELECT count(*) FROM `{name}`")[0][0])


@contextmanager
def listening(listener: Callable[[str], None]) -> Iterator[None]:
    """Call a listener at every step that is reached within the block."""
    with ExitStack() as stack:
        stack.callback(listen(listener))
        yield


def rows(*ids: int) -> list[dict[str, Any]]:
    return [{"id": number, "name": f"n{number}"} for number in ids]


def run(sink: MySQLSink, recovery: Any, epoch: int, *tasks: Sequence[Any]) -> Any:
    """Run one epoch by a driver of its own, as after a restart."""
    return LocalDriver(sink, str(recovery)).run_epoch(epoch, tasks)
