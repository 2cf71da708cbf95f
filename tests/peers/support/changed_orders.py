"""The table `orders` in PostgreSQL or MySQL: changed by random transactions, or the copy of such a table."""

from __future__ import annotations

import json
import random
import subprocess
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any, ClassVar

import psycopg
import pymysql

from tests.integration.support import mysql, postgres
from tests.peers.support.connect import SIGNALS, mysql_connector, postgres_connector
from tests.peers.support.order_copies import STAYING, Copy

_KEYS = 400
_VALUES = {"decimal.handling.mode": "string", "time.precision.mode": "isostring"}


class Orders(Copy):
    """The table in a database of its own: the source, or a copy."""

    keeps_values = True
    pause = 0.2
    url: str
    """The database, for a sink."""
    schema: str
    """What is before the table in the name of its topic."""
    rows_of: ClassVar[str]
    """All rows, with the same texts in each kind of database."""
    upsert: ClassVar[str]
    create: ClassVar[tuple[str, ...]]

    @abstractmethod
    def connect(self) -> Any:
        """Return a connection of Python's database API."""

    @abstractmethod
    def read(self, query: str) -> list[tuple[str, ...]]:
        """Return rows as the server's own client prints them; none if the table is not there."""

    @abstractmethod
    def connector(self, name: str, kafka: str) -> dict[str, str]:
        """Return the settings of a connector for the table, and prepare the database for it.

        No transaction is open.
        """

    def options(self) -> dict[str, Any]:
        # A killed worker repeats updates of rows that were deleted since, and what they keep is nowhere then.
        return {
            "dsn": self.url, "table": "orders", "write_mode": "changes", "key_columns": "id", "operation_column": "op",
            "sequence_column": "seq", "sequence_kind": "kafka", "create_table": "if_missing",
            "dead_letter_table": "refused",
        }  # fmt: skip

    def rows(self) -> list[tuple[str, ...]]:
        return self.read(self.rows_of)

    def staying(self) -> int:
        ((count,),) = self.read(f"SELECT count(*) FROM orders WHERE id < {STAYING}") or [("0",)]
        return int(count)

    def send_all_values(self) -> None:
        """Let a change of the table bring all values of its row. The default is that it does."""

    def run(self, *statements: str) -> None:
        """Run statements in a transaction."""
        with closing(self.connect()) as connection:
            for statement in statements:
                connection.cursor().execute(statement)
            connection.commit()


class PostgresOrders(Orders):
    """In PostgreSQL, whose long notes are in a table of their own: an update that does not change one leaves it out."""

    sink = "postgres"
    rows_of = (
        "SELECT id, city, amount, (extract(epoch FROM at) * 1000000)::bigint,"
        " encode(sha256(convert_to(note, 'UTF8')), 'hex') FROM orders ORDER BY id"
    )
    upsert = (
        "INSERT INTO orders VALUES (%s, %s, %s, clock_timestamp(), %s)"
        " ON CONFLICT (id) DO UPDATE SET city = excluded.city, amount = excluded.amount, at = excluded.at"
    )
    create = (
        "CREATE TABLE orders (id bigint PRIMARY KEY, city text, amount numeric(12,2), at timestamptz, note text)",
        "ALTER TABLE orders ALTER note SET STORAGE EXTERNAL",
    )
    schema = "public"

    def __init__(self, server: postgres.Server) -> None:
        """Make a database."""
        self._server = server
        self.url = server.new_database()

    def connect(self) -> Any:
        return psycopg.connect(self.url)

    def read(self, query: str) -> list[tuple[str, ...]]:
        options = ("-X", "-A", "-t", "-P", "null=NULL", "-F", "\t", "-c", query)
        command = [str(self._server.programs / "psql"), self.url, *options]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            assert "does not exist" in done.stderr, done.stderr
            return []
        return [tuple(line.split("\t")) for line in done.stdout.splitlines()]

    def send_all_values(self) -> None:
        self.run("ALTER TABLE orders REPLICA IDENTITY FULL")

    def connector(self, name: str, kafka: str) -> dict[str, str]:
        # A new slot would wait for open transactions, and what is written before its publication is never delivered.
        self.run(f"CREATE PUBLICATION {name} FOR TABLE orders, debezium_signal")
        self.run(f"SELECT pg_create_logical_replication_slot('{name}', 'pgoutput')")
        database = str(psycopg.conninfo.conninfo_to_dict(self.url)["dbname"])
        given = postgres_connector("127.0.0.1", self._server.port, database, "public.orders")
        return given | _VALUES | {"topic.prefix": name, "slot.name": name, "publication.name": name}


