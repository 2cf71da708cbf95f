"""Staging: one table per step and target, in which each attempt's rows have their own number.

The table is created once and remains. Rows whose number is in `attempts` may still be published. All others are from
attempts that were published, lost or killed, and are removed after an epoch.

The name is deterministic, so that a DBA can create the table. This module also detects a staging table that was lost or
altered.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from outfall.capabilities import CleanUpContext, WriterInitContext
from outfall.sql.database import Session
from outfall.sql.dead_letters import DeadLetterTable
from outfall.sql.dialect import Column, Dialect, StagedRows, among, compose, count_by_stage
from outfall.sql.names import SqlName
from outfall.sql.options import STAGE
from outfall.sql.session import Statement
from outfall.sql.statements import staging_ddl, staging_index_ddl
from outfall.sql.table import missing

_SETTLED = "-"
"""The incarnation of attempts of many tables that are published or discarded. No row of the ledger has it."""


class Staging:
    """The staging table of one step and target. Every call runs in the caller's transaction.

    `target` is the table of the rows, and `attempts` that of the attempts of all steps, next to the ledger. If a column
    names the tables, `layout` has the columns of all those whose rows are in this one.
    """

    _is_here = "staging = %(staging)s"
    """Whether an attempt is in this table."""
    _to_clean = "stage"
    """What a clean-up has to know of an attempt."""

    def __init__(
        self, dialect: Dialect, table: SqlName, target: SqlName, layout: Sequence[Column] | None = None
    ) -> None:
        schema = dialect.options.metadata_schema
        self.table = table
        self._dialect = dialect
        self._options = dialect.options
        self._target = target
        self._layout = layout
        self._attempts = table.sibling(schema, "attempts").sql
        self._ledger = table.sibling(schema, "ledger").sql
        self._stage = dialect.quote(STAGE)

    def missing_ddl(self, session: Any) -> Sequence[str]:
        """Return the statements that give staging the target's columns; none if it has them.

        Raises `TargetError` if the target does not exist.
        """
        # With the table's collations, so that keys compare equal in staging exactly if they do in the table.
        columns = self._dialect.columns(session, self._target) if self._layout is None else self._layout
        wanted = [(column.name, column.definition) for column in columns if column.writable]
        if not wanted:
            raise missing(self._target)
        own = self._options.own_columns()
        found = [(column.name, column.definition) for column in self._dialect.columns(session, self.table)]
        if [name for name, _ in found[: len(own)]] == own and found[len(own) :] == wanted:
            return []
        old = [compose("DROP TABLE {}", self.table.sql)] if found else []
        words = self._dialect.words
        index = [] if self._layout is None else [staging_index_ddl(words, self.table.sql)]
        return [*old, staging_ddl(words, self.table.sql, own, wanted), *index]

    def register(self, session: Session, context: WriterInitContext, staged: StagedRows) -> None:
        """Register the attempt of staged rows, in the transaction that writes them."""
        statement = compose(
            "INSERT INTO {} (stage, staging, incarnation, generation, epoch, attempt, {})"
            " VALUES (%s, %s, %s, %s, %s, %s, %s)",
            self._attempts,
            self._dialect.quote("rows"),
        )
        place = (context.incarnation, context.generation, context.epoch, context.attempt)
        session.later(statement, (staged.stage, str(self.table), *place, staged.rows))

    def counts(self, session: Session, stages: Collection[int]) -> dict[int, int]:
        """Return the number of staged rows of each attempt."""
        return count_by_stage(session, self._stage, self.table, stages)

    def registered(self, session: Session, stages: Sequence[int]) -> set[int]:
        """Return the attempts that are registered."""
        query = compose("SELECT stage FROM {} WHERE stage {}", self._attempts, among(stages))
        return {stage for (stage,) in session.execute(query).fetchall()}

    def forget(self, session: Session, stages: Sequence[int]) -> None:
        """Discard attempts. Their rows are removed later."""
        self._discard(session, stages)

    def clean_up(self, session: Session, context: CleanUpContext) -> int:
        """Discard unrecorded attempts of this incarnation's older generations, and remove the rows of discarded ones.

        Returns the number of attempts. Attempts of incarnations without a ledger row are discarded too. They are never
        published: a task of a batch job may end after its job.
        """
        stages = [stage for (stage,) in session.execute(*self.reading_older(context)).fetchall()]
        self._discard(session, stages)
        self._clear(session)
        return len(stages)

    def _discard(self, session: Session, stages: Sequence[int]) -> None:
        # By their numbers, because where a DELETE has to search, it may wait for rows that a task is registering.
        if stages:
            session.later(compose("DELETE FROM {} WHERE stage {}", self._attempts, among(stages)))

    def reading_older(self, context: CleanUpContext) -> Statement:
        """Return the first query of `clean_up`."""
        query = compose("SELECT {} FROM {} WHERE {}", self._to_clean, self._attempts, self._is_older())
        return query, self._bounds(context)

    def older(self, session: Session, context: CleanUpContext) -> list[str]:
        """Describe the attempts that `clean_up` would discard."""
        query = compose(
            "SELECT staging, incarnation, generation, epoch, attempt, {} FROM {} WHERE {} ORDER BY 1, 2, 3, 4, 5",
            self._dialect.quote("rows"),
            self._attempts,
            self._is_older(),
        )
        return [
            f"{staging}: {rows} rows of attempt {attempt}, epoch {epoch}, generation {generation} of"
            f" {'an epoch that is settled' if incarnation == _SETTLED else incarnation}"
            for staging, incarnation, generation, epoch, attempt, rows in session.execute(
                query, self._bounds(context)
            ).fetchall()
        ]

    def _is_older(self) -> str:
        return compose(
            "{0} AND (incarnation = %(incarnation)s AND generation < %(generation)s"
            " OR NOT EXISTS (SELECT 1 FROM {1} AS ledger WHERE ledger.incarnation = {2}.incarnation))",
            self._is_here,
            self._ledger,
            self._attempts,
        )

    def _bounds(self, context: CleanUpContext) -> dict[str, str | int]:
        return {
            "staging": str(self.table),
            "incarnation": context.incarnation,
            "generation": context.generation + context.final,
        }

    def _clear(self, session: Any) -> None:
        """Remove the rows of all discarded attempts."""
        if not self._dialect.emptied(session, self.table, self._attempts):
            self._dialect.discard(session, self._stage, self.table, self._attempts)

    def find_lost(
        self, session: Session, attempts: Sequence[StagedRows], dead_letters: DeadLetterTable | None
    ) -> Mapping[int, str]:
        """Return the attempts whose recorded rows can no longer be published, by number, with the reason.

        Their rows are missing in staging, or staging no longer matches the attempt or the table. An altered table can
        only accept rows that the changed query writes again. A missing table does not count here, because all its other
        rows are lost too. `dead_letters` are the tables of the attempts' dead letters.
        """
        reasons = self.unfit(session, attempts)
        fitting = [attempt for attempt in attempts if reasons[attempt.stage] is None]
        if fitting:
            reasons |= self._miscounted(session, fitting, dead_letters)
        return {stage: reason for stage, reason in reasons.items() if reason is not None}

    def unfit(self, session: Session, attempts: Sequence[StagedRows]) -> dict[int, str | None]:
        """Return by number why the staging table no longer matches an attempt or the table; `None` if it does."""
        staged = {column.name: column for column in self._dialect.columns(session, self.table)}
        wanted = {column.name: column for column in self._dialect.columns(session, self._target)}
        return {attempt.stage: self._unfit(attempt, staged, wanted) for attempt in attempts}

    def _unfit(self, attempt: StagedRows, staged: Mapping[str, Column], wanted: Mapping[str, Column]) -> str | None:
        table = self.table
        if attempt.staging not in (None, (table.schema, table.name)):
            former = ".".join(attempt.staging or ())
            return f"attempt {attempt.stage} was staged in {former}, but the sink's current options use {table}"
        if not staged:
            return f"the staging table {table} with the {attempt.rows} rows of attempt {attempt.stage} is missing"
        missing = [name for name in (*self._options.own_columns(), *attempt.columns) if name not in staged]
        if missing:
            return f"{table} no longer has the column {missing[0]!r}, with which attempt {attempt.stage} was staged"
        return self._mismatch(attempt, staged, wanted)

    def _mismatch(self, attempt: StagedRows, staged: Mapping[str, Column], wanted: Mapping[str, Column]) -> str | None:
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
        named = [name for name in options.columns_named() if name not in (*attempt.columns, *options.not_stored)]
        needed = [] if deletes else [name for name, column in wanted.items() if column.needed]
        given = [*named, *(name for name in needed if name not in attempt.columns)]
        if given:
            return f"attempt {attempt.stage} was staged without column {given[0]!r}, which is required now"
        return None

    def _miscounted(
        self, session: Session, attempts: Sequence[StagedRows], dead_letters: DeadLetterTable | None
    ) -> Mapping[int, str]:
        stages = [attempt.stage for attempt in attempts]
        rows = self.counts(session, stages)
        waiting = {} if dead_letters is None else dead_letters.counts(session, stages)
        return {
            attempt.stage: f"{self.table} holds {rows[attempt.stage]} of the {attempt.rows} rows of attempt"
            f" {attempt.stage} and {waiting.get(attempt.stage, attempt.letters)} of its {attempt.letters} dead letters:"
            f" {self._dialect.volatile}"
            for attempt in attempts
            if (rows[attempt.stage], waiting.get(attempt.stage, attempt.letters)) != (attempt.rows, attempt.letters)
        }


class StagingOfMany(Staging):
    """The staging tables of a step with many tables: one for each layout. The name of this one is how theirs begin.

    An attempt stays registered as long as a row of it may be there: one that is published or discarded is `_SETTLED`,
    until a clean-up removes it together with its rows. So that has to look only into the tables that attempts name,
    whoever has published them, and not into those of all layouts that there ever were.
    """

    _is_here = "substring(staging, 1, %(length)s) = %(staging)s"
    _to_clean = "stage, staging"

    def forget(self, session: Session, stages: Sequence[int]) -> None:
        statement = compose("UPDATE {} SET incarnation = %s WHERE stage {}", self._attempts, among(stages))
        session.later(statement, (_SETTLED,))

    def clean_up(self, session: Session, context: CleanUpContext) -> int:
        found = dict(session.execute(*self.reading_older(context)).fetchall())
        self._discard(session, list(found))
        # Earlier releases registered no attempt that was published.
        every = context.final or context.lost is None
        for layout in self._layouts(session, None if every else set(found.values())):
            layout._clear(session)
        return len(found)

    def _bounds(self, context: CleanUpContext) -> dict[str, str | int]:
        return {**super()._bounds(context), "length": len(str(self.table))}

    def _layouts(self, session: Session, named: Collection[str] | None) -> list[Staging]:
        """Return those staging tables that exist: all, or those with some names."""
        schema, begins = self.table.schema or "", self.table.name
        condition = "substring(table_name, 1, %s) = %s"
        given: list[Any] = [len(begins), begins]
        if named is not None:
            condition = f"table_name IN ({', '.join(['%s'] * len(named))})"
            given = sorted(name.removeprefix(f"{schema}.") for name in named)
        if not given:
            return []
        query = "SELECT table_name FROM information_schema.tables WHERE table_schema = %s AND {} ORDER BY 1"
        found = session.execute(compose(query, condition), (schema, *given)).fetchall()
        return [Staging(self._dialect, self.table.sibling(schema, name), self._target) for (name,) in found]


def layout_of(columns: Sequence[Column]) -> list[Column]:
    """Return the columns of a table for which rows have values, in an order that is the same for all with them."""
    return sorted((column for column in columns if column.writable), key=lambda column: column.name)


def new_stage() -> int:
    """Return a random number for an attempt, which is unique."""
    return secrets.randbits(63)
