"""What a database implements besides `database`: a dialect of SQL, its catalogue, loading and moving."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, Self, TypeVar

import pyarrow as pa
from pydantic import BaseModel, ConfigDict, Field

from outfall.dead_letter import DeadLetter
from outfall.row_logging import RowLog
from outfall.sql.database import Means, Result, Session, SqlDatabase
from outfall.sql.names import Found, SqlName, ledger_name
from outfall.sql.options import SqlOptions
from outfall.sql.session import AT_ONCE, Statement
from outfall.sql.words import NO_CONFLICTS, Conflicts, Words

if TYPE_CHECKING:
    from outfall.capabilities import WriterInitContext
    from outfall.sql.changes import Problem
    from outfall.sql.keyed import Move, PositionedRows
    from outfall.sql.ledger import StepLedger
    from outfall.sql.staging import Staging
    from outfall.sql.tombstones import Tombstones

Fault = Literal["rows", "mismatch", "table"]
"""What an error says: a row caused it; the table may have other columns than the statement; it may be missing."""


_FAULTS: Mapping[Fault, Means] = {"rows": Means.ROW, "mismatch": Means.MISMATCH, "table": Means.ABSENT}


class StagedTable(BaseModel):
    """One of the tables of staged rows, if a column names them."""

    model_config = ConfigDict(frozen=True)

    found: Found
    """Schema and name of the table in the catalogue of the server."""
    spelled: tuple[str, ...]
    """The names that the rows have for it."""
    rows: int = Field(ge=0)


class StagedRows(BaseModel):
    """The rows of one attempt, in staging."""

    model_config = ConfigDict(frozen=True)

    stage: int
    rows: int = Field(ge=0)
    """The number of rows, to detect before publication that a server crash emptied the staging table."""
    columns: tuple[str, ...]
    """The target's columns for which the rows have values."""
    letters: int = Field(default=0, ge=0)
    """The number of additional rows that staging rejected, which are dead letters."""
    staging: tuple[str, str] | None = None
    """Schema and name of their staging table; `None` in older records: the sink's own."""
    owner: tuple[str, str] | None = None
    """Step and incarnation of the attempt, if a column names the tables: the driver meets new ones by them."""
    keys: tuple[str, ...] = ()
    """The primary key of the tables, if it is what identifies their rows."""
    tables: tuple[StagedTable, ...] = ()
    """The tables of the rows, if a column names them. The first attempt of an epoch in a staging table has those of
    all."""


def compose(template: str, *parts: object, **named: object) -> str:
    """Return a statement: a literal template whose fields are filled with quoted names and other SQL, never values."""
    return template.format(*parts, **named)


class Column(Protocol):
    """A column of a table."""

    @property
    def name(self) -> str: ...

    @property
    def type(self) -> str:
        """The type as SQL."""

    @property
    def definition(self) -> str:
        """The type with its collation, as SQL."""

    @property
    def writable(self) -> bool:
        """Whether rows may have a value for it."""

    @property
    def filled(self) -> str:
        """What it is if it is not writable, with the way out if there is one."""

    @property
    def needed(self) -> bool:
        """Whether an inserted row must have a value for it."""

    def stores_all_of(self, other: Any) -> bool:
        """Return whether each value of a column of staging is moved into this one unchanged, and compares alike."""


class Refusal(Protocol):
    """The reason why a row was rejected."""

    @property
    def reason(self) -> str: ...

    @property
    def code(self) -> str | None:
        """The server's code, if it rejected the row."""

    @property
    def detail(self) -> str | None: ...

    @property
    def do(self) -> str:
        """The remedy."""

    @property
    def may_be_accepted_later(self) -> bool:
        """Whether the row may be accepted after others: those that its foreign key or unique value needs."""

    def summary(self, log: RowLog) -> str:
        """Return reason, detail and code in one sentence, with as much of the row as `log_rows` permits."""


@dataclass(frozen=True)
class PlainRefusal:
    """A reason without values of rows. See `Refusal`."""

    reason: str
    code: str | None = None
    detail: str | None = None
    do: str = "correct or leave out the row, or change the table"
    may_be_accepted_later: bool = False

    def summary(self, log: RowLog) -> str:
        """Return the reason, with the code of the server."""
        return self.reason if self.code is None else f"{self.reason} (error {self.code})"


