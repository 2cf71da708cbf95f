"""A third database for the base of SQL sinks: SQLite in memory, where real SQL publishes an epoch in milliseconds.

Rows are appended. A constraint of the table rejects rows, as a server's does. `ties` names staged rows that no sequence
orders, and `skips` rows that a trigger
keeps out of the table.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from outfall.capabilities import CommitRequest, CommitterInitContext
from outfall.errors import OutfallError, TargetError
from outfall.row_logging import RowLog
from outfall.sql.database import SqlDatabase
from outfall.sql.dead_letters import dead_letters
from outfall.sql.dialect import Dialect, Move, PositionedRows, SqlName, StagedRows, among, compose
from outfall.sql.ledger import StepLedger
from outfall.sql.options import STAGE, SqlOptions
from outfall.sql.publish import EpochCommitter
from outfall.sql.staging import Staging
from outfall.sql.target import StepTables
from outfall.sql.tombstones import Tombstones

OURS, OTHERS = "a" * 32, "b" * 32
EPOCH, GENERATION = 4, 9

_LEDGER = (
    "CREATE TABLE outfall.ledger (incarnation, target, step, generation, begun, epoch, revoked DEFAULT 0,"
    " rows DEFAULT 0, changed, token, published_token, PRIMARY KEY (incarnation, target))"
)
_ATTEMPTS = "CREATE TABLE outfall.attempts (stage PRIMARY KEY, staging, incarnation, generation, epoch, attempt, rows)"


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


class SqliteSession:
    any_text = True

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection
        self.statements: list[str] = []

    def execute(self, statement: str, given: Any = ()) -> sqlite3.Cursor:
        self.statements.append(statement)
        text = re.sub(r"%\((\w+)\)s", r":\1", statement).replace("%s", "?").replace("%%", "%")
        return self.connection.execute(text.replace(" FOR UPDATE", ""), given)

    def stream(self, query: str) -> Iterator[tuple[Any, ...]]:
        return iter(self.execute(query).fetchall())

    @contextmanager
    def savepoint(self, *, undo: bool = False) -> Iterator[None]:
        self.connection.execute("SAVEPOINT here")
        try:
            yield
        except BaseException:
            self.connection.execute("ROLLBACK TO here")
            raise
        finally:
            self.connection.execute("RELEASE here")


class SqliteDatabase(SqlDatabase):
    errors = sqlite3.Error
    locks = "the list of processes"

    def __init__(self, options: SqlOptions) -> None:
        self.options = options
        self.connection = sqlite3.connect(":memory:", isolation_level=None)
        self.connection.execute("ATTACH ':memory:' AS outfall")
        self.connection.create_function("greatest", 2, max)
        self.connection.create_function("now", 0, lambda: 0)
        self.session = SqliteSession(self.connection)
        self.commits: list[Callable[[], None]] = []
        """What happens at the next COMMITs, after each has taken effect."""

    @contextmanager
    def transaction(self, *, undo: bool = False) -> Iterator[SqliteSession]:
        self.connection.execute("BEGIN")
        try:
            yield self.session
        except BaseException:
            self.connection.execute("ROLLBACK")
            raise
        self.connection.execute("ROLLBACK" if undo else "COMMIT")
        if self.commits and not undo:
            self.commits.pop(0)()

    @contextmanager
    def making(self, session: Any, names: Sequence[str]) -> Iterator[None]:
        yield

    def name(self) -> str:
        return "here"

    server = database_name = name

    def log_url(self) -> None:
        return None

    def is_transient(self, error: BaseException, *, starting: bool = False) -> bool:
        return "lost" in str(error)

    def waited_for_lock(self, error: BaseException | None) -> bool:
        return False

    def reason(self, error: Any) -> str:
        return str(error)

    remedy = reason

    def translated(self, doing: str, error: Any, step: str | None = None) -> OutfallError:
        return TargetError(f"{doing} failed", step=step, why=str(error), do="correct it")


class SqliteLedger(StepLedger):
    def exists(self, session: SqliteSession) -> bool:
        return all(columns(session, Name("outfall", name)) for name in ("ledger", "attempts"))

    def missing_ddl(self, session: SqliteSession) -> Sequence[str]:
        return [] if self.exists(session) else [_LEDGER, _ATTEMPTS]


class SqliteStaging(Staging):
    def missing_ddl(self, session: SqliteSession) -> Sequence[str]:
        if columns(session, self.table):
            return []
        kinds = [f'"{name}" INT' for name in self._options.own_columns()]
        kinds += [f'"{column.name}" {column.type}' for column in columns(session, self._target)]
        return [f"CREATE TABLE {self.table.sql} ({', '.join(kinds)})"]


class SqliteTombstones(Tombstones):
    def missing_ddl(self, session: SqliteSession) -> Sequence[str]:
        if columns(session, self.table):
            return []
        return [f"CREATE TABLE {self.table.sql} (id, _outfall_sequence, _outfall_deleted)"]

    def _forget(self, session: SqliteSession, seconds: float, most: int) -> None:
        chosen = f"SELECT rowid FROM {self.table.sql} WHERE _outfall_deleted < -{seconds} LIMIT {most}"
        session.execute(f"DELETE FROM {self.table.sql} WHERE rowid IN ({chosen})")


class SqlitePositionedRows(PositionedRows):
    def __init__(self, move: SqliteMove, session: SqliteSession) -> None:
        self._move, self._session = move, session
        query = f'SELECT rowid FROM {move.staging.sql} WHERE "{STAGE}" {among(move.expected)} ORDER BY id'
        self._rows = [row for (row,) in session.execute(query).fetchall()]
        self.count = len(self._rows)

    def move(self, low: int, high: int) -> int:
        return self._move.these(self._session, f"rowid IN ({', '.join(map(str, self._rows[low:high]))})")

    def move_one(self, place: str) -> int:
        return self._move.these(self._session, f"rowid = {place}")

    def place(self, position: int) -> str:
        return str(self._rows[position])

    def replaced(self, place: str) -> str | None:
        return None


class SqliteMove(Move):
    def __init__(self, dialect: SqliteDialect, staging: SqlName, target: SqlName, attempts: Sequence[StagedRows]):
        super().__init__(attempts)
        self.staging, self._target, self._dialect = staging, target, dialect
        self.stale = dialect.stale
        self._out: set[str] = set()

    def hold(self, session: SqliteSession) -> None:
        session.execute(f"SELECT 1 FROM {self._target.sql} LIMIT 0")

    def whole(self, session: SqliteSession, *, at_once: bool = False) -> int:
        return self.these(session, f'"{STAGE}" {among(self.expected)}')

    def these(self, session: SqliteSession, condition: str) -> int:
        out = ", ".join(str(row) for row in {*self._out, *self._dialect.skips}) or "-1"
        names = ", ".join(f'"{name}"' for name in self.columns)
        return session.execute(
            f"INSERT INTO {self._target.sql} ({names}) SELECT {names} FROM {self.staging.sql}"
            f" WHERE {condition} AND rowid NOT IN ({out})"
        ).rowcount

    def positioned_rows(self, session: SqliteSession) -> PositionedRows:
        return SqlitePositionedRows(self, session)

    def row_text(self, session: SqliteSession, place: str) -> str:
        pairs = ", ".join(f"'{name}', \"{name}\"" for name in self.columns)
        return f"SELECT json_object({pairs}) FROM {self.staging.sql} WHERE rowid = {place}"

    def tied(self, session: SqliteSession, most: int) -> Sequence[str]:
        return [place for place in self._dialect.ties if place not in self._out][:most]

    def leave_out(self, session: SqliteSession, places: Sequence[str]) -> None:
        self._out |= set(places)


class SqliteDialect(Dialect):
    sink = "SqliteSink"
    keeping = "ON CONFLICT DO NOTHING"
    volatile = "the memory was lost"

    def __init__(self, options: SqlOptions) -> None:
        self.options = options
        self.database: SqliteDatabase = SqliteDatabase(options)
        self.ties: Sequence[str] = ()
        self.skips: Sequence[int | str] = ()
        self.stale = 0

    def quote(self, column: str) -> str:
        return f'"{column}"'

    def parse(self, text: str) -> Name:
        return Name(None, text)

    def columns(self, session: SqliteSession, table: SqlName) -> Sequence[SqliteColumn]:
        return columns(session, table)

    def is_same(self, session: Any, table: SqlName, other: SqlName) -> bool:
        return table == other

    def row_key(self, session: Any) -> Sequence[str]:
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

    def ledger(self, incarnation: str, step_id: str, found_in: str | None) -> SqliteLedger:
        return SqliteLedger(self, Name("outfall", "ledger"), self.options.table, incarnation, step_id)

    def staging(self, step_id: str, target: SqlName, found_in: str | None) -> SqliteStaging:
        return SqliteStaging(self, Name("outfall", "staging"), target)

    def tombstones(self, target: SqlName) -> SqliteTombstones:
        return SqliteTombstones(self, target)

    def move(self, staging: SqlName, target: SqlName, attempts: Sequence[StagedRows]) -> SqliteMove:
        return SqliteMove(self, staging, target, attempts)

    def faults(self, error: Exception) -> frozenset[Any]:
        text = str(error)
        found = {"rows": isinstance(error, sqlite3.IntegrityError), "table": "no such table" in text}
        return frozenset(name for name, is_so in (found | {"mismatch": "no " in text}).items() if is_so)

    def refusal(self, error: Exception) -> SqliteRefusal:
        return SqliteRefusal(str(error), "19")

    def stored_refusal(self, reason: str, code: str | None, detail: str | None) -> SqliteRefusal:
        return SqliteRefusal(reason, code, detail)

    def _not_asked(self, *given: Any, **more: Any) -> Any:
        raise NotImplementedError

    check_relation = check_keys = why_not = why_no_sequence = why_no_column = add_column = load = _not_asked


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
        return self.session.execute(statement, given).fetchall()

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
        self.execute(f"INSERT INTO outfall.attempts VALUES ({attempt})")
        staged = StagedRows(stage=stage, rows=len(ids), columns=("id", "text"), letters=letters)
        return CommitRequest(staged)

    def committer(self) -> EpochCommitter:
        return EpochCommitter(self.tables, self.context)

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
