"""The tables of a step: its target, or those that rows name, and its own; and which of them an epoch has rows for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

from outfall.capabilities import CommitterInitContext
from outfall.sql.database import ExpectedTables, Session, SqlDatabase
from outfall.sql.dead_letters import DeadLetterTable
from outfall.sql.dialect import Dialect, StagedRows, StagedTable
from outfall.sql.keyed import Move
from outfall.sql.ledger import LedgerRow, StepLedger
from outfall.sql.names import SqlName
from outfall.sql.options import SqlOptions
from outfall.sql.staging import Staging
from outfall.sql.tombstones import Tombstones

T = TypeVar("T")
D = TypeVar("D", bound=Dialect)


@dataclass(frozen=True)
class StepTables(Generic[D]):
    """The tables of one step, and their database. What differs if rows name the targets is in `ManyTables`."""

    where: ClassVar[str] = "the table"
    """The targets, in texts that say that something is in none of them."""

    step_id: str
    dialect: D
    target: SqlName
    ledger: StepLedger
    staging: Staging
    """Created only if tasks stage rows."""
    dead_letters: DeadLetterTable | None
    """`None` if a rejected row fails the query."""
    tombstones: Tombstones | None = None
    """`None` unless the rows are changes."""

    @property
    def options(self) -> SqlOptions:
        """The options of the sink."""
        return self.dialect.options

    @property
    def database(self) -> SqlDatabase:
        """The database."""
        return self.dialect.database

    def run(self, doing: str, work: Callable[[Any], T], *, starting: bool = False, **first: Any) -> T:
        """Run a transaction: see `SqlDatabase.run`."""
        return self.database.run(doing, work, step=self.step_id, starting=starting, **first)

    def make(self, expected: ExpectedTables) -> None:
        """Create missing objects: see `SqlDatabase.make`."""
        self.database.make(expected, self.step_id)

    def translated_errors(self, doing: str) -> AbstractContextManager[None]:
        """Translate the driver's errors in an operation of a task."""
        return self.database.translated_errors(f"{doing} {self.target}", self.step_id)

    # --- those of an epoch

    @property
    def looks(self) -> bool:
        """Whether a publication asks the catalogue."""
        return self.options.by_key

    def of_epoch(self, attempts: Sequence[StagedRows]) -> list[EpochTable]:
        """Return the targets of attempts, in the order of their names, so that two steps cannot deadlock."""
        return [EpochTable(self, attempts)]

    def new(self, session: Session, row: LedgerRow, tables: Sequence[EpochTable]) -> list[EpochTable]:
        """Return those in which no epoch of this query has rows, by the step's row in the ledger."""
        return list(tables) if row.epoch is None else []

    def record(self, session: Session, context: CommitterInitContext, new: Sequence[EpochTable]) -> None:
        """Record that they are no longer new, in the transaction that writes their first rows."""

    def hold(self, session: Session, moves: Sequence[Move]) -> None:
        """Lock the tables as moving rows does, so that no other session alters them before."""
        for move in moves:
            move.hold(session)

    def unfit(self, session: Session, tables: Sequence[EpochTable]) -> bool:
        """Return whether a target or its staging no longer matches the rows."""
        return any(any(self.staging.unfit(session, table.attempts).values()) for table in tables)

    def lacks_rows(self, session: Session, tables: Sequence[EpochTable], settled: int | None = None) -> bool:
        """Return whether staging lacks rows. Asked before they are moved, and after so many were."""
        return False  # the move of one table asks by itself

    def find_lost(self, session: Session, attempts: Sequence[StagedRows]) -> Mapping[int, str]:
        """Return the attempts whose rows can no longer be published: see `Staging.find_lost`."""
        return self.staging.find_lost(session, attempts, self.dead_letters)


@dataclass(frozen=True)
class EpochTable:
    """The rows of an epoch for one table."""

    tables: StepTables[Any]
    """The tables of the step, of which the target is this one."""
    attempts: Sequence[StagedRows]
    """Those in its staging table."""
    only: StagedTable | None = None
    """Which rows of them are for it; `None` if all are."""

    @property
    def rows(self) -> int:
        """The number of rows."""
        return sum(attempt.rows for attempt in self.attempts) if self.only is None else self.only.rows

    @property
    def in_ledger(self) -> str:
        """The name of the table in the ledger."""
        return str(self.tables.ledger.key["target"])

    def move(self) -> Move:
        """Return the move of the rows."""
        tables = self.tables
        tombstones = None if tables.tombstones is None else tables.tombstones.table
        return Move(tables.dialect, tables.target, tables.staging.table, self.attempts, tombstones, self.only)
