"""The tables of one step: the target, the ledger, staging and dead letters; how they are asked, and made.

What is missing is made in a database that other queries write to as well, without keeping them waiting.
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
"""Seconds for one lock. Whoever waits for a table's lock keeps all out that come later, readers among them."""


@dataclass(frozen=True)
class Wanted:
    """Things that are made together where one of them is missing."""

    names: tuple[str, ...]
    """What they are, for whoever makes the same: tables without their schemas, which not everybody names."""
    missing: Callable[[PostgresConnection], Sequence[sql.Composed]]
    """Looks, and returns the statements that make what is missing."""


@dataclass(frozen=True)
class StepTables:
    """The tables of one step, and the way to them."""

    step_id: str
    database: PostgresDatabase
    target: TableName
    ledger: StepLedger
    staging: Staging
    """Made only where tasks stage rows."""
    letters: DeadLetterTable | None
    """`None` where a row that is refused fails the query."""

    @property
    def options(self) -> PostgresOptions:
        """How rows are written."""
        return self.database.options

    def run(self, doing: str, work: Callable[[PostgresConnection], T], *, starting: bool = False) -> T:
        """Run a transaction: see `PostgresDatabase.run`."""
        return self.database.run(doing, work, step=self.step_id, starting=starting)

    def explained(self, doing: str) -> AbstractContextManager[None]:
        """Explain the driver's errors in what a task does."""
        return explained(self.database, f"{doing} {self.target}", self.step_id)

    def make(self, wanted: Wanted) -> None:
        """Make what is missing, in a transaction of its own. Nothing is locked where nothing is.

        Called by drivers of several queries at once. A lock that another session keeps is waited for in short tries,
        until `retry_deadline`; between them everything is let go.

        Raises:
            TransientError: the deadline has passed.
            OutfallError: an error that will not pass.
        """
        if not self.run("looking at", wanted.missing):
            return
        try:
            self.run("making what is missing for", lambda connection: _make(connection, wanted))
        except TransientError as error:
            if not isinstance(error.__cause__, psycopg.errors.LockNotAvailable):
                raise
            raise TransientError(
                f"making what is missing for {self.target} in {self.database.name()} waited in vain for a lock",
                why=f"another session holds {' or '.join(wanted.names)}",
                do="see in pg_locks and pg_stat_activity who does; nothing was changed, and the next run of the query"
                " goes on; for longer waits raise the option retry_deadline",
            ) from error


def _make(connection: PostgresConnection, wanted: Wanted) -> None:
    connection.execute("SELECT set_config('lock_timeout', %s, true)", (f"{int(_LONGEST_WAIT * 1000)}ms",))
    # IF NOT EXISTS is no lock: of two that make the same at once one fails.
    for name in sorted(wanted.names):
        connection.execute("SELECT pg_advisory_xact_lock(hashtext(%s), hashtext(%s))", (_MAKING, name))
    for statement in wanted.missing(connection):
        reached("postgres: making")
        connection.execute(statement)
