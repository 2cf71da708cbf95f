"""Whether the server has room for the locks of a transaction that writes many tables.

A table has a lock, and each of its indexes, until the transaction ends. All sessions share the room.
"""

from __future__ import annotations

from collections.abc import Sequence

import psycopg

from outfall.errors import TargetError
from outfall.postgres.connection.database import PostgresConnection
from outfall.postgres.connection.errors import describe
from outfall.sql.names import SqlName
from outfall.sql.session import Statement

_ROOM = """
SELECT current_setting('max_locks_per_transaction')::bigint, current_setting('max_locks_per_transaction')::bigint
    * (current_setting('max_connections')::bigint + current_setting('max_prepared_transactions')::bigint),
  (SELECT count(*) FROM pg_catalog.pg_index
   WHERE indrelid = ANY(ARRAY(SELECT to_regclass(name)::oid FROM unnest(%(tables)s::text[]) AS name)))
"""


def check_locks(session: PostgresConnection, tables: Sequence[SqlName], locking: Sequence[Statement]) -> None:
    """Reject tables for which the server has no room in one transaction. Changes nothing.

    `locking` are the statements that lock them. Raises `TargetError` if the settings give less room than is needed, and
    the driver's error if other sessions have taken it.
    """
    each, room, indexes = session.execute(_ROOM, {"tables": [table.quoted for table in tables]}).fetchone() or (0, 0, 0)
    needed = len(tables) + indexes
    if 2 * needed <= room:
        return
    try:
        # The server has more room than its settings say.
        with session.savepoint(undo=True):
            session.each(locking)
    except psycopg.errors.OutOfMemory as error:
        if needed <= room:
            raise
        raise TargetError(
            f"the server has no room for the locks of the {len(tables):,} tables of this epoch",
            why=f"one transaction writes them, with {needed:,} locks of tables and indexes, and"
            f" max_locks_per_transaction = {each} gives all sessions together about {room:,}; {describe(error)}",
            do=f"set max_locks_per_transaction to {-(-each * 2 * needed // max(room, 1)):,} or more, and restart the"
            " server; or let an epoch have fewer tables, by smaller epochs or by several queries",
        ) from error
