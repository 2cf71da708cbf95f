"""Tables in PostgreSQL or MySQL: changed by random transactions, or the copies of such tables."""

from __future__ import annotations

import json
import random
import subprocess
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import psycopg
import pymysql

from tests.integration.support import mysql, postgres
from tests.peers.support.connect import SIGNALS, mysql_connector, postgres_connector
from tests.peers.support.order_copies import STAYING, Copy

_KEYS = 400
_VALUES = {"decimal.handling.mode": "string", "time.precision.mode": "isostring"}


@dataclass(frozen=True)
class Table:
    """A table: the kinds of its columns, which are those of `KINDS`, and the number of its first columns in the key.

    The first column is a number, by which rows stay or not.
    """

    name: str
    columns: Mapping[str, str]
    key_columns: int = 1
    rows: int = _KEYS // 2
    """How many it has at first."""

    @property
    def key(self) -> list[str]:
        """The columns of the key."""
        return list(self.columns)[: self.key_columns]

    @property
    def long(self) -> str | None:
        """The column with long values, which PostgreSQL keeps elsewhere."""
        return next((name for name, kind in self.columns.items() if kind == "long"), None)

    def spark(self) -> str:
        """Return the columns with Spark's types."""
        return ", ".join(f"`{name}` {_SPARK[kind]}" for name, kind in self.columns.items())


_SPARK = {
    "number": "BIGINT", "code": "STRING", "text": "STRING", "amount": "DECIMAL(12,2)", "moment": "TIMESTAMP",
    "long": "STRING",
}  # fmt: skip
ORDERS = Table("orders", {"id": "number", "city": "text", "amount": "amount", "at": "moment", "note": "long"})
SHOP = (
    ORDERS,
    Table("OrderItems", {"id": "number", "Line No": "number", "amount": "amount", "note": "long"}, key_columns=2),
    Table("select", {"id": "number", "group": "text", "seen": "moment"}),
    Table("codes", {"number": "number", "code": "code", "city": "text"}, key_columns=2),
    Table("refunds", {"id": "number", "amount": "amount", "reason": "text"}, rows=0),
)
"""Tables whose names and columns need quotes, with keys of several columns, and one without rows at first."""
ADDED = Table("Added", {"id": "number", "Line No": "number", "city": "text", "note": "long"})
"""One that the source gets later."""


