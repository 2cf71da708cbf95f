"""Staging: one unlogged table per step and target, in which each attempt's rows carry a number of their own.

The table is made once and stays. Rows whose number stands in `attempts` may still be published; all others are left
over from attempts that were published, lost or killed, and are cleared away after an epoch.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Sequence

import psycopg
from psycopg import sql
from pydantic import BaseModel, ConfigDict, Field

from outfall.capabilities import SweepContext, WriterInitContext
from outfall.postgres.connection import Connection
from outfall.postgres.names import TableName
from outfall.postgres.options import PostgresOptions

STAGE = "_outfall_stage"
"""The column that holds the attempt's number."""

ROW = "_outfall_row"
"""The column that numbers the rows of an attempt, for upserts: which of one key was written last. Addresses do not
tell, since a vacuum in the middle of a COPY frees pages before them."""

MARKER = "_outfall_delete"
"""The column that holds the delete marker, which the target does not have."""

_TRUNCATE_BYTES = 8 << 20
"""A staging table of at most this size is cleared row by row; truncating costs a new file and a lock on the table."""


class StagedRows(BaseModel):
    """The rows of one attempt, in staging."""

    model_config = ConfigDict(frozen=True)

    stage: int
    rows: int = Field(ge=0)
    """How many, so that a staging table that a crash of the server emptied is seen before it is published."""
    columns: tuple[str, ...]
    """The target's columns that they have values for."""
    letters: int = Field(default=0, ge=0)
    """How many more rows staging refused, which are dead letters."""
    staging: tuple[str, str] | None = None
    """Schema and name of the table that they lie in; `None` in records that do not say it: the sink's own."""


class Staging:
    """The staging table of one step and target. Every call runs in the caller's transaction."""

    def __init__(self, metadata_schema: str, table: TableName) -> None:
        self.table = table
        self.name = table.identifier()
        self._attempts = TableName(metadata_schema, "attempts")
        self._ledger = TableName(metadata_schema, "ledger").escaped()

    def register(self, connection: Connection, context: WriterInitContext, staged: StagedRows) -> None:
        """Write whose rows these are, in the transaction that writes the rows."""
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

    def counts(self, connection: Connection, stages: Collection[int]) -> dict[int, int]:
        """Return how many rows of each attempt are there."""
        query = sql.SQL("SELECT {0}, count(*) FROM {1} WHERE {0} = ANY(%s) GROUP BY 1").format(
            sql.Identifier(STAGE), self.table.escaped()
        )
        found: dict[int, int] = dict(connection.execute(query, (list(stages),)).fetchall())
        return {stage: found.get(stage, 0) for stage in stages}

    def registered(self, connection: Connection, stages: Collection[int]) -> set[int]:
        """Return those attempts that are registered."""
        query = sql.SQL("SELECT stage FROM {} WHERE stage = ANY(%s)").format(self._attempts.escaped())
        return {stage for (stage,) in connection.execute(query, (list(stages),))}

    def forget(self, connection: Connection, stages: Collection[int]) -> None:
        """Give up attempts, whose rows are cleared away later."""
        statement = sql.SQL("DELETE FROM {} WHERE stage = ANY(%s)").format(self._attempts.escaped())
        connection.execute(statement, (list(stages),))

    def forget_older(self, connection: Connection, context: SweepContext) -> int:
        """Give up our attempts of older generations, which stand in no record; return how many there were.

        And those of any incarnation that has no ledger row, which are never published: a task of a batch job may finish
        after its job did.
        """
        statement = sql.SQL("DELETE FROM {} AS old WHERE {}").format(self._attempts.escaped(), self._is_older())
        return connection.execute(statement, self._bounds(context)).rowcount

    def older(self, connection: Connection, context: SweepContext) -> list[str]:
        """Name the attempts that `forget_older` would give up."""
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

    def _bounds(self, context: SweepContext) -> dict[str, str | int]:
        return {
            "staging": str(self.table),
            "incarnation": context.incarnation,
            "generation": context.generation + context.final,
        }

    def clear(self, connection: Connection) -> None:
        """Remove the rows of all attempts that are given up.

        A large table is truncated if no attempt may still be published and nobody is writing; else, as a small one
        always, it is cleared row by row.
        """
        size, live = connection.execute(
            sql.SQL("SELECT pg_relation_size(%s::regclass), EXISTS (SELECT 1 FROM {} WHERE staging = %s)").format(
                self._attempts.escaped()
            ),
            (self.name.as_string(connection), str(self.table)),
        ).fetchone() or (0, True)
        if size > _TRUNCATE_BYTES and not live and self._truncate(connection):
            return
        if size:
            statement = sql.SQL(
                "DELETE FROM {0} WHERE NOT EXISTS (SELECT 1 FROM {1} AS live WHERE live.stage = {0}.{2})"
            ).format(self.name, self._attempts.identifier(), sql.Identifier(STAGE))
            connection.execute(statement)

    def _truncate(self, connection: Connection) -> bool:
        try:
            with connection.transaction():
                # An attempt that is writing holds a lock until it commits; its rows are nobody's business yet.
                connection.execute(sql.SQL("LOCK TABLE {} IN ACCESS EXCLUSIVE MODE NOWAIT").format(self.name))
                live = connection.execute(
                    sql.SQL("SELECT EXISTS (SELECT 1 FROM {} WHERE staging = %s)").format(self._attempts.escaped()),
                    (str(self.table),),
                ).fetchone()
                if live is None or live[0]:
                    return False
                connection.execute(sql.SQL("TRUNCATE {}").format(self.name))
        except psycopg.errors.LockNotAvailable:
            return False
        return True


def new_stage() -> int:
    """Draw the number of an attempt: two never meet."""
    return secrets.randbits(63)


def own_columns(options: PostgresOptions) -> list[tuple[str, str]]:
    """Return the columns that staging has beside the table's, before them: name and type."""
    columns = [(STAGE, "bigint")]
    if options.write_mode == "upsert":
        columns.append((ROW, "bigint"))
    if options.delete_marker is not None:
        columns.append((MARKER, "boolean"))
    return columns


def staging_ddl(name: TableName, columns: Sequence[tuple[str, str]]) -> list[sql.Composed]:
    """Return the statements that make a staging table.

    Args:
        name: its name.
        columns: its own and the target's that may be written: name, and type as `TableColumn.definition` gives it.
    """
    # The types come from the server's own catalogue, which writes them as SQL.
    fields = [sql.SQL("{} {}").format(sql.Identifier(column), sql.SQL(kind)) for column, kind in columns]
    return [sql.SQL("CREATE UNLOGGED TABLE {} ({})").format(name.identifier(), sql.SQL(", ").join(fields))]
