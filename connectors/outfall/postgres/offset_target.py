"""The table of a sink whose tasks publish by themselves."""

from __future__ import annotations

from psycopg import sql

from outfall.postgres.connection import Connection
from outfall.postgres.target import Target

_SPACE = "outfall: beginning"


class OffsetTarget(Target):
    """As `Target`, but what `on_existing="overwrite"` deletes goes before the first task runs.

    Later it is too late: no transaction of a task is the first one of all.
    """

    def _begin(self, connection: Connection) -> None:
        context = self._context
        # Before looking: of two drivers of this query that begin at once one is the first.
        connection.execute(
            "SELECT pg_advisory_xact_lock(hashtext(%s), hashtext(%s))", (_SPACE, f"{context.incarnation} {self._name}")
        )
        first = self._ledger.read(connection) is None
        super()._begin(connection)
        if first and self._database.options.on_existing == "overwrite":
            connection.execute(sql.SQL("DELETE FROM {}").format(self._name.identifier()))


class SourceTarget(OffsetTarget):
    """As `OffsetTarget`, for rows that carry their source's offsets."""

    def _others(self, connection: Connection) -> None:
        """Nothing: rows that come again under another checkpoint find themselves there."""