class Tables(Copy):
    """Tables in a database of their own: the source, or copies."""

    keeps_values = True
    pause = 0.2
    url: str
    """The database, for a sink."""
    schema: str
    """What is before a table in the name of its topic."""
    types: ClassVar[Mapping[str, str]]
    """The type of each kind of column."""
    shown: ClassVar[Mapping[str, str]]
    """Expressions with the same texts in each kind of database, for kinds that differ."""
    quote: ClassVar[str]
    upsert: ClassVar[str]
    """What an INSERT does with a row that is there, before the columns that it sets."""
    newer: ClassVar[str]
    """A column's new value there."""
    moment: ClassVar[str]
    one_snapshot: ClassVar[tuple[str, ...]]
    """What begins a transaction whose queries see the same moment."""

    def __init__(self, tables: Sequence[Table]) -> None:
        """Keep the tables, which are not made yet."""
        self.tables = list(tables)
        self.former: list[Table] = []
        """Tables that have got other names."""

    @abstractmethod
    def connect(self) -> Any:
        """Return a connection of Python's database API."""

    @abstractmethod
    def read(self, query: str) -> list[tuple[str, ...]]:
        """Return rows as the server's own client prints them; none if the table is not there."""

    @abstractmethod
    def connector(self, name: str, kafka: str) -> dict[str, str]:
        """Return the settings of a connector for the tables, and prepare the database for it.

        No transaction is open.
        """

    @abstractmethod
    def newest_epoch(self) -> str:
        """Return the query for the newest epoch in the ledger; NULL before the first one."""

    def publish(self, name: str, table: Table) -> None:
        """Let a connector's changes have those of a table that is made later."""

    def quoted(self, name: str) -> str:
        return f"{self.quote}{name}{self.quote}"

    def create(self, table: Table, *more: str) -> list[str]:
        """Return what makes a table. `more` are further columns, with their types."""
        columns = [f"{self.quoted(name)} {self.types[kind]}" for name, kind in table.columns.items()]
        key = f"PRIMARY KEY ({', '.join(map(self.quoted, table.key))})"
        return [f"CREATE TABLE {self.quoted(table.name)} ({', '.join([*columns, *more, key])})"]

    def make_copies(self, tables: Sequence[Table]) -> None:
        """Make the tables for the copies of several."""
        self.run(*(statement for table in tables for statement in self.create(table, "seq numeric(38)")))

    def options(self) -> dict[str, Any]:
        # A killed worker repeats updates of rows that were deleted since, and what they keep is nowhere then.
        (one, *more) = self.tables
        which = {"table": one.name, "key_columns": one.key, "create_table": "if_missing"}
        many = {
            "table_column": "table", "unknown_columns": "leave_out_null",
            "allowed_tables": [self.quoted(table.name) for table in [*self.tables, *self.former]],
        }  # fmt: skip
        return {
            "dsn": self.url, "write_mode": "changes", "operation_column": "op", "sequence_column": "seq",
            "sequence_kind": "kafka", "dead_letter_table": "refused", **(many if more else which),
        }  # fmt: skip

    def rows(self) -> list[tuple[str, ...]]:
        if len(self.tables) == 1:
            return self._rows(self.tables[0])
        return sorted((table.name, *row) for table in self.tables for row in self._rows(table))

    def staying(self) -> int:
        counts = (
            f"(SELECT count(*) FROM {self.quoted(table.name)} WHERE {self.quoted(table.key[0])} < {STAYING})"
            for table in self.tables
        )
        ((count,),) = self.read(f"SELECT {' + '.join(counts)}") or [("0",)]
        return int(count)

    def send_all_values(self) -> None:
        """Let a change of a table bring all values of its row. The default is that it does."""

    def run(self, *statements: str) -> None:
        """Run statements in a transaction."""
        with closing(self.connect()) as connection:
            for statement in statements:
                connection.cursor().execute(statement)
            connection.commit()

    def upserts(self, table: Table) -> str:
        """Return what inserts a row or updates all but its key and its long value. Moments are the server's."""
        values = (self.moment if kind == "moment" else "%s" for kind in table.columns.values())
        changed = [name for name, kind in table.columns.items() if name not in table.key and kind != "long"]
        sets = ", ".join(f"{self.quoted(name)} = {self.newer.format(self.quoted(name))}" for name in changed)
        conflict = self.upsert.format(", ".join(map(self.quoted, table.key)))
        return f"INSERT INTO {self.quoted(table.name)} VALUES ({', '.join(values)}) {conflict} {sets}"

    def _rows(self, table: Table) -> list[tuple[str, ...]]:
        shown = ", ".join(self.shown.get(kind, "{}").format(self.quoted(name)) for name, kind in table.columns.items())
        keys = ", ".join(map(self.quoted, table.key))
        return self.read(f"SELECT {shown} FROM {self.quoted(table.name)} ORDER BY {keys}")


class PostgresTables(Tables):
    """In PostgreSQL, whose long notes are in a table of their own: an update that does not change one leaves it out."""

    sink = "postgres"
    types: ClassVar[Mapping[str, str]] = {
        "number": "bigint", "code": "varchar(20)", "text": "text", "amount": "numeric(12,2)", "moment": "timestamptz",
        "long": "text",
    }  # fmt: skip
    shown: ClassVar[Mapping[str, str]] = {
        "moment": "(extract(epoch FROM {}) * 1000000)::bigint", "long": "encode(sha256(convert_to({}, 'UTF8')), 'hex')"
    }  # fmt: skip
    quote = '"'
    upsert = "ON CONFLICT ({}) DO UPDATE SET"
    newer = "excluded.{}"
    moment = "clock_timestamp()"
    one_snapshot = ("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ",)
    schema = "public"

    def __init__(self, server: postgres.Server, tables: Sequence[Table] = (ORDERS,)) -> None:
        """Make a database."""
        super().__init__(tables)
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

    def create(self, table: Table, *more: str) -> list[str]:
        made = super().create(table, *more)
        long = f"ALTER TABLE {self.quoted(table.name)} ALTER {self.quoted(table.long or '')} SET STORAGE EXTERNAL"
        return made if table.long is None else [*made, long]

    def send_all_values(self) -> None:
        self.run(*(f"ALTER TABLE {self.quoted(table.name)} REPLICA IDENTITY FULL" for table in self.tables))

    def connector(self, name: str, kafka: str) -> dict[str, str]:
        # A new slot would wait for open transactions, and what is written before its publication is never delivered.
        listed = ", ".join(self.quoted(table.name) for table in self.tables)
        self.run(f"CREATE PUBLICATION {name} FOR TABLE {listed}, debezium_signal")
        self.run(f"SELECT pg_create_logical_replication_slot('{name}', 'pgoutput')")
        database = str(psycopg.conninfo.conninfo_to_dict(self.url)["dbname"])
        tables = ",".join(f"public.{table.name}" for table in self.tables)
        given = postgres_connector("127.0.0.1", self._server.port, database, tables)
        return given | _VALUES | {"topic.prefix": name, "slot.name": name, "publication.name": name}

    def newest_epoch(self) -> str:
        return "SELECT max(epoch) FROM outfall.ledger"

    def publish(self, name: str, table: Table) -> None:
        self.run(f"ALTER PUBLICATION {name} ADD TABLE {self.quoted(table.name)}")