class Load(ABC):
    """The rows of one attempt, loaded into staging in one transaction, which begins with the first batch."""

    session: Session | None = None
    """The connection, after the first batch."""
    rows: int = 0
    """The number of rows in staging."""
    dead_letters: list[DeadLetter]
    """The rows that the sink or staging rejected."""
    required: Sequence[str] = ()
    """The columns for which staging rejects NULL, also of removals."""

    def problems(self, batch: pa.RecordBatch) -> Mapping[int, Problem]:
        """Return the rows that the target cannot find by their key, in their order. Called before `write`."""
        return {}

    @abstractmethod
    def write(self, batch: pa.RecordBatch) -> int:
        """Send rows; return the number of bytes.

        Raises `ValueRefusedError`, which names the rejected row, or the driver's error.
        """

    @abstractmethod
    def finish(self) -> int:
        """Wait until all sent rows are in staging; return the number of bytes since `write`. Raises like `write`."""

    @abstractmethod
    def commit(self) -> None:
        """Commit the transaction."""

    @abstractmethod
    def close(self) -> None:
        """Return the connection. What is not committed is rolled back."""


class DirectLoad(Protocol):
    """The rows of one task, sent straight into the table, in the transaction of the caller."""

    @property
    def stored(self) -> int:
        """The number of rows that are in the table once it is finished, without those that a trigger skipped."""

    def write(self, batch: pa.RecordBatch, /) -> int:
        """Send rows, like `Load.write`."""

    def finish(self) -> int:
        """Wait until the table has all sent rows, like `Load.finish`."""

    def abort(self) -> None:
        """Stop, because the transaction has ended."""


