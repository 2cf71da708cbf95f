"""The tables of one step: the target, the ledger, staging and dead letters; how they are queried and created.

Tables are created in a database to which other queries write, without blocking these.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TypeVar

import psycopg
from psycopg import sql

from outfall.errors import TransientError
from outfall.postgres.connection.database import PostgresConnection, PostgresDatabase
from outfall.postgres.connection.errors import explained
from outfall.postgres.ledger import StepLedger
from outfall.postgres.names import TableName
from outfall.postgres.options import PostgresOptions
from outfall.postgres.staging.dead_letters import DeadLetterTable
from outfall.postgres.staging.staging_table import Staging
from outfall.trace_points import reached

T = TypeVar("T")

_MAKING = "outfall: making"
"""The name of advisory locks."""

_LONGEST_WAIT = 2.0
"""Seconds for one lock. A waiting lock request blocks all later ones, including those of readers."""


@dataclass(frozen=True)
class Wanted:
    """Objects that are created together if one of them is missing."""

    names: tuple[str, ...]
    """Their names for advisory locks: tables without schemas, because not every query names the schema."""
    missing: Callable[[PostgresConnection], Sequence[sql.Composed]]
    """Returns the statements that create the missing objects."""


@dataclass(frozen=True)
class StepTables:
    """The tables of one step, and their database."""

    step_id: str
    database: PostgresDatabase
    target: TableName
    ledger: StepLedger
    staging: Staging
    """Created only if tasks stage rows."""
    letters: DeadLetterTable | None
    """`None` if a rejected row fails the query."""

    @property
    def options(self) -> PostgresOptions:
        """The options of the sink."""
        return self.database.options

    def run(self, doing: str, work: Callable[[PostgresConnection], T], *, starting: bool = False) -> T:
        """Run a transaction: see `PostgresDatabase.run`."""
        return self.database.run(doing, work, step=self.step_id, starting=starting)

    def explained(self, doing: str) -> AbstractContextManager[None]:
        """Translate psycopg's errors in an operation of a task."""
        return explained(self.database, f"{doing} {self.target}", self.step_id)

    def make(self, wanted: Wanted) -> None:
        """Create missing objects in a separate transaction. If nothing is missing, nothing is locked.

        Drivers of several queries may call this at once. If another session holds a lock, this waits in short attempts
        until `retry_deadline`, and releases all its own locks between them. Raises `TransientError` if the deadline has
        passed; a permanent error is another `OutfallError`.
        """
        if not self.run("checking", wanted.missing):
            return
        try:
            self.run("creating missing tables for", lambda connection: _make(connection, wanted))
        except TransientError as error:
            if not isinstance(error.__cause__, psycopg.errors.LockNotAvailable):
                raise
            raise TransientError(
                f"creating missing tables for {self.target} in {self.database.name()} timed out waiting for a lock",
                why=f"another session has locked {' or '.join(wanted.names)}",
                do="find that session in pg_locks and pg_stat_activity; nothing was changed, and the next run of the"
                " query continues; for longer waits, raise the option retry_deadline",
            ) from error


def _make(connection: PostgresConnection, wanted: Wanted) -> None:
    connection.execute("SELECT set_config('lock_timeout', %s, true)", (f"{int(_LONGEST_WAIT * 1000)}ms",))
    # IF NOT EXISTS does not lock: if two sessions create the same table at once, one fails.
    for name in sorted(wanted.names):
        connection.execute("SELECT pg_advisory_xact_lock(hashtext(%s), hashtext(%s))", (_MAKING, name))
    for statement in wanted.missing(connection):
        reached("postgres: making")
        connection.execute(statement)
