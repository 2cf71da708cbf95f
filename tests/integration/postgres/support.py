"""A table of PostgreSQL, and what lies in it as another connection sees it."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, LiteralString
from urllib.parse import urlencode

import psycopg
import pyarrow as pa
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from outfall.postgres import PostgresRecoveryConfig, PostgresSink
from outfall.testing.tcp_proxy import TcpProxy
from tests.integration.support.changes import MOMENTS
from tests.integration.support.postgres import location
from tests.integration.support.servers import free_port
from tests.integration.support.sql import TABLE, Table

END_OTHERS = (
    "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity"
    " WHERE datname = current_database() AND pid <> pg_backend_pid() AND application_name = 'outfall'"
)


class Target(Table):
    """One table `t` in an empty database."""

    connector = "postgres"
    quote = '"'
    refused = psycopg.Error
    impatient = "SET lock_timeout = '100ms'"
    codes = {"check": "23514", "foreign key": "23503", "referred to": "23503"}
    counts_given = False
    moment = "timestamptz"
    long_text = "text"
    unchecked = "SET session_replication_role = replica"
    blob = "bytea"

    sequences = [
        ("bigint", [9, 10, 11]),
        ("numeric", [Decimal("9.5"), Decimal(10), Decimal("10.001")]),
        ("date", [date(999, 1, 1), date(2020, 1, 1), date(2020, 1, 2)]),
        ("timestamp", [moment.replace(tzinfo=None) for moment in MOMENTS]),
        ("timestamptz", MOMENTS),
        ('text COLLATE "C"', ["A", "B", "a"]),
        ("bytea", [b"\x00", b"\x7f", b"\x80"]),
    ]
    no_sequences = [
        ("double precision", pa.float64(), "double cannot be a sequence, because NaN cannot be ordered"),
        ("bigint", pa.string(), "may find NaN or infinity: cast it in the query"),
        ("text", pa.string(), "ordered by a collation"),
        ("text[]", pa.list_(pa.string()), "no useful order"),
        (None, pa.string(), 'COLLATE "C"'),
    ]

    replayed = [
        ("bigint", "172", 172),
        ("numeric(30,20)", "0.10000000000000000001", Decimal("0.10000000000000000001")),
        ("timestamptz", "2026-11-23T01:02:03.456789Z", datetime(2026, 11, 23, 1, 2, 3, 456_789, UTC)),
        ("bytea", b"\x00\xff", b"\x00\xff"),
        ("jsonb", '{"a": [1.10, null]}', {"a": [1.1, None]}),
        ("text[]", ["x", None], ["x", None]),
    ]

    def __init__(self, dsn: str, ddl: str = TABLE) -> None:
        self.dsn = dsn
        self.run(ddl)

    def run(self, statements: str, *values: Any) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            cursor = connection.execute(statements, values or None)  # the tests' own SQL
            return cursor.fetchall() if cursor.description else []

    def read(self, query: str) -> list[tuple[Any, ...]]:
        return self.run(query)

    def connect(self) -> psycopg.Connection[Any]:
        return psycopg.connect(self.dsn)

    def address(self, port: int = 0) -> str:
        return make_conninfo(self.dsn, host="127.0.0.1", port=port) if port else self.dsn

    def location(self, port: int = 0, **options: Any) -> PostgresRecoveryConfig:
        return location(self.address(port), **options)

    def apart(self, name: str) -> dict[str, Any]:
        # A schema is what a directory is for files, and made in a fraction of the time that a database takes.
        return {"schema": name}

    def log_tables(self, recovery: PostgresRecoveryConfig) -> list[str]:
        return [f"{recovery.schema}.{recovery.prefix}_{table}" for table in ("entries", "blobs")]

    def letters_at(self, table: str, **more: str) -> str:
        given = {key: value for key, value in conninfo_to_dict(self.dsn).items() if value is not None}
        return f"postgresql:///?{urlencode(given | {'table': table} | more)}"

    def sink(self, **options: Any) -> PostgresSink:
        return PostgresSink(options.pop("dsn", self.dsn), options.pop("table", "t"), **options)

    def proxy(self) -> AbstractContextManager[TcpProxy]:
        given = {"host": "127.0.0.1", "port": "5432"} | conninfo_to_dict(self.dsn)
        return TcpProxy(str(given["host"]), int(str(given["port"])), listen=free_port())

    def end_connections(self) -> None:
        self.run(END_OTHERS)

    def has_lock_wait(self) -> bool:
        query = "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        return bool(self.run(query))

    def retype(self, **types: str) -> None:
        self.run(f"ALTER TABLE t {', '.join(f'ALTER {name} TYPE {kind}' for name, kind in types.items())}")

    @contextmanager
    def copied(self) -> Iterator[Target]:
        admin, name = make_conninfo(self.dsn, dbname="postgres"), f"outfall_{uuid.uuid4().hex}"
        self._end_all()
        with psycopg.connect(admin, autocommit=True) as connection:
            names = sql.Identifier(name), sql.Identifier(str(conninfo_to_dict(self.dsn)["dbname"]))
            connection.execute(sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(*names))
            yield Target(make_conninfo(self.dsn, dbname=name), "SELECT 1")
            connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(names[0]))

    @contextmanager
    def losing_commits(self) -> Iterator[None]:
        # Servers of tests have fsync off.
        yield

    @contextmanager
    def read_only(self) -> Iterator[None]:
        name = conninfo_to_dict(self.dsn)["dbname"]
        self.run(f'ALTER DATABASE "{name}" SET default_transaction_read_only = on')
        self._end_all()
        yield
        writing = make_conninfo(self.dsn, options="-c default_transaction_read_only=off")
        Target(writing, f'ALTER DATABASE "{name}" RESET default_transaction_read_only')

    def _end_all(self) -> None:
        # A database that somebody is connected to cannot be copied.
        self.run(
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )

    def age_tombstones(self, minutes: str) -> None:
        self.run(f"UPDATE {self.tombstones_table()} SET _outfall_deleted = now() - ({minutes}) * interval '1 minute'")

    def tables(self, pattern: str) -> list[str]:
        query = f"SELECT format('%I.%I', schemaname, tablename) FROM pg_tables WHERE tablename LIKE '{pattern}'"
        return [name for (name,) in self.run(query)]

    def own(self, name: str) -> str:
        return f"outfall.{name}"

    def copy(self) -> Callable[[], None]:
        """Copy the database as it is, and return what puts the copy in its place: later commits are lost then."""
        admin = make_conninfo(self.dsn, dbname="postgres")
        name = str(conninfo_to_dict(self.dsn)["dbname"])
        names = sql.Identifier(name), sql.Identifier(f"{name}_copy")

        def run(*statements: LiteralString) -> None:
            with psycopg.connect(admin, autocommit=True) as connection:
                for statement in statements:
                    connection.execute(sql.SQL(statement).format(*names))

        self._end_all()
        run("CREATE DATABASE {1} TEMPLATE {0}")
        return lambda: run("DROP DATABASE {0} WITH (FORCE)", "ALTER DATABASE {1} RENAME TO {0}")