class MySQLTables(Tables):
    """In MySQL."""

    sink = "mysql"
    types: ClassVar[Mapping[str, str]] = {
        "number": "bigint", "code": "varchar(20)", "text": "text", "amount": "decimal(12,2)",
        "moment": "timestamp(6) NULL", "long": "longtext",
    }  # fmt: skip
    shown: ClassVar[Mapping[str, str]] = {
        "moment": "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', {})", "long": "SHA2({}, 256)"
    }  # fmt: skip
    quote = "`"
    upsert = "AS new ON DUPLICATE KEY UPDATE"
    newer = "new.{}"
    moment = "SYSDATE(6)"
    one_snapshot = ("START TRANSACTION WITH CONSISTENT SNAPSHOT",)

    def __init__(self, server: mysql.MySQLServer, tables: Sequence[Table] = (ORDERS,)) -> None:
        """Make a database."""
        super().__init__(tables)
        self._server = server
        self.schema = server.new_database()
        self.url = f"mysql://{server.user}@{server.host}:{server.port}/{self.schema}?tls=prefer"

    def connect(self) -> Any:
        at = {"host": self._server.host, "port": self._server.port, "user": self._server.user}
        return pymysql.connect(**at, database=self.schema)

    def read(self, query: str) -> list[tuple[str, ...]]:
        try:
            return self._server.run(f"SET time_zone = '+00:00'; {query}", self.schema)
        except mysql.RefusedError as error:
            if "doesn't exist" not in str(error):
                raise
            return []

    def connector(self, name: str, kafka: str) -> dict[str, str]:
        tables = ",".join(table.name for table in self.tables)
        given = mysql_connector(self._server.host, self._server.port, self.schema, tables, kafka)
        history = {"schema.history.internal.kafka.topic": f"{name}.history"}
        return given | _VALUES | history | {"topic.prefix": name}

    def newest_epoch(self) -> str:
        # The row of all tables has the epoch; those of each say which steps are in this database.
        here = f"SELECT incarnation FROM outfall.ledger WHERE target LIKE '{self.schema}.%'"
        return f"SELECT max(epoch) FROM outfall.ledger WHERE incarnation IN ({here})"


