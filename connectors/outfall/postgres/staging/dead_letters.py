"""Rejected rows: finds them among many, names them in errors, and stores them as dead letters in a table.

A statement or a COPY reports that one of its rows was rejected, but not which one, nor whether there are others. They
are found by bisection. Each attempt runs in a savepoint (manual, SQL SAVEPOINT), so a failed one is undone without the
others.

A dead letter's `row` is text, because `jsonb` rejects the NUL that a rejected string may contain, and does not preserve
numbers. Cast it where the row is valid: `"row"::jsonb`. If the server's encoding is not UTF8, the text is ASCII: the
row may have been rejected for a character that this encoding does not have.

Dead letters of tasks are in `refused`, next to the ledger, until their attempt has won. This table is unlogged and
counted like staging.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import psycopg
import pyarrow as pa
from psycopg import sql

from outfall.dead_letter import DEAD_LETTER_SCHEMA, DeadLetter
from outfall.errors import ConfigurationError, OutfallError, ValueRefusedError
from outfall.formats.row_text import row_texts
from outfall.postgres.catalogue.columns import is_there, read_columns, read_primary_key
from outfall.postgres.catalogue.types import new_column_type
from outfall.postgres.connection.database import PostgresConnection
from outfall.postgres.connection.errors import describe, hides_message, told
from outfall.postgres.copy.values import RefusedRowError
from outfall.postgres.names import STAGE, TableName
from outfall.postgres.options import PostgresOptions
from outfall.row_logging import RowLog

_COLUMNS = {field.name: new_column_type(field.type, field.name) for field in DEAD_LETTER_SCHEMA}
_NAMES = sql.SQL(", ").join(map(sql.Identifier, _COLUMNS))

_NON_ASCII = re.compile(r"[^\x00-\x7F]+")

_COPIED = re.compile(r"^COPY .+?, line \d+, column ([^:\n]+)", re.MULTILINE)
"""The server's message about the position of an error in a COPY; a value may follow."""


@dataclass(frozen=True)
class RowRefusal:
    """The reason why a row was rejected."""

    reason: str
    code: str | None = None
    """The SQLSTATE, if the server rejected the row."""
    detail: str | None = None
    do: str = "correct or leave out the row, or change the table"
    column: str | None = None
    """The column, if the server names it."""
    shown: str | None = None
    """The text instead of the reason, unless everything may be shown."""

    @classmethod
    def of(cls, error: psycopg.Error | RefusedRowError) -> RowRefusal:
        """Return the reason from an error of the server or the encoder."""
        if isinstance(error, RefusedRowError):
            return cls(error.reason, do=error.do or cls.do)
        diagnosis = error.diag
        column = _COPIED.search(diagnosis.context or "")
        return cls(
            diagnosis.message_primary or str(error).strip(), error.sqlstate, diagnosis.message_detail,
            column=None if column is None else column[1],
            shown=describe(error) if hides_message(error) and (error.sqlstate or "")[:2] != "22" else None,
        )  # fmt: skip

    def told(self, log: RowLog) -> str:
        """Return reason, detail and code in one sentence, with as much of the row as `log_rows` permits."""
        if self.shown is not None and not log.full:
            return self.shown
        return told(self.reason, self.code, self.detail, full=log.full, column=self.column)


def isolate(
    first: int, after: int, attempt: Callable[[int, int], RowRefusal | None]
) -> Iterator[tuple[int, RowRefusal]]:
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


def too_many(
    most: int, name: str, refusal: RowRefusal, log: RowLog, *, step: str | None = None, epoch: int | None = None
) -> OutfallError:
    """Return the error of an epoch with more rejected rows than `max_dead_letters` allows."""
    return ValueRefusedError(
        f"more than {most} rows of this epoch were rejected, among them {name}",
        step=step,
        epoch=epoch,
        why=refusal.told(log),
        do="correct the rows or the table; or raise max_dead_letters, if that many dead letters are intended",
    )


