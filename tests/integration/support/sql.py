"""What the tests of all SQL databases share: a table as another client than the sink's sees it, rows and epochs.

A new database adds a `Table` of its own, and a line in `DATABASES` of tests/integration/sql/conftest.py. Then all tests
of that folder run on it.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any, ClassVar, Protocol

import pyarrow as pa
import pytest

from outfall.recovery import RecoveryConfig
from outfall.testing import LocalDriver
from outfall.testing.tcp_proxy import TcpProxy
from outfall.trace_points import listen

THOROUGH = pytest.mark.thorough
ON_EACH = pytest.mark.parametrize("kind", ["postgres", "mysql"], indirect=True)
"""Marks tests of tests/integration/sql that run on each database by default: what each of them does by itself."""
TABLE = "CREATE TABLE t (id bigint, name text)"
KEYED = "CREATE TABLE t (id bigint PRIMARY KEY, name text, version bigint)"
UPSERT: dict[str, Any] = {"write_mode": "upsert", "key_columns": "id"}

FLIGHTS = (
    "id int, year int, month int, day int, carrier varchar(9), flight int, tailnum varchar(9), origin varchar(9),"
    " dest varchar(9), air_time double precision, distance int"
)
"""The columns of `flights`."""


class Table(ABC):
    """A table `t` in a database that was empty, and what lies in both as another connection sees it.

    Statements are those of all databases: `bigint`, `int`, `smallint`, `text`, `varchar(n)`, `numeric(p, s)`, `date`.
    """

    connector: ClassVar[str]
    """The name of the sink, as Spark's option `sink`."""
    quote: ClassVar[str]
    """What names are quoted with."""
    refused: ClassVar[type[Exception]]
    """The error of `run` for a statement that the server refuses."""
    impatient: ClassVar[str]
    """A statement after which a session does not wait for the locks of a table."""
    codes: ClassVar[dict[str, str]]
    """The server's codes of a `check`, of a `foreign key`, and of a row that is `referred to` and cannot be deleted."""
    counts_given: ClassVar[bool]
    """Whether `rows_changed` of an upsert counts all rows that were given to the table: the server tells no more."""
    moment: ClassVar[str]
    """The type of a moment in microseconds."""
    long_text: ClassVar[str]
    """The type of texts of any length."""
    unchecked: ClassVar[str]
    """A statement after which a session does not check foreign keys."""
    blob: ClassVar[str]
    """The type of bytes."""

    sequences: ClassVar[list[tuple[str, list[Any]]]]
    """Columns for the sequence of changes, with three values in their order."""
    no_sequences: ClassVar[list[tuple[str | None, pa.DataType, str]]]
    """Columns that cannot be one (`None` for a new one), the type of the rows, and what the error says."""
    replayed: ClassVar[list[tuple[str, Any, Any]]]
    """Types of columns, with a value that a row brings and what is read then."""

    # --- statements of another connection

    @abstractmethod
    def run(self, statements: str) -> list[tuple[Any, ...]]:
        """Run statements in a session of their own; return the rows of the last, or those of all, of any type."""

    @abstractmethod
    def read(self, query: str) -> list[tuple[Any, ...]]:
        """Return the rows of one query as values of Python."""

    @abstractmethod
    def connect(self) -> Any:
        """Return a connection of DB-API whose transaction is open until `commit` or `rollback`."""

    # --- the sink, and the ways to it

    @abstractmethod
    def address(self, port: int = 0) -> str:
        """Return the DSN, also through another port of this machine."""

    @abstractmethod
    def location(self, port: int = 0, **options: Any) -> RecoveryConfig:
        """Return a recovery location in the database, also through another port of this machine."""

    @abstractmethod
    def apart(self, name: str) -> dict[str, Any]:
        """Return the option with which a location keeps its log apart from others of the database."""

    @abstractmethod
    def log_tables(self, recovery: Any) -> list[str]:
        """Return the tables of a log, as SQL."""

    @abstractmethod
    def letters_at(self, table: str) -> str:
        """Return the URL of a table with dead letters, for `outfall replay`."""

    @abstractmethod
    def sink(self, **options: Any) -> Any:
        """Return a sink of the table `t`, or of the option `table`, at `address()` or at the option `dsn`."""

    @abstractmethod
    def proxy(self) -> AbstractContextManager[TcpProxy]:
        """Put a proxy before the server; its port is for `address`."""

    def options(self) -> dict[str, str]:
        """Return the options of `sink()`, as Spark and the command line take them."""
        return {"dsn": self.address(), "table": "t"}

    # --- what another session does

    @abstractmethod
    def end_connections(self) -> None:
        """End the connections of the sink."""

    @abstractmethod
    def has_lock_wait(self) -> bool:
        """Return whether a session waits for a lock."""

    @abstractmethod
    def retype(self, **types: str) -> None:
        """Give columns of `t` other types."""

    @abstractmethod
    def copied(self) -> AbstractContextManager[Table]:
        """Copy the database within a block."""

    @abstractmethod
    def losing_commits(self) -> AbstractContextManager[None]:
        """Have the server of our own promise no durability within a block."""

    @abstractmethod
    def read_only(self) -> AbstractContextManager[None]:
        """Let new connections only read within a block."""

    @abstractmethod
    def age_tombstones(self, minutes: str) -> None:
        """Make each tombstone as old as an expression says."""

    @abstractmethod
    def tables(self, pattern: str) -> list[str]:
        """Return the tables, of the sink too, whose name is like a pattern, as SQL."""

    @abstractmethod
    def own(self, name: str) -> str:
        """Return a table of the sink, such as the ledger, as SQL."""

    # --- what lies there

    def ids(self) -> list[int]:
        return [int(number) for (number,) in self.run("SELECT id FROM t ORDER BY id")]

    def rows(self, columns: str = "*") -> list[tuple[Any, ...]]:
        """Return the rows in the order of the first column."""
        return self.read(f"SELECT {columns} FROM t ORDER BY 1")

    def count(self, table: str) -> int:
        return int(self.run(f"SELECT count(*) FROM {table}")[0][0])

    def attempts(self) -> int:
        """How many attempts may still be published."""
        return self.count(self.own("attempts"))

    def staging(self) -> str:
        """Return the only staging table, as SQL."""
        (name,) = self.tables("staging%")
        return name

    def staged(self) -> int:
        """How many rows lie in staging, of whatever attempt."""
        return self.count(self.staging())

    def tombstones_table(self) -> str:
        (name,) = self.tables("tombstones%")
        return name

    def tombstones(self) -> list[tuple[Any, ...]]:
        """Return the deleted keys and their sequences."""
        return self.read(f"SELECT id, _outfall_sequence FROM {self.tombstones_table()} ORDER BY id")

    def letters(self, columns: str = "reason", table: str = "dead") -> list[tuple[Any, ...]]:
        """Return the rows of dead letters, with other columns."""
        found = self.read(f"SELECT {self.quote}row{self.quote}, {columns} FROM {table}")
        return [(json.loads(row), *more) for row, *more in found]

    def refused_ids(self) -> list[int]:
        """Return the ids of the dead letters."""
        return sorted(letter["id"] for letter, _ in self.letters())


