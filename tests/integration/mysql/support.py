"""A table of MariaDB or MySQL, and what lies in it as the server's own client sees it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pymysql

from outfall.mysql import MySQLRecoveryConfig, MySQLSink
from outfall.testing.tcp_proxy import TcpProxy
from tests.integration.support.changes import MOMENTS
from tests.integration.support.mysql import MySQLServer, RefusedError
from tests.integration.support.servers import free_port
from tests.integration.support.sql import TABLE, Table

_MOMENT = datetime(2026, 11, 23, 1, 2, 3, 456_789, UTC)


class Target(Table):
    """One table `t` in an empty database, which holds the sink's own tables too."""

    connector = "mysql"
    quote = "`"
    refused = RefusedError
    impatient = "SET lock_wait_timeout = 1"
    counts_given = True
    moment = "datetime(6)"
    long_text = "longtext"
    unchecked = "SET foreign_key_checks = 0"
    blob = "blob"

    sequences = [
        ("bigint", [9, 10, 11]),
        ("decimal(38, 3)", [Decimal("9.5"), Decimal(10), Decimal("10.001")]),
        ("date", [date(999, 1, 1), date(2020, 1, 1), date(2020, 1, 2)]),
        ("datetime(6)", MOMENTS),
        ("timestamp(6) NULL", MOMENTS),
        ("varchar(20) COLLATE utf8mb4_bin", ["A", "B", "a"]),
        ("varbinary(20)", [b"\x00", b"\x7f", b"\x80"]),
    ]
    no_sequences = [
        ("double", pa.float64(), "double cannot be a sequence, because NaN cannot be ordered"),
        ("double", pa.int32(), "double has no order that is suitable for a sequence"),
        ("varchar(20) COLLATE utf8mb4_general_ci", pa.string(), "may compare different texts as equal"),
        ("char(20) COLLATE utf8mb4_bin", pa.string(), "has no order that is suitable for a sequence"),
        (None, pa.string(), "compares different texts as equal"),
    ]

    replayed = [
        ("bigint unsigned", 3_000_000_000, 3_000_000_000),
        ("decimal(30,20)", Decimal("0.10000000000000000001"), Decimal("0.10000000000000000001")),
        ("datetime(6)", _MOMENT, _MOMENT.replace(tzinfo=None)),
        ("blob", b"\x00\xff", b"\x00\xff"),
        # The server shows six digits.
        ("float", 1.2345677614212036, 1.23457),
        ("tinyint", True, 1),
        ("json", '{"a": "ü"}', '{"a": "ü"}'),
    ]

    def __init__(self, server: MySQLServer, database: str, ddl: str = TABLE) -> None:
        self.server = server
        self.database = database
        self.run(ddl)

    @property
    def codes(self) -> dict[str, str]:  # type: ignore[override]
        return {"check": "4025" if self.server.is_mariadb else "3819", "foreign key": "1452", "referred to": "1451"}

    def run(self, statements: str) -> list[tuple[str, ...]]:
        """Run statements on a connection of their own, and return the rows as text."""
        return self.server.run(statements, self.database)

    def read(self, query: str) -> list[tuple[Any, ...]]:
        with closing(self.connect()) as connection, connection.cursor() as cursor:
            cursor.execute(query)
            return list(cursor.fetchall())

    def connect(self) -> pymysql.Connection[Any]:
        given = self.server
        return pymysql.connect(
            host=given.host, port=given.port, user=given.user, password=given.password, database=self.database
        )

    def json(self, query: str) -> list[Any]:
        """Return the values of a column `row` of JSON texts, which the client would escape."""
        return [json.loads(bytes.fromhex(text)) for (text,) in self.run(f"SELECT HEX(`row`) FROM ({query}) AS rows_")]

    def dsn(self, port: int = 0, user: str = "", query: str = "tls=prefer") -> str:
        given = self.server
        who = user or quote(given.user, safe="") + (f":{quote(given.password, safe='')}" if given.password else "")
        place = f"127.0.0.1:{port}" if port else f"{given.host}:{given.port}"
        return f"mysql://{who}@{place}/{self.database}?{query}"

    def address(self, port: int = 0) -> str:
        return self.dsn(port)

    def location(self, port: int = 0, **options: Any) -> MySQLRecoveryConfig:
        return self.server.location(self.database, port, **options)

    def apart(self, name: str) -> dict[str, Any]:
        return {"prefix": name}

    def log_tables(self, recovery: MySQLRecoveryConfig) -> list[str]:
        return [f"{recovery.prefix}_{table}" for table in ("entries", "blobs")]

    def letters_at(self, table: str) -> str:
        return self.dsn(query=f"tls=prefer&table={table}")

    def sink(self, **options: Any) -> MySQLSink:
        table = options.pop("table", "t")
        return MySQLSink(options.pop("dsn", self.dsn()), table, **{"metadata_schema": self.database} | options)

    def options(self) -> dict[str, str]:
        return super().options() | {"metadata_schema": self.database}

    def proxy(self) -> AbstractContextManager[TcpProxy]:
        return TcpProxy(self.server.host, self.server.port, listen=free_port())

    def end_connections(self) -> None:
        found = self.server.run(f"SELECT id FROM information_schema.processlist WHERE db = '{self.database}'")
        self.server.run("".join(f"KILL {number}; " for (number,) in found))

    def has_lock_wait(self) -> bool:
        return self.server.has_lock_wait()

    def retype(self, **types: str) -> None:
        self.run(f"ALTER TABLE t {', '.join(f'MODIFY {name} {kind}' for name, kind in types.items())}")

    @contextmanager
    def copied(self) -> Iterator[Target]:
        other = Target(self.server, self.server.new_database(), "SELECT 1")
        for name in self.tables("%"):
            source = f"{self.database}.{name}"
            other.run(f"CREATE TABLE {name} LIKE {source}; INSERT INTO {name} SELECT * FROM {source}")
        yield other

    @contextmanager
    def losing_commits(self) -> Iterator[None]:
        with self.server.settings(innodb_flush_log_at_trx_commit="2"):
            yield

    @contextmanager
    def read_only(self) -> Iterator[None]:
        with self.server.settings(read_only="ON"):
            yield

    def age_tombstones(self, minutes: str) -> None:
        self.run(
            f"UPDATE {self.tombstones_table()} SET _outfall_deleted = UTC_TIMESTAMP(6) - INTERVAL {minutes} MINUTE"
        )

    def tables(self, pattern: str) -> list[str]:
        return [f"`{name}`" for (name,) in self.run(f"SHOW TABLES LIKE '{pattern}'")]

    def own(self, name: str) -> str:
        return name