def row_log(connection: PostgresConnection, options: PostgresOptions) -> RowLog:
    """Return how messages describe rows: by the columns of the options that identify them, or by the primary key."""
    keys = options.key_columns or options.offset_columns
    return RowLog(options.log_rows, keys or read_primary_key(connection, TableName.parse(options.table)))


def batch_row_name(batch: pa.RecordBatch, row: int, log: RowLog, position: int) -> str:
    """Return a description of the row at this index in the batch, and at `position` among those of its task."""
    return log.name(f"row {position} of its task", row_texts(batch.slice(row, 1))[0])


class DeadLetterTable:
    """The dead-letter table of a sink, and the table of unpublished dead letters. Runs in the caller's transaction.

    `metadata_schema` is the schema of the ledger. `most` is the maximum number of dead letters per epoch.
    """

    def __init__(self, table: TableName, metadata_schema: str, most: int, log: RowLog) -> None:
        self._log = log
        self.table = table
        self.most = most
        self._waiting = TableName(metadata_schema, "refused")
        self._attempts = TableName(metadata_schema, "attempts")

    def stage(self, connection: PostgresConnection, stage: int, letters: Sequence[DeadLetter]) -> None:
        """Write the dead letters of an attempt, in the transaction that writes its rows."""
        if not letters:
            return
        statement = sql.SQL("INSERT INTO {} ({}, {}) VALUES ({})").format(
            self._waiting.escaped(),
            sql.Identifier(STAGE),
            _NAMES,
            sql.SQL(", ").join([sql.Placeholder()] * (1 + len(_COLUMNS))),
        )
        any_text = connection.info.parameter_status("server_encoding") == "UTF8"
        with connection.cursor() as cursor:
            cursor.executemany(statement, [(stage, *_values(letter, any_text)) for letter in letters])

    def counts(self, connection: PostgresConnection, stages: Collection[int]) -> dict[int, int]:
        """Return the number of unpublished dead letters of each attempt; 0 if their table is missing."""
        if not is_there(connection, self._waiting):
            return dict.fromkeys(stages, 0)
        query = sql.SQL("SELECT {0}, count(*) FROM {1} WHERE {0} = ANY(%s) GROUP BY 1").format(
            sql.Identifier(STAGE), self._waiting.escaped()
        )
        found: dict[int, int] = dict(connection.execute(query, (list(stages),)).fetchall())
        return {stage: found.get(stage, 0) for stage in stages}

    def check_bound(
        self, connection: PostgresConnection, waiting: Mapping[int, int], *, epoch: int, step: str | None
    ) -> None:
        """Reject an epoch whose tasks together have more dead letters than allowed.

        `waiting` has the number of dead letters of each attempt. Raises `ValueRefusedError`, which names one of the
        rows.
        """
        if sum(waiting.values()) <= self.most:
            return
        query = sql.SQL("SELECT row, reason, code, excerpt FROM {} WHERE {} = ANY(%s) LIMIT 1").format(
            self._waiting.escaped(), sql.Identifier(STAGE)
        )
        found = connection.execute(query, (list(waiting),)).fetchone()
        # If a crash removed them all, the check of counts reports it.
        if found is not None:
            text, *why = found
            name = self._log.name("a row", text)
            raise too_many(self.most, name, RowRefusal(*why), self._log, step=step, epoch=epoch)

    def publish(self, connection: PostgresConnection, stages: Collection[int]) -> int:
        """Move the dead letters of winning attempts; return their number."""
        statement = sql.SQL("INSERT INTO {} ({names}) SELECT {names} FROM {} WHERE {} = ANY(%s)").format(
            self.table.escaped(), self._waiting.escaped(), sql.Identifier(STAGE), names=_NAMES
        )
        return connection.execute(statement, (list(stages),)).rowcount

    def add(
        self, connection: PostgresConnection, row: sql.Composable, refusal: RowRefusal, *, step: str, epoch: int
    ) -> None:
        """Write a row that publishing rejected; `row` is a query for its text."""
        letter = DeadLetter("", refusal.reason, step, epoch, code=refusal.code, excerpt=refusal.detail)
        values: list[sql.Composable] = [
            sql.SQL("({})").format(row) if name == "row" else sql.Literal(getattr(letter, name)) for name in _COLUMNS
        ]
        statement = sql.SQL("INSERT INTO {} ({}) VALUES ({})").format(
            self.table.identifier(), _NAMES, sql.SQL(", ").join(values)
        )
        connection.execute(statement)

    def clear(self, connection: PostgresConnection) -> None:
        """Remove the dead letters of all discarded or published attempts."""
        statement = sql.SQL(
            "DELETE FROM {0} WHERE NOT EXISTS (SELECT 1 FROM {1} AS live WHERE live.stage = {0}.{2})"
        ).format(self._waiting.identifier(), self._attempts.identifier(), sql.Identifier(STAGE))
        connection.execute(statement)

    def check(self, connection: PostgresConnection, target: TableName) -> None:
        """Reject an existing table that cannot store dead letters.

        Raises `ConfigurationError` if the table is the target, or with the name of each column that does not fit.
        """
        names = [name.identifier().as_string(connection) for name in (self.table, target)]
        same = connection.execute("SELECT to_regclass(%s) = to_regclass(%s)", names).fetchone()
        if same and same[0]:
            raise _is_the_table()
        found = {column.name: column for column in read_columns(connection, self.table)}
        problems = [
            f"column {name!r} is {found[name].type if name in found else 'missing'}, but must be {kind}"
            for name, kind in _COLUMNS.items()
            if found and (name not in found or found[name].type != kind)
        ]
        problems += [
            f"column {name!r} is NOT NULL and has no default"
            for name, column in found.items()
            if name not in _COLUMNS and column.needed
        ]
        if problems:
            raise ConfigurationError(
                f"the table {self.table} cannot store dead letters: {'; '.join(problems)}",
                do="use another table, which the sink then creates, or add the columns that PostgresSink.ddl() prints",
            )

    def missing_ddl(self, connection: PostgresConnection) -> list[sql.Composed]:
        """Return the statements that create the missing tables for dead letters; none if they exist."""
        fields = sql.SQL(", ").join(_definition(field) for field in DEAD_LETTER_SCHEMA)
        wanted = {
            self._waiting: sql.SQL("CREATE UNLOGGED TABLE {} ({} bigint NOT NULL, {})").format(
                self._waiting.identifier(), sql.Identifier(STAGE), fields
            ),
            self.table: sql.SQL("CREATE TABLE {} ({})").format(self.table.identifier(), fields),
        }
        return [statement for table, statement in wanted.items() if not is_there(connection, table)]


