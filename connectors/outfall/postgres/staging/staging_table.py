"""Staging in PostgreSQL: one unlogged table per step and target."""

from __future__ import annotations

from collections.abc import Sequence

import psycopg

from outfall.postgres.catalogue.columns import read_columns
from outfall.postgres.connection.database import PostgresConnection
from outfall.postgres.names import quote
from outfall.sql.dialect import compose
from outfall.sql.options import MARKER, OPERATION, ROW, STAGE
from outfall.sql.staging import Staging
from outfall.sql.table import missing

_OWN = {STAGE: "bigint", ROW: "bigint", MARKER: "boolean", OPERATION: "text"}

_TRUNCATE_BYTES = 8 << 20
"""A staging table of at most this size is cleared with DELETE. TRUNCATE creates a new file and locks the table."""


class PostgresStaging(Staging):
    """The staging table of one step and target in PostgreSQL."""

    def missing_ddl(self, session: PostgresConnection) -> Sequence[str]:
        # With the table's collations, so that keys compare equal in staging exactly if they do in the table.
        columns = read_columns(session, self._target)
        wanted = [(column.name, column.definition) for column in columns if column.writable]
        if not wanted:
            raise missing(self._target)
        wanted = [(name, _OWN[name]) for name in self._options.own_columns()] + wanted
        found = [(column.name, column.definition) for column in read_columns(session, self.table)]
        if found == wanted:
            return []
        # The types come from the server's catalog as SQL text.
        fields = ", ".join(f"{quote(column)} {kind.replace('%', '%%')}" for column, kind in wanted)
        old = [compose("DROP TABLE {}", self.table.sql)] if found else []
        return [*old, compose("CREATE UNLOGGED TABLE {} ({})", self.table.sql, fields)]

    def clear(self, session: PostgresConnection) -> None:
        # A large table is truncated if the user may do so, no attempt may still be published, and no task is writing.
        size, live = session.execute(
            compose("SELECT pg_relation_size(%s::regclass), {}", self._live()), (self.table.quoted, str(self.table))
        ).fetchone() or (0, True)
        if size and not (size > _TRUNCATE_BYTES and not live and self._truncate(session)):
            super().clear(session)

    def _live(self) -> str:
        return compose("EXISTS (SELECT 1 FROM {} WHERE staging = %s)", self._attempts)

    def _truncate(self, session: PostgresConnection) -> bool:
        try:
            with session.transaction():
                # A writing attempt holds a lock until it commits.
                session.execute(compose("LOCK TABLE {} IN ACCESS EXCLUSIVE MODE NOWAIT", self.table.sql))
                live = session.execute(compose("SELECT {}", self._live()), (str(self.table),)).fetchone()
                if live is None or live[0]:
                    return False
                session.execute(compose("TRUNCATE {}", self.table.sql))
        except (psycopg.errors.LockNotAvailable, psycopg.errors.InsufficientPrivilege):
            return False
        return True
