"""Which tables COPY can write without a staging table between."""

from __future__ import annotations

from outfall.errors import ConfigurationError
from outfall.postgres.connection import Connection
from outfall.postgres.names import TableName

# A trigger's type is a bit mask: 1 row, 4 INSERT, 64 INSTEAD OF (catalog/pg_trigger.h).
_QUERY = """
SELECT relkind IN ('v', 'm'), EXISTS (
           SELECT 1 FROM pg_catalog.pg_trigger WHERE tgrelid = c.oid AND tgtype & 69 = 69 AND tgenabled <> 'D'
       ), row_security_active(c.oid),
       EXISTS (SELECT 1 FROM pg_catalog.pg_rewrite WHERE ev_class = c.oid AND ev_type = '3' AND ev_enabled <> 'D')
FROM pg_catalog.pg_class AS c WHERE c.oid = to_regclass(%s)
"""


def check_copied_into(connection: Connection, table: TableName) -> None:
    """Refuse a target that COPY does not write as an INSERT would (manual, COPY). One that does not exist passes.

    Raises:
        ConfigurationError: it is a view without an INSTEAD OF trigger, has row security for this user, or a rule.
    """
    found = connection.execute(_QUERY, (table.identifier().as_string(connection),)).fetchone()
    if found is None:
        return
    is_view, has_trigger, is_secured, has_rule = found
    if is_view and not has_trigger:
        what = f"{table} is a view without an INSTEAD OF INSERT trigger"
    elif is_secured:
        what = f"{table} has row security, which this user is subject to"
    elif has_rule:
        what = f"{table} has a rule for INSERT"
    else:
        return
    raise ConfigurationError(
        what,
        why="by parts rows go into the table by COPY, which writes no such view or table and runs no rule",
        do='set delivery="epoch", which inserts them; or write the table behind it, as a user who may',
    )
