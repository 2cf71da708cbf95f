"""Dead letters in a table: `outfall.dead_letter`'s columns, `row` as text.

Text, since `jsonb` refuses the NUL that a refused string may hold, and does not give numbers back as they came; cast it
where a row is good: `"row"::jsonb`. What a task finds lies in `refused` beside the ledger until its attempt has won, as
unlogged as staging is, and counted as staging is.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import pyarrow as pa
from psycopg import sql

from outfall.dead_letter import DEAD_LETTER_SCHEMA, DeadLetter
from outfall.errors import ConfigurationError
from outfall.postgres.bisect import Refusal, too_many
from outfall.postgres.columns import is_there, read_columns
from outfall.postgres.connection import Connection
from outfall.postgres.names import TableName
from outfall.postgres.options import PostgresOptions
from outfall.postgres.row_names import row_name
from outfall.postgres.staging import STAGE
from outfall.postgres.types import new_column_type

_COLUMNS = {field.name: new_column_type(field.type, field.name) for field in DEAD_LETTER_SCHEMA}
_NAMES = sql.SQL(", ").join(map(sql.Identifier, _COLUMNS))


class DeadLetters:
    """The dead letter table of a sink, and where letters wait for their attempt. In the caller's transaction.

    Args:
        table: where letters go.
        metadata_schema: where the ledger is.
        most: how many letters an epoch may have.
    """

    def __init__(self, table: TableName, metadata_schema: str, most: int) -> None:
        self.table = table
        self.most = most
        self._waiting = TableName(metadata_schema, "refused")
        self._attempts = TableName(metadata_schema, "attempts")

    def stage(self, connection: Connection, stage: int, letters: Sequence[DeadLetter]) -> None:
        """Write what an attempt found, in the transaction that writes its rows."""
        if not letters:
            return
        statement = sql.SQL("INSERT INTO {} ({}, {}) VALUES ({})").format(
            self._waiting.escaped(),
            sql.Identifier(STAGE),
            _NAMES,
            sql.SQL(", ").join([sql.Placeholder()] * (1 + len(_COLUMNS))),
        )
        with connection.cursor() as cursor:
            cursor.executemany(
                statement, [(stage, *(getattr(letter, name) for name in _COLUMNS)) for letter in letters]
            )

    def counts(self, connection: Connection, stages: Collection[int]) -> dict[int, int]:
        """Return how many letters of each attempt wait; none where their table is missing."""
        if not is_there(connection, self._waiting):
            return dict.fromkeys(stages, 0)
        query = sql.SQL("SELECT {0}, count(*) FROM {1} WHERE {0} = ANY(%s) GROUP BY 1").format(
            sql.Identifier(STAGE), self._waiting.escaped()
        )
        found: dict[int, int] = dict(connection.execute(query, (list(stages),)).fetchall())
        return {stage: found.get(stage, 0) for stage in stages}

    def check_bound(self, connection: Connection, waiting: Mapping[int, int], *, epoch: int, step: str | None) -> None:
        """Refuse an epoch whose tasks have set aside more rows together than it may have.

        Args:
            connection: a connection.
            waiting: how many letters wait of each attempt.
            epoch: for the text.
            step: for the text.

        Raises:
            ValueRefusedError: naming one of the rows.
        """
        if sum(waiting.values()) <= self.most:
            return
        query = sql.SQL("SELECT row, reason, code, excerpt FROM {} WHERE {} = ANY(%s) LIMIT 1").format(
            self._waiting.escaped(), sql.Identifier(STAGE)
        )
        found = connection.execute(query, (list(waiting),)).fetchone()
        # When a crash took them all, whoever counts them says so.
        if found is not None:
            text, *why = found
            raise too_many(self.most, row_name(text, by_key=False), Refusal(*why), step=step, epoch=epoch)

    def publish(self, connection: Connection, stages: Collection[int]) -> int:
        """Move the letters of attempts that have won; return how many there were."""
        statement = sql.SQL("INSERT INTO {} ({names}) SELECT {names} FROM {} WHERE {} = ANY(%s)").format(
            self.table.escaped(), self._waiting.escaped(), sql.Identifier(STAGE), names=_NAMES
        )
        return connection.execute(statement, (list(stages),)).rowcount

    def add(self, connection: Connection, row: sql.Composable, refusal: Refusal, *, step: str, epoch: int) -> None:
        """Write a row that publishing found.

        Args:
            connection: a connection.
            row: a query for the row's text.
            refusal: why.
            step: the step.
            epoch: the epoch.
        """
        letter = DeadLetter("", refusal.reason, step, epoch, code=refusal.code, excerpt=refusal.detail)
        values: list[sql.Composable] = [
            sql.SQL("({})").format(row) if name == "row" else sql.Literal(getattr(letter, name)) for name in _COLUMNS
        ]
        statement = sql.SQL("INSERT INTO {} ({}) VALUES ({})").format(
            self.table.identifier(), _NAMES, sql.SQL(", ").join(values)
        )
        connection.execute(statement)

    def clear(self, connection: Connection) -> None:
        """Remove the letters of all attempts that are given up or published."""
        statement = sql.SQL(
            "DELETE FROM {0} WHERE NOT EXISTS (SELECT 1 FROM {1} AS live WHERE live.stage = {0}.{2})"
        ).format(self._waiting.identifier(), self._attempts.identifier(), sql.Identifier(STAGE))
        connection.execute(statement)

    def check(self, connection: Connection, target: TableName) -> None:
        """Refuse a table that is there and cannot take letters.

        Raises:
            ConfigurationError: naming each column that does not fit; or it is the target, by another name.
        """
        names = [name.identifier().as_string(connection) for name in (self.table, target)]
        same = connection.execute("SELECT to_regclass(%s) = to_regclass(%s)", names).fetchone()
        if same and same[0]:
            raise _is_the_table()
        found = {column.name: column for column in read_columns(connection, self.table)}
        problems = [
            f"column {name!r} is {found[name].type if name in found else 'missing'} and must be {kind}"
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
                f"the table {self.table} cannot take dead letters: {'; '.join(problems)}",
                do="name another table, which is then made, or give it the columns that PostgresSink.ddl() prints",
            )

    def missing_ddl(self, connection: Connection) -> list[sql.Composed]:
        """Return what is to be run so that letters have their tables; nothing when these are there."""
        fields = sql.SQL(", ").join(_definition(field) for field in DEAD_LETTER_SCHEMA)
        wanted = {
            self._waiting: sql.SQL("CREATE UNLOGGED TABLE {} ({} bigint NOT NULL, {})").format(
                self._waiting.identifier(), sql.Identifier(STAGE), fields
            ),
            self.table: sql.SQL("CREATE TABLE {} ({})").format(self.table.identifier(), fields),
        }
        return [statement for table, statement in wanted.items() if not is_there(connection, table)]


def dead_letters(options: PostgresOptions) -> DeadLetters | None:
    """Return where a sink's dead letters go; `None` when they fail the query.

    Raises:
        ConfigurationError: the name of the table cannot be read, or is the target's.
    """
    if options.dead_letter_table is None:
        return None
    table = TableName.parse(options.dead_letter_table)
    if table == TableName.parse(options.table):
        raise _is_the_table()
    return DeadLetters(table, options.metadata_schema, options.max_dead_letters)


def _is_the_table() -> ConfigurationError:
    return ConfigurationError("dead_letter_table is the table itself", do="name another table")


def _definition(field: pa.Field) -> sql.Composed:
    required = sql.SQL("" if field.nullable else " NOT NULL")
    return sql.SQL("{} {}{}").format(sql.Identifier(field.name), sql.SQL(_COLUMNS[field.name]), required)