def dead_letters(options: PostgresOptions) -> DeadLetterTable | None:
    """Return the dead-letter table of a sink; `None` if rejected rows fail the query.

    Raises `ConfigurationError` if the name of the table is invalid, or is that of the target.
    """
    if options.dead_letter_table is None:
        return None
    table = TableName.parse(options.dead_letter_table)
    if table == TableName.parse(options.table):
        raise _is_the_table()
    log = RowLog(options.log_rows, options.key_columns)
    return DeadLetterTable(table, options.metadata_schema, options.max_dead_letters, log)


def _values(letter: DeadLetter, any_text: bool) -> list[object]:
    """Return a dead letter's values; unless the server stores any text, with JSON's escapes of non-ASCII characters."""
    values = (getattr(letter, name) for name in _COLUMNS)
    return [_escaped(value) if isinstance(value, str) and not any_text else value for value in values]


def _escaped(text: str) -> str:
    return _NON_ASCII.sub(lambda found: json.dumps(found[0])[1:-1], text)


def _is_the_table() -> ConfigurationError:
    return ConfigurationError("dead_letter_table is the target table", do="set dead_letter_table to another table")


def _definition(field: pa.Field) -> sql.Composed:
    required = sql.SQL("" if field.nullable else " NOT NULL")
    return sql.SQL("{} {}{}").format(sql.Identifier(field.name), sql.SQL(_COLUMNS[field.name]), required)
