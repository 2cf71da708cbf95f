"""A third database for the base of SQL sinks: SQLite in memory, where real SQL publishes an epoch in milliseconds.

A constraint of the table rejects rows, as a server's does. `ties` names staged rows that no sequence
orders, and `skips` rows that a trigger
keeps out of the table.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from outfall.capabilities import CommitRequest, CommitterInitContext
from outfall.row_logging import RowLog
from outfall.sql.changes import Problem, tied
from outfall.sql.database import Means, SqlDatabase
from outfall.sql.dead_letters import dead_letters
from outfall.sql.dialect import Dialect, StagedRows, among, compose
from outfall.sql.keyed import Move, PositionedRows
from outfall.sql.ledger import StepLedger
from outfall.sql.names import SqlName
from outfall.sql.options import MARKER, OPERATION, ROW, STAGE, SqlOptions
from outfall.sql.publish import EpochCommitter
from outfall.sql.session import BatchingSession, Fetched, Statement
from outfall.sql.staging import Staging
from outfall.sql.statements import Statements
from outfall.sql.tables import EpochTable, StepTables
from outfall.sql.tombstones import Tombstones
from outfall.sql.words import Removed, Selection, StandardWords

OURS, OTHERS = "a" * 32, "b" * 32
EPOCH, GENERATION = 4, 9


class Name(SqlName):
    @property
    def quoted(self) -> str:
        return f'"{self.schema or "main"}"."{self.name}"'


@dataclass(frozen=True)
class SqliteColumn:
    name: str
    type: str
    writable: bool = True
    filled: str = "a column that the server fills"
    needed: bool = False

    @property
    def definition(self) -> str:
        return self.type

    def stores_all_of(self, other: SqliteColumn) -> bool:
        return self.type == other.type


@dataclass(frozen=True)
class SqliteRefusal:
    reason: str
    code: str | None = None
    detail: str | None = None
    do: str = "correct the row"
    may_be_accepted_later: bool = False

    def summary(self, log: RowLog) -> str:
        return self.reason


class SqliteSession(BatchingSession):
    errors = sqlite3.Error
    any_text = True

    def __init__(self, connection: sqlite3.Connection) -> None:
        super().__init__()
        self.connection = connection
        self.statements: list[str] = []

    def alone(self, statement: str, given: Any) -> Fetched:
        self.statements.append(statement)
        text = re.sub(r"%\((\w+)\)s", r":\1", statement).replace("%s", "?").replace("%%", "%")
        cursor = self.connection.execute(text.replace(" FOR UPDATE", ""), given)
        return Fetched.of(cursor)

    def is_busy(self) -> bool:
        return self.connection.in_transaction


class SqliteDatabase(SqlDatabase):
    errors = sqlite3.Error
    locks = "the list of processes"
    sink = "SqliteSink"

    def __init__(self, options: SqlOptions) -> None:
        self.options = options
        connection = sqlite3.connect(":memory:", isolation_level=None)
        connection.execute("ATTACH ':memory:' AS outfall")
        connection.create_function("greatest", 2, max)
        connection.create_function("now", 0, lambda: 0)
        self.session = SqliteSession(connection)
        self.commits: list[Callable[[], None]] = []
        """What happens at the next COMMITs, after each has taken effect."""

    @contextmanager
    def transaction(
        self, *, undo: bool = False, foreseen: Sequence[Statement] = (), looks: bool = False
    ) -> Iterator[SqliteSession]:
        self.session.begin([("BEGIN", ())], foreseen, looks=looks)
        try:
            yield self.session
        except BaseException:
            self.session.finish("ROLLBACK")
            raise
        self.session.finish("ROLLBACK" if undo else "COMMIT")
        if self.commits and not undo:
            self.commits.pop(0)()

    @contextmanager
    def making(self, session: Any, names: Sequence[str]) -> Iterator[None]:
        yield

    def address(self) -> tuple[str, str]:
        return "", ""

    def database_name(self) -> str:
        return "here"

    def connection(self) -> AbstractContextManager[SqliteSession]:
        return nullcontext(self.session)

    def log_url(self) -> None:
        return None

    def means(self, error: BaseException) -> Means:
        parts = {"lost": Means.PASSES, "no such table": Means.ABSENT, "no ": Means.MISMATCH}
        found = Means.ROW if isinstance(error, sqlite3.IntegrityError) else Means(0)
        for part, means in parts.items():
            found |= means if part in str(error) else Means(0)
        return found

    def said(self, error: Any, *, full: bool) -> str:
        return str(error)

    def remedy(self, error: Any) -> None:
        return None

    def unavailable(self) -> str:
        return "look for it"

    def access(self, error: Any) -> str:
        return "correct it"


class SqliteWords(StandardWords):
    make_schema = "ATTACH ':memory:' AS {}"
    schemas = "pragma_database_list WHERE name"
    name = "TEXT NOT NULL"
    time = "INT NOT NULL DEFAULT 0"
    own = {STAGE: "INT", ROW: "INT", MARKER: "INT", OPERATION: "TEXT"}
    tombstones = ("CREATE TABLE {table} ({fields}, {deleted} INT NOT NULL, PRIMARY KEY ({keys}))",)
    altered = ""
    forget = "DELETE FROM {table} WHERE rowid IN (SELECT rowid FROM {table} WHERE {deleted} < -%s LIMIT %s)"
    leaves = True
    bury = (
        "ON CONFLICT ({keys}) DO UPDATE SET {buried} = excluded.{buried}, {deleted} = excluded.{deleted}"
        " WHERE target.{buried} < excluded.{buried}"
    )
    now = "%(now)s"
    clock = "now()"
    lock = "UPDATE {ledger} SET step = step WHERE target IN (%(name)s, %(table)s)"
    address = ("rowid",)
    place = "{0}"

    def __init__(self) -> None:
        self.out: set[str] = set()
        """The staged rows that are not moved."""

    def quote(self, column: str) -> str:
        return f'"{column}"'

    def all(self, stages: Sequence[int]) -> Selection:
        return Selection(f'"{STAGE}" {among(stages)} AND {self._kept()}', every=True)

    def at(self, places: Sequence[str]) -> Selection:
        return Selection(f"rowid IN ({', '.join(map(str, places))}) AND {self._kept()}")

    def _kept(self) -> str:
        return f"rowid NOT IN ({', '.join(self.out) or '-1'})"

    def removed(self, statements: Statements, rows: Selection) -> Removed:
        names = [*statements.keys, *filter(None, [statements.options.order_column])]
        marked = [f'removed."{MARKER}"'] if statements.options.delete_marker else []
        values = {name: f'removed."{name}"' for name in names}
        return Removed(statements.staging, values, [rows.condition.replace("rowid", "removed.rowid"), *marked])

    def content(self, removal: str, columns: Sequence[str]) -> str:
        return f"CASE WHEN {removal} THEN '-' ELSE json_array({', '.join(columns)}) END"


class SqlitePositionedRows(PositionedRows):
    def __init__(self, session: SqliteSession, move: Move) -> None:
        super().__init__(session, move)
        query = f"SELECT rowid FROM {move.staging.sql} WHERE {move.all.condition} ORDER BY id"
        self._rows = [row for (row,) in session.execute(query).fetchall()]
        self.count = len(self._rows)

    def _between(self, low: int, high: int) -> Selection:
        return self._move.dialect.words.at(list(map(str, self._rows[low:high])))

    def _at(self, place: str) -> Selection:
        return self._move.dialect.words.at([place])

    def place(self, position: int) -> str:
        return str(self._rows[position])


class Appends(Statements):
    """Inserts each row in every write mode."""

    def moving(self, rows: Selection) -> list[str]:
        return [self.append(rows)]


class SqliteMove(Move):
    """A move whose ties and skipped rows a test decides."""

    dialect: SqliteDialect

    def statements(self, session: Any) -> Statements:
        return Appends(self.dialect.words, self.dialect.options, self.table, self.staging, self.columns)

    def inapplicable(self, session: Any, most: int) -> tuple[Problem, Sequence[str]]:
        left = [place for place in self.dialect.ties if place not in self.dialect.words.out]
        return tied(self.dialect.options), left[:most]

    def leave_out(self, session: Any, places: Sequence[str]) -> None:
        self.dialect.words.out |= set(places)


class SqliteCommitter(EpochCommitter):
    def move_of(self, table: EpochTable) -> Move:
        move = SqliteMove(self._dialect, table.tables.target, self._staging.table, table.attempts)
        move.stale = self._dialect.stale
        self._dialect.words.out = set(map(str, self._dialect.skips))
        return move


class SqliteDialect(Dialect):
    sink = "SqliteSink"
    words: SqliteWords
    volatile = "the memory was lost"

    def __init__(self, options: SqlOptions) -> None:
        self.words = SqliteWords()
        self.options = options
        self.database: SqliteDatabase = SqliteDatabase(options)
        self.ties: Sequence[str] = ()
        self.skips: Sequence[int | str] = ()
        self.stale = 0

    def parse(self, text: str) -> Name:
        return Name(None, text)

    def columns(self, session: SqliteSession, table: SqlName) -> Sequence[SqliteColumn]:
        return columns(session, table)

    def is_same(self, session: Any, table: SqlName, other: SqlName) -> bool:
        return table == other

    def primary_key(self, session: Any, table: Any) -> Sequence[str]:
        return ["id"]

    def new_type(self, kind: pa.DataType, name: str) -> str:
        return "INT" if pa.types.is_integer(kind) else "TEXT"

    def create_table(
        self, table: SqlName, columns: pa.Schema, key: Sequence[str] = (), *, waiting: bool = False
    ) -> str:
        kinds = ", ".join(f'"{column.name}" {self.new_type(column.type, column.name)}' for column in columns)
        return compose("CREATE TABLE {} ({})", table.sql, kinds)

    def after_delete(self, session: Any, table: SqlName) -> str | None:
        return None

    def ledger(self, incarnation: str, step_id: str, found_in: str | None) -> StepLedger:
        return StepLedger(self, Name("outfall", "ledger"), self.options.table or "", incarnation, step_id)

    def staging(self, step_id: str, target: SqlName, found_in: str | None) -> Staging:
        return Staging(self, Name("outfall", "staging"), target)

    def tombstones(self, target: SqlName) -> Tombstones:
        return Tombstones(self, target)

    def positioned_rows(self, session: SqliteSession, move: Move) -> PositionedRows:
        return SqlitePositionedRows(session, move)

    def row_text(self, session: SqliteSession, staging: SqlName, shown: Mapping[str, str], place: str) -> str:
        pairs = ", ".join(f"'{name}', \"{name}\"" for name, source in shown.items() if name == source)
        return f"SELECT json_object({pairs}) FROM {staging.sql} WHERE rowid = {place}"

    def faults(self, error: Exception) -> frozenset[Any]:
        found = self.database.means(error)
        names = {"rows": Means.ROW, "table": Means.ABSENT, "mismatch": Means.MISMATCH}
        return frozenset(name for name, means in names.items() if means in found)

    def refusal(self, error: Exception) -> SqliteRefusal:
        return SqliteRefusal(str(error), "19")

    def stored_refusal(self, reason: str, code: str | None, detail: str | None) -> SqliteRefusal:
        return SqliteRefusal(reason, code, detail)

    def _not_asked(self, *given: Any, **more: Any) -> Any:
        raise NotImplementedError

    arrow_type = check_relation = check_keys = _not_asked
    why_not = why_no_sequence = why_no_column = add_column = load = _not_asked


def columns(session: SqliteSession, table: SqlName) -> list[SqliteColumn]:
    found = session.execute(f"PRAGMA {table.schema or 'main'}.table_info({table.name})").fetchall()
    return [SqliteColumn(name, kind, needed=bool(wanted)) for _, name, kind, wanted, *_ in found]


class SqliteStep:
    """A table `t` with an `id` above 0, and the ledger after this driver's BEGIN. `given` are more options."""

    def __init__(self, **given: Any) -> None:
        options = SqlOptions.model_validate({"table": "t", "log_rows": "full"} | given)
        self.dialect = dialect = SqliteDialect(options)
        self.session = dialect.database.session
        target = dialect.parse("t")
        ledger, staging = dialect.ledger(OURS, "sink", None), dialect.staging("sink", target, None)
        tombstones = dialect.tombstones(target) if options.write_mode == "changes" else None
        letters = dead_letters(dialect)
        self.tables = StepTables("sink", dialect, target, ledger, staging, letters, tombstones)
        self.context = CommitterInitContext("sink", OURS, GENERATION, EPOCH, token="nine")
        self.execute("CREATE TABLE t (id INT CHECK (id > 0) PRIMARY KEY, text TEXT)")
        for statement in [*ledger.missing_ddl(self.session), *staging.missing_ddl(self.session)]:
            self.execute(statement)
        ledger.create(self.session)
        self.set(generation=GENERATION, begun=EPOCH, token="nine")

    def execute(self, statement: str, given: Any = ()) -> list[Any]:
        found: list[Any] = self.session.execute(statement, given).fetchall()
        return found

    def set(self, **values: object) -> None:
        """Change this step's row of the ledger."""
        changes = ", ".join(f"{name} = %({name})s" for name in values)
        self.execute(f"UPDATE outfall.ledger SET {changes} WHERE incarnation = '{OURS}'", values)

    def ledger(self, *names: str) -> Any:
        """Values of this step's row of the ledger."""
        return self.execute(f"SELECT {', '.join(names)} FROM outfall.ledger WHERE incarnation = '{OURS}'")[0]

    def stage(self, *ids: int, stage: int = 1, letters: int = 0) -> CommitRequest[StagedRows]:
        """Stage rows as an attempt of a task does; return the request to commit them."""
        for number in ids:
            self.execute(f"INSERT INTO outfall.staging (\"{STAGE}\", id, text) VALUES ({stage}, {number}, 'x')")
        attempt = f"{stage}, 'outfall.staging', '{OURS}', {GENERATION}, {EPOCH}, 0, {len(ids)}"
        self.execute(f"INSERT INTO outfall.attempts VALUES ({attempt}, 0)")
        staged = StagedRows(stage=stage, rows=len(ids), columns=("id", "text"), letters=letters)
        return CommitRequest(staged)

    def committer(self) -> EpochCommitter:
        return SqliteCommitter(self.tables, self.context)

    @property
    def ids(self) -> list[int]:
        """The rows of the table."""
        return [number for (number,) in self.execute("SELECT id FROM t ORDER BY id")]

    @property
    def waiting(self) -> list[int]:
        """The attempts that may still be published."""
        return [stage for (stage,) in self.execute("SELECT stage FROM outfall.attempts ORDER BY stage")]

    @property
    def counts(self) -> dict[str, int]:
        return self.context.metrics.counts
