"""Staging: one unlogged table per step and target, in which each attempt's rows have their own number.

The table is created once and remains. Rows whose number is in `attempts` may still be published. All others are from
attempts that were published, lost or killed, and are removed after an epoch.

The name is deterministic, so that a DBA can create the table. This module also detects a staging table that was lost or
altered.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Mapping, Sequence

import psycopg
from psycopg import sql
from pydantic import BaseModel, ConfigDict, Field

from outfall.capabilities import CleanUpContext, WriterInitContext
from outfall.errors import TargetError
from outfall.postgres.catalogue.columns import TableColumn, read_columns
from outfall.postgres.connection.database import PostgresConnection
from outfall.postgres.names import STAGE, TableName, staging_name
from outfall.postgres.options import PostgresOptions
from outfall.postgres.staging.dead_letters import DeadLetterTable

_TRUNCATE_BYTES = 8 << 20
"""A staging table of at most this size is cleared with DELETE. TRUNCATE creates a new file and locks the table."""


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


class Staging:
    """The staging table of one step and target. Every call runs in the caller's transaction.

    `target` is spelled as in the options. `found_in` is the schema of the target; `None` if it is not known.
    """

    def __init__(self, options: PostgresOptions, target: TableName, found_in: str | None, step_id: str) -> None:
        schema = options.metadata_schema
        extra = [name for name, _ in options.staging_columns()[1:]]
        self.table = staging_name(schema, target.found_in(found_in), step_id, extra)
        self._options = options
        self._target = target
        self._attempts = TableName(schema, "attempts")
        self._ledger = TableName(schema, "ledger").escaped()

    def missing_ddl(self, connection: PostgresConnection) -> list[sql.Composed]:
        """Return the statements that give staging the target's columns; none if it has them.

        Raises `TargetError` if the target does not exist.
        """
        # With the table's collations, so that keys compare equal in staging exactly if they do in the table.
        columns = read_columns(connection, self._target)
        wanted = [(column.name, column.definition) for column in columns if column.writable]
        if not wanted:
            raise TargetError(f"there is no table {self._target}", do='create it, or set create_table="if_missing"')
        wanted = self._options.staging_columns() + wanted
        found = [(column.name, column.definition) for column in read_columns(connection, self.table)]
        if found == wanted:
            return []
        # The types come from the server's catalog as SQL text.
        fields = [sql.SQL("{} {}").format(sql.Identifier(column), sql.SQL(kind)) for column, kind in wanted]
        name = self.table.identifier()
        old = [sql.SQL("DROP TABLE {}").format(name)] if found else []
        return [*old, sql.SQL("CREATE UNLOGGED TABLE {} ({})").format(name, sql.SQL(", ").join(fields))]

    def register(self, connection: PostgresConnection, context: WriterInitContext, staged: StagedRows) -> None:
        """Register the attempt of staged rows, in the transaction that writes them."""
        statement = sql.SQL(
            "INSERT INTO {} (stage, staging, incarnation, generation, epoch, attempt, rows)"
            " VALUES (%s, %s, %s, %s, %s, %s, %s)"
        ).format(self._attempts.escaped())
        connection.execute(
            statement,
            (
                staged.stage,
                str(self.table),
                context.incarnation,
                context.generation,
                context.epoch,
                context.attempt,
                staged.rows,
            ),
        )

    def counts(self, connection: PostgresConnection, stages: Collection[int]) -> dict[int, int]:
        """Return the number of staged rows of each attempt."""
        query = sql.SQL("SELECT {0}, count(*) FROM {1} WHERE {0} = ANY(%s) GROUP BY 1").format(
            sql.Identifier(STAGE), self.table.escaped()
        )
        found: dict[int, int] = dict(connection.execute(query, (list(stages),)).fetchall())
        return {stage: found.get(stage, 0) for stage in stages}

    def registered(self, connection: PostgresConnection, stages: Collection[int]) -> set[int]:
        """Return the attempts that are registered."""
        query = sql.SQL("SELECT stage FROM {} WHERE stage = ANY(%s)").format(self._attempts.escaped())
        return {stage for (stage,) in connection.execute(query, (list(stages),))}

    def forget(self, connection: PostgresConnection, stages: Collection[int]) -> None:
        """Discard attempts. Their rows are removed later."""
        statement = sql.SQL("DELETE FROM {} WHERE stage = ANY(%s)").format(self._attempts.escaped())
        connection.execute(statement, (list(stages),))

    def forget_older(self, connection: PostgresConnection, context: CleanUpContext) -> int:
        """Discard unrecorded attempts of this incarnation's older generations; return their number.

        Attempts of incarnations without a ledger row are discarded too. They are never published: a task of a batch job
        may end after its job.
        """
        statement = sql.SQL("DELETE FROM {} AS old WHERE {}").format(self._attempts.escaped(), self._is_older())
        return connection.execute(statement, self._bounds(context)).rowcount

    def older(self, connection: PostgresConnection, context: CleanUpContext) -> list[str]:
        """Describe the attempts that `forget_older` would discard."""
        query = sql.SQL(
            "SELECT incarnation, generation, epoch, attempt, rows FROM {} AS old WHERE {} ORDER BY 1, 2, 3, 4"
        ).format(self._attempts.escaped(), self._is_older())
        return [
            f"{self.table}: {rows} rows of attempt {attempt}, epoch {epoch}, generation {generation} of {incarnation}"
            for incarnation, generation, epoch, attempt, rows in connection.execute(query, self._bounds(context))
        ]

    def _is_older(self) -> sql.Composed:
        return sql.SQL(
            "staging = %(staging)s AND (incarnation = %(incarnation)s AND generation < %(generation)s"
            " OR NOT EXISTS (SELECT 1 FROM {} AS ledger WHERE ledger.incarnation = old.incarnation))"
        ).format(self._ledger)

    def _bounds(self, context: CleanUpContext) -> dict[str, str | int]:
        return {
            "staging": str(self.table),
            "incarnation": context.incarnation,
            "generation": context.generation + context.final,
        }

    def clear(self, connection: PostgresConnection) -> None:
        """Remove the rows of all discarded attempts.

        A large table is truncated if the user may do so, no attempt may still be published, and no task is writing.
        Otherwise, rows are deleted.
        """
        size, live = connection.execute(
            sql.SQL("SELECT pg_relation_size(%s::regclass), EXISTS (SELECT 1 FROM {} WHERE staging = %s)").format(
                self._attempts.escaped()
            ),
            (self.table.identifier().as_string(connection), str(self.table)),
        ).fetchone() or (0, True)
        if size > _TRUNCATE_BYTES and not live and self._truncate(connection):
            return
        if size:
            statement = sql.SQL(
                "DELETE FROM {0} WHERE NOT EXISTS (SELECT 1 FROM {1} AS live WHERE live.stage = {0}.{2})"
            ).format(self.table.identifier(), self._attempts.identifier(), sql.Identifier(STAGE))
            connection.execute(statement)

    def _truncate(self, connection: PostgresConnection) -> bool:
        try:
            with connection.transaction():
                # A writing attempt holds a lock until it commits.
                connection.execute(
                    sql.SQL("LOCK TABLE {} IN ACCESS EXCLUSIVE MODE NOWAIT").format(self.table.identifier())
                )
                live = connection.execute(
                    sql.SQL("SELECT EXISTS (SELECT 1 FROM {} WHERE staging = %s)").format(self._attempts.escaped()),
                    (str(self.table),),
                ).fetchone()
                if live is None or live[0]:
                    return False
                connection.execute(sql.SQL("TRUNCATE {}").format(self.table.identifier()))
        except (psycopg.errors.LockNotAvailable, psycopg.errors.InsufficientPrivilege):
            return False
        return True

    def find_lost(
        self, connection: PostgresConnection, attempts: Sequence[StagedRows], letters: DeadLetterTable | None
    ) -> Mapping[int, str]:
        """Return the attempts whose recorded rows can no longer be published, by number, with the reason.

        Their rows are missing in staging, or staging no longer matches the attempt or the table. An altered table can
        only accept rows that the changed query writes again. A missing table does not count here, because all its other
        rows are lost too. `letters` are the tables of the attempts' dead letters.
        """
        reasons = self.unfit(connection, attempts)
        fitting = [attempt for attempt in attempts if reasons[attempt.stage] is None]
        if fitting:
            reasons |= self._miscounted(connection, fitting, letters)
        return {stage: reason for stage, reason in reasons.items() if reason is not None}

    def unfit(self, connection: PostgresConnection, attempts: Sequence[StagedRows]) -> dict[int, str | None]:
        """Return by number why the staging table no longer matches an attempt or the table; `None` if it does."""
        staged = {column.name: column for column in read_columns(connection, self.table)}
        wanted = {column.name: column for column in read_columns(connection, self._target)}
        return {attempt.stage: self._unfit(attempt, staged, wanted) for attempt in attempts}

    def _unfit(
        self, attempt: StagedRows, staged: Mapping[str, TableColumn], wanted: Mapping[str, TableColumn]
    ) -> str | None:
        table = self.table
        if attempt.staging not in (None, (table.schema, table.name)):
            former = ".".join(attempt.staging or ())
            return f"attempt {attempt.stage} was staged in {former}, but the sink's current options use {table}"
        if not staged:
            return f"the staging table {table} with the {attempt.rows} rows of attempt {attempt.stage} is missing"
        own = [name for name, _ in self._options.staging_columns()]
        missing = [name for name in (*own, *attempt.columns) if name not in staged]
        if missing:
            return f"{table} no longer has the column {missing[0]!r}, with which attempt {attempt.stage} was staged"
        return self._misfit(attempt, staged, wanted)

    def _misfit(
        self, attempt: StagedRows, staged: Mapping[str, TableColumn], wanted: Mapping[str, TableColumn]
    ) -> str | None:
        """Return why the current table or the current options cannot accept the staged rows."""
        if not attempt.columns:
            return None
        options = self._options
        deletes = options.write_mode == "delete"
        for name in attempt.columns if not deletes else options.key_columns:
            column = wanted.get(name)
            if wanted and (column is None or not (column.writable or deletes)):
                return f"attempt {attempt.stage} was staged with column {name!r}, which {self._target} no longer has"
            if column is not None and name in staged and not column.stores_all_of(staged[name]):
                found = staged[name].definition
                return f"column {name!r} is {found} in {self.table} but {column.definition} in {self._target}"
        named = [name for name in options.columns_named() if name not in (*attempt.columns, options.delete_marker)]
        needed = [] if deletes else [name for name, column in wanted.items() if column.needed]
        given = [*named, *(name for name in needed if name not in attempt.columns)]
        if given:
            return f"attempt {attempt.stage} was staged without column {given[0]!r}, which is required now"
        return None

    def _miscounted(
        self, connection: PostgresConnection, attempts: Sequence[StagedRows], letters: DeadLetterTable | None
    ) -> Mapping[int, str]:
        stages = [attempt.stage for attempt in attempts]
        rows = self.counts(connection, stages)
        waiting = {} if letters is None else letters.counts(connection, stages)
        return {
            attempt.stage: f"{self.table} holds {rows[attempt.stage]} of the {attempt.rows} rows of attempt"
            f" {attempt.stage} and {waiting.get(attempt.stage, attempt.letters)} of its {attempt.letters} dead letters:"
            " a server crash empties both tables"
            for attempt in attempts
            if (rows[attempt.stage], waiting.get(attempt.stage, attempt.letters)) != (attempt.rows, attempt.letters)
        }


def new_stage() -> int:
    """Return a random number for an attempt, which is unique."""
    return secrets.randbits(63)
