"""The sequences of deleted keys in PostgreSQL."""

from __future__ import annotations

from collections.abc import Sequence

from outfall.postgres.catalogue.columns import read_columns
from outfall.postgres.connection.database import PostgresConnection
from outfall.postgres.names import quote
from outfall.sql.dialect import compose
from outfall.sql.tombstones import DELETED, Tombstones


class PostgresTombstones(Tombstones):
    """The sequences of deleted keys of one table in PostgreSQL."""

    def missing_ddl(self, session: PostgresConnection) -> Sequence[str]:
        # The types come from the server's catalog as SQL text.
        wanted = {name: kind.replace("%", "%%") for name, kind in self.columns(session)}
        found = {column.name: column.definition for column in read_columns(session, self.table)}
        if found:
            altered = [
                compose("ALTER COLUMN {0} TYPE {1} USING {0}::{2}", quote(name), kind, kind.partition(" COLLATE ")[0])
                for name, kind in wanted.items()
                if found.get(name, "").replace("%", "%%") != kind
            ]
            return [compose("ALTER TABLE {} {}", self.table.sql, ", ".join(altered))] if altered else []
        fields = [f"{quote(name)} {kind} NOT NULL" for name, kind in wanted.items()]
        keys = ", ".join(map(quote, self._options.key_columns))
        deleted = quote(DELETED)
        return [
            compose(
                "CREATE TABLE {} ({}, {} timestamptz NOT NULL, PRIMARY KEY ({}))",
                self.table.sql,
                ", ".join(fields),
                deleted,
                keys,
            ),
            compose("CREATE INDEX ON {} ({})", self.table.sql, deleted),
        ]

    def _forget(self, session: PostgresConnection, seconds: float, most: int) -> None:
        statement = compose(
            "DELETE FROM {0} WHERE ctid = ANY(ARRAY(SELECT ctid FROM {0} WHERE {1} < now() - make_interval(secs => %s)"
            " ORDER BY {1} LIMIT %s))",
            self.table.sql,
            quote(DELETED),
        )
        session.execute(statement, (seconds, most))