class Dialect(ABC):
    """The SQL of one database for one sink: how it names, describes, creates, loads and moves what the base decides."""

    sink: ClassVar[str]
    """The class of the sink, for advice."""
    words: Words
    """What differs as text."""
    volatile: ClassVar[str] = "a server crash empties both tables"
    """Why staged rows can be missing."""
    has_conflicts: ClassVar[bool] = False
    """Whether `conflicts` depends on the catalogue."""
    adds_columns: bool = True
    """Whether columns that the table does not have can be added."""
    options: SqlOptions
    database: SqlDatabase

    def quote(self, column: str) -> str:
        """Quote a column by the driver's own means, for a statement with parameters."""
        return self.words.quote(column)

    @abstractmethod
    def parse(self, text: str) -> SqlName:
        """Return the table that a user names. Raises `ConfigurationError` if the text is not a valid name."""

    @abstractmethod
    def columns(self, session: Any, table: SqlName) -> Sequence[Column]:
        """Read the columns of a table, in their order; none if it is missing."""

    def with_options(self, options: Any) -> Self:
        """Return the dialect with other options of the same sink. Needed for `table_column` only, as the next three."""
        raise NotImplementedError

    def find_all(self, session: Any, tables: Sequence[Any]) -> Sequence[Found]:
        """Return schema and name of tables as the server's catalogue has them, or would have them."""
        raise NotImplementedError

    def deletes_elsewhere(self, session: Any, table: Any) -> str | None:
        """Return why a DELETE of all rows of a table can reach rows of other tables; `None` if it cannot."""
        raise NotImplementedError

    def read_ahead(self, session: Any, tables: Sequence[Any]) -> None:
        """Read with few queries what `columns` will be asked for."""

    def read_checked(self, session: Any, tables: Sequence[Any], keys: Sequence[Sequence[str]]) -> None:
        """Read with few round trips what `check_relation` and `check_keys` will ask for, of tables with their keys."""

    def in_ledger(self, found: Found) -> str:
        """Return the name in the ledger of a table that the server has found."""
        return ledger_name(*found)

    def exists(self, session: Any, table: SqlName) -> bool:
        """Return whether a table exists."""
        return bool(self.columns(session, table))

    @abstractmethod
    def is_same(self, session: Any, table: SqlName, other: SqlName) -> bool:
        """Return whether two names are those of one existing table."""

    @abstractmethod
    def primary_key(self, session: Any, table: Any) -> Sequence[str]:
        """Return the columns of a table's primary key; none if it has none."""

    def row_key(self, session: Any) -> Sequence[str]:
        """Return the columns that identify a row in messages: those that an option names, or the primary key."""
        options = self.options
        if options.key_columns or options.table is None:
            return options.key_columns
        return self.primary_key(session, self.parse(options.table))

    @abstractmethod
    def check_relation(self, session: Any, table: SqlName) -> None:
        """Reject a table that would lose or hide rows without an error. A missing table passes. Changes nothing."""

    @abstractmethod
    def check_keys(self, session: Any, table: SqlName, given: Sequence[str] | None) -> None:
        """Reject a table in which an upsert would not find exactly the row of a key. Changes nothing.

        `given` are the columns of the rows, if they are known.
        """

    @abstractmethod
    def arrow_type(self, column: Any) -> pa.DataType:
        """Return the type of rows for a column of the table."""

    @abstractmethod
    def new_type(self, kind: pa.DataType, name: str) -> str:
        """Return the type of a new column, as SQL. Raises `ConfigurationError` if no type preserves the values."""

    @abstractmethod
    def why_not(self, kind: pa.DataType, column: Any) -> str | None:
        """Return why values of a type cannot be stored in a column, with the remedy; `None` if they can."""

    def why_no_sequence(self, kind: pa.DataType, column: Any) -> str | None:
        """Return why a column cannot store the sequence of changes, with the remedy; `None` if it can.

        The column orders values of the type in one way only, and never regards different values as equal. `column` is
        `None` for one that the sink creates. Needed for `write_mode="changes"` only.
        """
        raise NotImplementedError

    def why_no_column(self, name: str) -> str | None:
        """Return why a new column cannot have a name; `None` if it can."""
        return None

    @abstractmethod
    def create_table(
        self, table: SqlName, columns: pa.Schema, key: Sequence[str] = (), *, waiting: bool = False
    ) -> str:
        """Return the statement that creates a table; with `waiting` one whose rows matter only until an epoch ends."""

    @abstractmethod
    def add_column(self, table: SqlName, column: pa.Field) -> str:
        """Return the statement that adds a nullable column."""

    def after_delete(self, session: Any, table: SqlName) -> str | None:
        """Return what of the table can have kept rows from being deleted; `None` if nothing can."""
        return "a trigger"

    @abstractmethod
    def ledger(self, incarnation: str, step_id: str, found_in: str | None) -> StepLedger:
        """Return the ledger of a step. `found_in` is the schema of the target, if it is known."""

    @abstractmethod
    def staging(self, step_id: str, target: SqlName, found_in: str | None) -> Staging:
        """Return the staging of a step. `target` is the table, and `found_in` its schema, if it is known."""

    def emptied(self, session: Any, table: SqlName, attempts: str) -> bool:
        """Remove all rows of a staging table at once if that is worthwhile; return whether none is left.

        Rows remain if one of them may still be published: `attempts` is the table of attempts.
        """
        return False

    def discard(self, session: Any, column: str, table: SqlName, attempts: str) -> None:
        """Remove the rows of attempts that are not registered in the table `attempts`. No lock may be waited for."""
        statement = compose(
            "DELETE FROM {0} WHERE NOT EXISTS (SELECT 1 FROM {1} AS live WHERE live.stage = {0}.{2})",
            table.sql,
            attempts,
            column,
        )
        session.later(statement)

    def insert_dead_letters(self, session: Any, table: SqlName, rows: pa.RecordBatch) -> None:
        """Insert dead letters, whose texts may be as long as any row, in the caller's transaction."""
        names = ", ".join(map(self.quote, rows.schema.names))
        one = f"({', '.join(['%s'] * rows.num_columns)})"
        for first in range(0, rows.num_rows, AT_ONCE):
            some = rows.slice(first, AT_ONCE).to_pylist()
            statement = compose("INSERT INTO {} ({}) VALUES {}", table.sql, names, ", ".join([one] * len(some)))
            session.execute(statement, [value for row in some for value in row.values()])

    def tombstones(self, target: SqlName) -> Tombstones:
        """Return the sequences of deleted keys of a table. Needed for `write_mode="changes"` only."""
        raise NotImplementedError

    def check_own(self, session: Any, table: SqlName) -> None:
        """Reject one of the sink's own tables if another role created it and a privilege is missing."""

    @abstractmethod
    def load(
        self,
        staging: SqlName,
        target: SqlName,
        schema: pa.Schema,
        stage: int,
        context: WriterInitContext,
        session: Any = None,
    ) -> Load:
        """Return a load of one attempt into staging, with its number in each row. Its rows are for the target.

        `session` is one of the caller's, from `SqlDatabase.task`, for several loads of a task. They are for tables with
        the columns of the target then, and the caller ends the session.
        """

    def direct(self, session: Any, table: Any, schema: pa.Schema, columns: Sequence[Any]) -> DirectLoad:
        """Return a load of rows with a schema into columns of the table, which the session has locked.

        Raises `TargetError` if the server would not keep the rows in one transaction. Needed for parts only.
        """
        raise NotImplementedError

    def conflicts(self, session: Any, table: SqlName, columns: Sequence[str]) -> Conflicts:
        """Return which rows replace others of their key, by the indexes of the table, with columns of the rows."""
        return NO_CONFLICTS

    def rows_changed(self, session: Any, statement: str, result: Result) -> int:
        """Return the number of rows that a statement has deleted, inserted or updated."""
        return result.rowcount

    def check_together(self, session: Any, moves: Sequence[Move]) -> None:
        """Reject tables that the server cannot lock in one transaction. Changes nothing. Raises `TargetError`."""

    def all_changed(self, session: Any, statements: Sequence[Statement]) -> list[int]:
        """Execute statements that move rows, and return how many rows each has changed."""
        results = zip(statements, session.each(statements), strict=True)
        return [self.rows_changed(session, text, result) for (text, _), result in results]

    @abstractmethod
    def positioned_rows(self, session: Any, move: Move) -> PositionedRows:
        """Return the rows of a move by position, for moving those that the table accepts."""

    @abstractmethod
    def row_text(self, session: Any, staging: SqlName, shown: Mapping[str, str], place: str) -> str:
        """Return a query for the JSON text of the staged row at an address: the names of columns, and their source."""

    def faults(self, error: Exception) -> frozenset[Fault]:
        """Return what one of the driver's errors says of the rows and the table."""
        means = self.database.means(error)
        return frozenset(fault for fault, meant in _FAULTS.items() if meant in means)

    @abstractmethod
    def refusal(self, error: Exception) -> Refusal:
        """Return the reason why a row was rejected, from an error with the fault `rows`."""

    def stored_refusal(self, reason: str, code: str | None, detail: str | None) -> Refusal:
        """Return the reason of a dead letter."""
        return PlainRefusal(reason, code, detail)