class MySQLOrders(Orders):
    """In MySQL."""

    sink = "mysql"
    rows_of = (
        "SET time_zone = '+00:00'; SELECT id, city, amount, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', at),"
        " SHA2(note, 256) FROM orders ORDER BY id"
    )
    upsert = (
        "INSERT INTO orders VALUES (%s, %s, %s, SYSDATE(6), %s) AS new"
        " ON DUPLICATE KEY UPDATE city = new.city, amount = new.amount, at = new.at"
    )
    create = (
        "CREATE TABLE orders (id bigint PRIMARY KEY, city text, amount decimal(12,2), at timestamp(6) NULL,"
        " note longtext)",
    )

    def __init__(self, server: mysql.MySQLServer) -> None:
        """Make a database."""
        self._server = server
        self.schema = server.new_database()
        self.url = f"mysql://{server.user}@{server.host}:{server.port}/{self.schema}?tls=prefer"

    def connect(self) -> Any:
        at = {"host": self._server.host, "port": self._server.port, "user": self._server.user}
        return pymysql.connect(**at, database=self.schema)

    def read(self, query: str) -> list[tuple[str, ...]]:
        try:
            return self._server.run(query, self.schema)
        except mysql.RefusedError as error:
            if "doesn't exist" not in str(error):
                raise
            return []

    def connector(self, name: str, kafka: str) -> dict[str, str]:
        given = mysql_connector(self._server.host, self._server.port, self.schema, "orders", kafka)
        history = {"schema.history.internal.kafka.topic": f"{name}.history"}
        return given | _VALUES | history | {"topic.prefix": name}


class ChangedOrders:
    """Changes a table by rows of each kind of change, in transactions of any size."""

    def __init__(self, orders: Orders, chance: random.Random) -> None:
        """Create the table with rows."""
        self.orders = orders
        self._chance = chance
        orders.run(SIGNALS, *orders.create)
        self._connection = orders.connect()
        self._cursor = self._connection.cursor()
        for number in range(_KEYS // 2):
            self._upsert(number)
        self._connection.commit()

    @contextmanager
    def open_transaction(self) -> Iterator[None]:
        """Change rows in a transaction that is open meanwhile: its changes are written before, and delivered after."""
        with closing(self.orders.connect()) as connection:
            connection.cursor().execute("UPDATE orders SET city = 'late', amount = amount + 1 WHERE id % 7 = 0")
            yield
            connection.commit()

    def change(self, transactions: int, *, removing: bool = True) -> None:
        """Run random transactions, some of which are rolled back. `removing`: whether keys are removed or changed."""
        for _ in range(transactions):
            for _ in range(self._chance.choice((1, 1, 2, 5, 40))):
                self._any(removing)
            if self._chance.random() < 0.1:
                self._connection.rollback()
            else:
                self._connection.commit()

    def snapshot(self, condition: str | None = None) -> None:
        """Ask the connector for an incremental snapshot of all rows, or of those that meet a condition."""
        table = f"{self.orders.schema}.orders"
        given: dict[str, Any] = {"data-collections": [table], "type": "incremental"}
        if condition is not None:
            given["additional-conditions"] = [{"data-collection": table, "filter": condition}]
        data = json.dumps(given)
        name = f"s{self._chance.random()}"
        self._cursor.execute("INSERT INTO debezium_signal VALUES (%s, 'execute-snapshot', %s)", (name, data))
        self._connection.commit()

    def close(self) -> None:
        self._connection.close()

    def _any(self, removing: bool) -> None:
        key = self._chance.randrange(_KEYS)
        kind = self._chance.random()
        if kind < 0.5 or key < STAYING:
            self._upsert(key)
        elif kind < 0.65 or not removing:
            self._cursor.execute("UPDATE orders SET city = %s WHERE id = %s", (f"c{self._chance.random()}", key))
        elif kind < 0.9:
            self._cursor.execute("DELETE FROM orders WHERE id = %s", (key,))
        else:
            other = self._chance.randrange(STAYING, _KEYS)
            self._cursor.execute("SELECT 1 FROM orders WHERE id = %s", (other,))
            if self._cursor.fetchone() is None:
                # Else PostgreSQL would not send a long note, and nothing has the new key's.
                self._cursor.execute("UPDATE orders SET id = %s, note = concat(note, '') WHERE id = %s", (other, key))

    def _upsert(self, key: int) -> None:
        values = (key, f"c{self._chance.random()}", round(self._chance.uniform(-1e6, 1e6), 2), self._note())
        self._cursor.execute(self.orders.upsert, values)
        if self._chance.random() < 0.2:
            self._cursor.execute("UPDATE orders SET note = %s WHERE id = %s", (self._note(), key))

    def _note(self) -> str | None:
        return self._chance.choice((None, "", "short", "ä" * 50, f"{self._chance.random()}" * 300))
