"""Applies the changes of an epoch, with the statements of `change_sql`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from outfall.postgres.connection.database import PostgresConnection
from outfall.postgres.names import TableName, quote
from outfall.postgres.options import PostgresOptions
from outfall.postgres.staging.change_sql import ChangeStatements
from outfall.postgres.staging.moving import AT_ONCE, PostgresUpsertMove, RowsByRank
from outfall.postgres.staging.selection_sql import Rows
from outfall.sql.dialect import StagedRows, compose
from outfall.sql.options import STAGE

_CHANGING = "outfall: changing"
"""The name of advisory locks."""


class PostgresChangeMove(PostgresUpsertMove):
    """Applies the newest change of each key.

    Publications of changes to one table wait for one another: a statement does not see the tombstones of a transaction
    that commits while it runs.
    """

    def __init__(
        self,
        options: PostgresOptions,
        table: TableName,
        staging: TableName,
        tombstones: TableName,
        attempts: Sequence[StagedRows],
    ) -> None:
        super().__init__(options, table, staging, attempts)
        self._statements = ChangeStatements(options, table, staging, tombstones, self.columns)
        self._lock = (_CHANGING, str(tombstones))
        self._surveyed: tuple[int, int, int] | None = None

    def hold(self, session: PostgresConnection) -> None:
        session.execute("SELECT pg_advisory_xact_lock(hashtext(%s), hashtext(%s))", self._lock)
        super().hold(session)

    def statements(self, session: PostgresConnection, rows: Rows) -> list[str]:
        each = self._statements
        return [each.write_tombstones(rows), each.remove(rows), each.write(rows)]

    def whole(self, session: PostgresConnection, *, at_once: bool = False) -> int:
        if at_once:
            session.execute(AT_ONCE)
        if not self.columns:
            return 0
        writes, removals, _ = self._survey(session)
        write_tombstones, remove, write = self.statements(session, "all")
        given = {"stages": list(self.expected)}
        tombstones = session.execute(write_tombstones, given).rowcount if removals else 0
        removed = session.execute(remove, given).rowcount if tombstones else 0
        written = session.execute(write, given).rowcount if writes else 0
        self.stale = writes + removals - tombstones - written
        return removed + written

    def positioned_rows(self, session: PostgresConnection) -> ChangesByRank:
        self._prepare_places(session)
        moving = [self.statements(session, rows) for rows in ChangesByRank.selects]
        return ChangesByRank(session, self, self._staging, moving)

    def pass_over(self, session: PostgresConnection) -> None:
        """Remove stale rows from the ranking."""
        self.stale = session.execute(self._statements.pass_over()).rowcount

    def tied(self, session: PostgresConnection, most: int) -> Sequence[str]:
        if not self.columns or not self._survey(session)[2]:
            return []
        found = session.execute(self._statements.tied(), {"stages": list(self.expected), "most": most})
        return [place for (place,) in found.fetchall()]

    def leave_out(self, session: PostgresConnection, places: Sequence[str]) -> None:
        statement = compose("DELETE FROM {} WHERE ctid = ANY(%s::tid[]) RETURNING {}", self._staging.sql, quote(STAGE))
        for (stage,) in session.execute(statement, (list(places),)).fetchall():
            self.expected[stage] -= 1
        self._surveyed = None

    def _survey(self, session: PostgresConnection) -> tuple[int, int, int]:
        """Return the numbers of keys to write and to remove, and of rows that share a sequence with another one."""
        if self._surveyed is None:
            found = session.execute(self._statements.survey(), {"stages": list(self.expected)}).fetchone()
            self._surveyed = found or (0, 0, 0)
        return self._surveyed


class ChangesByRank(RowsByRank):
    """The newest change of each key, without those that are stale."""

    def _prepare(self, move: Any) -> None:
        super()._prepare(move)
        move.pass_over(self._session)

    def _run(self, moving: Sequence[str], given: Mapping[str, Any]) -> int:
        write_tombstones, *writing = moving
        self._session.execute(write_tombstones, given)
        return super()._run(writing, given)