Make = Callable[[str], Table]
"""Makes the table with a statement, in an empty database."""


class MortalServer(Protocol):
    """A server of our own, that a test may kill and start again on its data."""

    @property
    def running(self) -> bool: ...

    def start(self) -> None: ...

    def launch(self) -> object: ...

    def kill(self) -> None: ...


@contextmanager
def listening(listener: Callable[[str], None]) -> Iterator[None]:
    """Call a listener at every step that is reached within the block."""
    with ExitStack() as stack:
        stack.callback(listen(listener))
        yield


def mostly_thorough(values: Sequence[Any], default: Container[Any]) -> list[Any]:
    """Return parameters, of which only some belong to the default run."""
    return [
        value if value in default else pytest.param(*(value if isinstance(value, tuple) else [value]), marks=THOROUGH)
        for value in values
    ]


def first(count: int, values: Iterable[Any]) -> list[Any]:
    """Return parameters, of which only the first belong to the default run, beside those that are thorough already."""
    found: list[Any] = []
    for value in values:
        given = value if hasattr(value, "marks") else pytest.param(*(value if isinstance(value, tuple) else [value]))
        if THOROUGH.mark not in [getattr(mark, "mark", mark) for mark in given.marks]:
            count -= 1
            given = given if count >= 0 else pytest.param(*given.values, marks=[*given.marks, THOROUGH], id=given.id)
        found.append(given)
    return found


def rows(*ids: int) -> list[dict[str, Any]]:
    return [{"id": number, "name": f"n{number}"} for number in ids]


def run(sink: Any, recovery: str | Path, epoch: int, *tasks: Sequence[Any]) -> Any:
    """Run one epoch by a driver of its own, as after a restart."""
    return LocalDriver(sink, str(recovery)).run_epoch(epoch, tasks)