R = TypeVar("R", bound=Refusal)


def isolate(first: int, after: int, attempt: Callable[[int, int], R | None]) -> Iterator[tuple[int, R]]:
    """Apply all accepted rows, and yield the rejected ones, lowest position first.

    Takes about 2 · log2(after - first) attempts for each rejected row, and one attempt if none is rejected. The same
    rows in the same order give the same result. `attempt` applies the rows from a position to another (exclusive); or
    applies none and returns the reason.
    """
    spans = [(first, after)] if first < after else []
    while spans:
        low, high = spans.pop()
        refusal = attempt(low, high)
        if refusal is None:
            continue
        if high - low == 1:
            yield low, refusal
            continue
        middle = (low + high) // 2
        spans += [(middle, high), (low, middle)]


def among(stages: Mapping[int, Any] | Sequence[int]) -> str:
    """Return the condition that a column, before it, is one of these numbers."""
    return f"IN ({', '.join(str(int(stage)) for stage in stages) or 'NULL'})"


def count_by_stage(session: Session, column: str, table: SqlName, stages: Collection[int]) -> dict[int, int]:
    """Return the number of rows of each attempt in a table, whose column has the attempt's number."""
    query = compose("SELECT {0}, count(*) FROM {1} WHERE {0} {2} GROUP BY 1", column, table.sql, among(list(stages)))
    found: dict[int, int] = dict(session.execute(query).fetchall())
    return {stage: found.get(stage, 0) for stage in stages}
