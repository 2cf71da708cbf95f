"""Rejected rows: names them in errors, and stores them as dead letters in a table.

A dead letter's `row` is text, because a server's type for JSON may reject what a rejected string contains, such as NUL,
and does not preserve numbers. If the server does not store every character, the text is ASCII: the row may have been
rejected for a character that its encoding does not have.

Dead letters of tasks are in `refused`, next to the ledger, until their attempt has won. This table is counted like
staging.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from outfall.dead_letter import DEAD_LETTER_SCHEMA, NOT_CONVERTIBLE, DeadLetter
from outfall.errors import ConfigurationError, OutfallError, ValueRefusedError
from outfall.formats.row_text import row_texts
from outfall.row_logging import RowLog
from outfall.sql.database import Session
from outfall.sql.dialect import Dialect, Refusal, among, compose, count_by_stage
from outfall.sql.names import SqlName
from outfall.sql.options import STAGE, SqlOptions

_NAMES = DEAD_LETTER_SCHEMA.names
_NON_ASCII = re.compile(r"[^\x00-\x7F]+")

_STAGED = pa.schema([pa.field(STAGE, pa.int64(), nullable=False), *DEAD_LETTER_SCHEMA])


def too_many(
    most: int, name: str, refusal: Refusal, log: RowLog, *, step: str | None = None, epoch: int | None = None
) -> OutfallError:
    """Return the error of an epoch with more rejected rows than `max_dead_letters` allows."""
    return ValueRefusedError(
        f"more than {most} rows of this epoch were rejected, among them {name}",
        step=step,
        epoch=epoch,
        why=refusal.summary(log),
        do="correct the rows or the table; or raise max_dead_letters, if that many dead letters are intended",
    )


def row_log(session: Session, dialect: Dialect) -> RowLog:
    """Return how messages describe rows."""
    return RowLog(dialect.options.log_rows, dialect.row_key(session))


def batch_row_name(batch: pa.RecordBatch, row: int, log: RowLog, position: int) -> str:
    """Return a description of the row at this index in the batch, and at `position` among those of its task."""
    return log.name(f"row {position} of its task", row_texts(batch.slice(row, 1))[0])


def table_of(options: SqlOptions, batch: pa.RecordBatch, row: int) -> str:
    """Return the table of a row, for texts: as the options spell it, or as the row does."""
    column = options.table_column
    return options.described if column is None else str(batch.column(column)[row].as_py())


class DeadLetterTable:
    """The dead-letter table of a sink, and the table of unpublished dead letters. Runs in the caller's transaction."""

    def __init__(self, dialect: Dialect, table: SqlName) -> None:
        options = dialect.options
        self.table = table
        self.most = options.max_dead_letters
        """The maximum number of dead letters per epoch."""
        self._dialect = dialect
        self._log = RowLog(options.log_rows, options.key_columns)
        self._waiting = table.sibling(options.metadata_schema, "refused")
        self._attempts = table.sibling(options.metadata_schema, "attempts").sql
        self._stage = dialect.quote(STAGE)
        self._names = ", ".join(map(dialect.quote, _NAMES))

    def stage(self, session: Session, stage: int, dead_letters: Sequence[DeadLetter]) -> None:
        """Write the dead letters of an attempt, in the transaction that writes its rows."""
        rows = [{STAGE: stage, **_values(dead_letter, session)} for dead_letter in dead_letters]
        if rows:
            self._dialect.insert_dead_letters(session, self._waiting, pa.RecordBatch.from_pylist(rows, _STAGED))

    def counts(self, session: Session, stages: Collection[int]) -> dict[int, int]:
        """Return the number of unpublished dead letters of each attempt; 0 if their table is missing."""
        if not self._dialect.columns(session, self._waiting):
            return dict.fromkeys(stages, 0)
        return count_by_stage(session, self._stage, self._waiting, stages)

    def check_bound(self, session: Session, waiting: Mapping[int, int], *, epoch: int, step: str | None) -> None:
        """Reject an epoch whose tasks together have more dead letters than allowed.

        `waiting` has the number of dead letters of each attempt. Raises `ValueRefusedError`, which names one of the
        rows.
        """
        if sum(waiting.values()) <= self.most:
            return
        named = ", ".join(map(self._dialect.quote, ("row", "reason", "code", "excerpt")))
        query = compose("SELECT {} FROM {} WHERE {} {} LIMIT 1", named, self._waiting.sql, self._stage, among(waiting))
        found = session.execute(query).fetchone()
        # If a crash removed them all, the check of counts reports it.
        if found is not None:
            text, why, code, detail = found
            # The server's code is part of the text of a refusal.
            refusal = self._dialect.stored_refusal(why, None if code == NOT_CONVERTIBLE else code, detail)
            name = self._log.name("a row", text)
            raise too_many(self.most, name, refusal, self._log, step=step, epoch=epoch)

    def publish(self, session: Session, stages: Sequence[int]) -> int:
        """Move the dead letters of winning attempts; return their number."""
        statement = compose(
            "INSERT INTO {} ({names}) SELECT {names} FROM {} WHERE {} {}",
            self.table.sql,
            self._waiting.sql,
            self._stage,
            among(stages),
            names=self._names,
        )
        return session.execute(statement).rowcount

    def add(self, session: Session, row: str, refusal: Refusal, *, step: str, epoch: int) -> None:
        """Write a row that publishing rejected; `row` is a query for its text."""
        dead_letter = DeadLetter("", refusal.reason, step, epoch, code=refusal.code, excerpt=refusal.detail)
        given = {name: getattr(dead_letter, name) for name in _NAMES if name != "row"}
        values = ", ".join(f"({row})" if name == "row" else f"%({name})s" for name in _NAMES)
        session.execute(compose("INSERT INTO {} ({}) VALUES ({})", self.table.sql, self._names, values), given)

    def clear(self, session: Session) -> None:
        """Remove the dead letters of all discarded or published attempts."""
        self._dialect.discard(session, self._stage, self._waiting, self._attempts)

    def check(self, session: Session, target: SqlName) -> None:
        """Reject an existing table that cannot store dead letters.

        Raises `ConfigurationError` if the table is the target, or with the name of each column that does not fit.
        """
        if self._dialect.is_same(session, self.table, target):
            raise _is_the_table()
        found = {column.name: column for column in self._dialect.columns(session, self.table)}
        kinds = {field.name: self._dialect.new_type(field.type, field.name) for field in DEAD_LETTER_SCHEMA}
        problems = [
            f"column {name!r} is {found[name].type if name in found else 'missing'}, but must be {kind}"
            for name, kind in kinds.items()
            if found and (name not in found or found[name].type != kind)
        ]
        problems += [
            f"column {name!r} is NOT NULL and has no default"
            for name, column in found.items()
            if name not in kinds and column.needed
        ]
        if problems:
            raise ConfigurationError(
                f"the table {self.table} cannot store dead letters: {'; '.join(problems)}",
                do="use another table, which the sink then creates, or add the columns that"
                f" {self._dialect.sink}.ddl() prints",
            )

    def missing_ddl(self, session: Session) -> list[str]:
        """Return the statements that create the missing tables for dead letters; none if they exist."""
        made = {
            self._waiting: self._dialect.create_table(self._waiting, _STAGED, waiting=True),
            self.table: self._dialect.create_table(self.table, DEAD_LETTER_SCHEMA),
        }
        return [statement for table, statement in made.items() if not self._dialect.columns(session, table)]


