"""A PostgreSQL primary with a standby that may lag, be promoted, and meet the old primary again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from tests.integration.postgres.support import Target
from tests.integration.support.postgres import Server
from tests.integration.support.servers import open_folder
from tests.integration.support.waiting import until

NAME = "standby"
"""What a standby calls itself, for `synchronous_standby_names`."""

_SECONDS = 60


class Standby(Server):
    """A copy of a primary that streams from it until it is promoted. Until then it only answers queries."""

    def __init__(self, primary: Server, folder: Path) -> None:
        self._primary = primary
        self._source = make_conninfo(primary.dsn, application_name=NAME)
        super().__init__(folder, programs=primary.programs)

    def _make_data(self) -> None:
        self.run_program("pg_basebackup", "-D", self._data, "-R", "-X", "stream", "-c", "fast", "-d", self._source)

    def lag(self) -> None:
        """Receive nothing more: what the primary commits from now on is not here when this one is promoted."""
        self._receive_from("")

    def catch_up(self) -> None:
        """Receive again, and wait until all that the primary has committed is here."""
        self._receive_from(self._source)
        end = _ask(self._primary.dsn, "SELECT pg_current_wal_flush_lsn()")
        query = "SELECT pg_last_wal_replay_lsn() >= %s::pg_lsn"
        until(lambda: _ask(self.dsn, query, end), "the standby having all", _SECONDS)

    def promote(self) -> None:
        """Make it a primary."""
        assert _ask(self.dsn, "SELECT pg_promote(true, %s)", _SECONDS)

    def _receive_from(self, source: str) -> None:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            connection.execute(sql.SQL("ALTER SYSTEM SET primary_conninfo = {}").format(sql.Literal(source)))
            connection.execute("SELECT pg_reload_conf()")
        query = "SELECT EXISTS (SELECT 1 FROM pg_stat_wal_receiver WHERE status = 'streaming')"
        until(lambda: _ask(self.dsn, query) == bool(source), "the standby having heard", _SECONDS)


class Pair:
    """A primary and its standby, behind one DSN that leads to whichever takes writes, the first one preferred."""

    def __init__(self, primary: Server, standby: Standby) -> None:
        self.primary = primary
        self.standby = standby

    def new_database(self) -> str:
        """Make an empty database on both, and return the DSN of the pair."""
        dsn = self.primary.new_database()
        self.standby.catch_up()
        ports = f"{self.primary.port},{self.standby.port}"
        return make_conninfo(dsn, host="127.0.0.1,127.0.0.1", port=ports, target_session_attrs="read-write")

    def table(self, ddl: str) -> Target:
        """Make a table in a database of its own, at the address of both."""
        return Target(self.new_database(), ddl)

    def lag(self) -> None:
        """Let the standby have all until now, and nothing more."""
        self.catch_up()
        self.standby.lag()

    def catch_up(self) -> None:
        """Let the standby receive, and wait until it has all that the primary has committed."""
        self.standby.catch_up()

    def fail_over(self) -> None:
        """Kill the primary, and promote the standby with what it has received."""
        self.primary.kill()
        self.standby.promote()


def at(dsn: str, server: Server) -> str:
    """Return the DSN of the same database on one server of the pair."""
    return make_conninfo(dsn, host="127.0.0.1", port=server.port, target_session_attrs="any")


@contextmanager
def postgres_pair(programs: Path | None = None, settings: dict[str, str] | None = None) -> Iterator[Pair]:
    """Run a primary and a standby that has all that the primary has."""
    with ExitStack() as stack:
        primary = Server(stack.enter_context(open_folder()), settings, programs)
        stack.callback(primary.stop)
        primary.start()
        standby = Standby(primary, stack.enter_context(open_folder()))
        stack.callback(standby.stop)
        standby.start()
        yield Pair(primary, standby)


def _ask(dsn: str, query: str, *values: Any) -> Any:
    with psycopg.connect(dsn, autocommit=True) as connection:
        found = connection.execute(query.encode(), values or None).fetchone()
        return None if found is None else found[0]
