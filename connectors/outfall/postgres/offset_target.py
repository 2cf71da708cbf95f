"""The table of a sink whose tasks publish by themselves."""

from __future__ import annotations

import pyarrow as pa
from psycopg import sql

from outfall.postgres.connection import Connection
from outfall.postgres.ledger import LedgerRow
from outfall.postgres.target import MAKING, Target


class OffsetTarget(Target):
    """As `Target`, but what `on_existing="overwrite"` deletes goes before the first task runs.

    Later it is too late: no transaction of a task is the first one of all.
    """

    def _open(self, connection: Connection, schema: pa.Schema | None) -> LedgerRow:
        # Before looking: of two drivers that begin at once one is the first.
        connection.execute("SELECT pg_advisory_xact_lock(hashtext(%s))", (MAKING,))
        first = not self._has_ledger(connection) or self._ledger.read(connection) is None
        row = super()._open(connection, schema)
        if first and self._database.options.on_existing == "overwrite":
            connection.execute(sql.SQL("DELETE FROM {}").format(self._name.identifier()))
        return row