def dead_letters(dialect: Dialect) -> DeadLetterTable | None:
    """Return the dead-letter table of a sink; `None` if rejected rows fail the query.

    Raises `ConfigurationError` if the name of the table is invalid, or is that of the target.
    """
    if dialect.options.dead_letter_table is None:
        return None
    table = dialect.parse(dialect.options.dead_letter_table)
    if dialect.options.table is not None and table == dialect.parse(dialect.options.table):
        raise _is_the_table()
    return DeadLetterTable(dialect, table)


def stored_dead_letters(dialect: Dialect) -> Iterator[dict[str, Any]]:
    """Yield the dead letters in the table that the options name, as values by the names of `DEAD_LETTER_SCHEMA`.

    Raises `ConfigurationError` if it is not a table of dead letters, and the database's error, translated.
    """
    database, table = dialect.database, dialect.parse(dialect.options.table or "")
    with database.translated_errors(f"reading the dead letters in {table}"), database.transaction() as session:
        found = {column.name for column in dialect.columns(session, table)}
        if absent := [name for name in _NAMES if name not in found]:
            raise ConfigurationError(
                f"the table {table} in {database.name()} has no dead letters",
                why=f"it has no column {absent[0]!r}" if found else "it does not exist, or the user may not read it",
                do=f"give the table that the option dead_letter_table of {dialect.sink} names, and a user with SELECT",
            )
        names = ", ".join(map(dialect.quote, _NAMES))
        for row in session.stream(compose("SELECT {} FROM {}", names, table.sql)):
            yield dict(zip(_NAMES, row, strict=True))


def _values(dead_letter: DeadLetter, session: Session) -> dict[str, object]:
    """Return a dead letter's values; unless the server stores any text, with JSON's escapes of non-ASCII characters."""
    values = {name: getattr(dead_letter, name) for name in _NAMES}
    if session.any_text:
        return values
    return {name: _escaped(value) if isinstance(value, str) else value for name, value in values.items()}


def _escaped(text: str) -> str:
    return _NON_ASCII.sub(lambda found: json.dumps(found[0])[1:-1], text)


def _is_the_table() -> ConfigurationError:
    return ConfigurationError("dead_letter_table is the target table", do="set dead_letter_table to another table")