class ChangedTables:
    """Changes tables by rows of each kind of change, in transactions of any size over any of them."""

    def __init__(self, source: Tables, chance: random.Random) -> None:
        """Create the tables with rows."""
        self.source = source
        self._chance = chance
        source.run(SIGNALS, *(statement for table in source.tables for statement in source.create(table)))
        self._connection = source.connect()
        self._cursor = self._connection.cursor()
        for table in source.tables:
            self.fill(table, range(table.rows))

    def fill(self, table: Table, numbers: Iterable[int]) -> None:
        """Insert rows into a table."""
        for number in numbers:
            self._upsert(table, number)
        self._connection.commit()

    @contextmanager
    def open_transaction(self) -> Iterator[None]:
        """Change rows in a transaction that is open meanwhile: its changes are written before, and delivered after."""
        with closing(self.source.connect()) as connection:
            for table in self.source.tables:
                text = next(name for name, kind in table.columns.items() if kind in ("text", "long"))
                name, column, key = map(self.source.quoted, (table.name, text, table.key[0]))
                connection.cursor().execute(f"UPDATE {name} SET {column} = 'late' WHERE {key} % 7 = 0")
            yield
            connection.commit()

    def change(self, transactions: int, *, removing: bool = True) -> None:
        """Run random transactions, some of which are rolled back. `removing`: whether keys are removed or changed."""
        for _ in range(transactions):
            for _ in range(self._chance.choice((1, 1, 2, 5, 40))):
                self._any(self._chance.choice(self.source.tables), removing)
            if self._chance.random() < 0.1:
                self._connection.rollback()
            else:
                self._connection.commit()

    def snapshot(self, condition: str | None = None, of: Sequence[Table] = ()) -> None:
        """Ask the connector for an incremental snapshot of all rows, or of those that meet a condition.

        `of` are the tables; without any it is all.
        """
        tables = [f"{self.source.schema}.{table.name}" for table in of or self.source.tables]
        given: dict[str, Any] = {"data-collections": tables, "type": "incremental"}
        if condition is not None:
            given["additional-conditions"] = [{"data-collection": table, "filter": condition} for table in tables]
        data = json.dumps(given)
        name = f"s{self._chance.random()}"
        self._cursor.execute("INSERT INTO debezium_signal VALUES (%s, 'execute-snapshot', %s)", (name, data))
        self._connection.commit()

    def close(self) -> None:
        self._connection.close()

    def _any(self, table: Table, removing: bool) -> None:
        number = self._chance.randrange(_KEYS)
        kind = self._chance.random()
        if kind < 0.5 or number < STAYING:
            self._upsert(table, number)
        elif kind < 0.65 or not removing:
            column = next(name for name in table.columns if name not in table.key)
            of = table.columns[column]
            self._run("UPDATE {} SET {} = %s WHERE {}", table, [column], number, self._value(of))
        elif kind < 0.9:
            self._run("DELETE FROM {} WHERE {}", table, [], number)
        else:
            self._change_key(table, number, self._chance.randrange(STAYING, _KEYS))

    def _change_key(self, table: Table, number: int, other: int) -> None:
        self._run("SELECT 1 FROM {} WHERE {}", table, [], other)
        if self._cursor.fetchone() is None:
            # Else PostgreSQL would not send a long note, and nothing has the new key's.
            long = [] if table.long is None else [self.source.quoted(table.long)]
            same = (f"{name} = concat({name}, '')" for name in long)
            sets = ", ".join([*(f"{self.source.quoted(name)} = %s" for name in table.key), *same])
            self._run(f"UPDATE {{}} SET {sets} WHERE {{}}", table, [], number, *_key(table, other))

    def _run(self, statement: str, table: Table, columns: Sequence[str], number: int, *values: object) -> None:
        where = " AND ".join(f"{self.source.quoted(name)} = %s" for name in table.key)
        names = [self.source.quoted(name) for name in (table.name, *columns)]
        self._cursor.execute(statement.format(*names, where), (*values, *_key(table, number)))

    def _upsert(self, table: Table, number: int) -> None:
        rest = [self._value(kind) for kind in list(table.columns.values())[table.key_columns :] if kind != "moment"]
        self._cursor.execute(self.source.upserts(table), (*_key(table, number), *rest))
        if table.long is not None and self._chance.random() < 0.2:
            self._run("UPDATE {} SET {} = %s WHERE {}", table, [table.long], number, self._note())

    def _value(self, kind: str) -> object:
        if kind == "number":
            return self._chance.randrange(10**9)
        if kind == "amount":
            return round(self._chance.uniform(-1e6, 1e6), 2)
        return self._note() if kind == "long" else f"c{self._chance.random()}"

    def _note(self) -> str | None:
        return self._chance.choice((None, "", "short", "ä" * 50, f"{self._chance.random()}" * 300))


def _key(table: Table, number: int) -> list[object]:
    """Return the key with a number: further columns follow from it."""
    kinds = list(table.columns.values())[1 : table.key_columns]
    return [number, *(number % 3 if kind == "number" else f"Code {number % 5}" for kind in kinds)]
