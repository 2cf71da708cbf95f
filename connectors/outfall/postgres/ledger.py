"""The ledger: which epoch of which step a table holds, in the same database and the same transactions.

```
begin      the row is made or takes the new generation on: from then on an older driver's publication is refused
publish    lock the row · look whether the epoch is in · move the winners' rows · write the epoch · COMMIT
```

A lost reply to COMMIT is settled by looking: whoever holds the row's lock knows what is in the table.
"""

from __future__ import annotations

from dataclasses import dataclass

from psycopg import sql
from psycopg.rows import class_row

from outfall.postgres.connection import Connection
from outfall.postgres.names import TableName


@dataclass(frozen=True)
class LedgerRow:
    """What a table holds of one step."""

    generation: int
    """The newest generation that began."""
    begun: int
    """The newest epoch that began with its number known; -1 before the first. A checkpoint that is adopted through
    options tells its first epoch only to the tasks."""
    epoch: int | None
    """The newest epoch whose rows are in the table; `None` before the first. Epochs without rows leave no trace, but
    with `on_existing="overwrite"`, where the first one empties the table."""
    revoked: int
    """Generations up to this one may publish no more."""

    def newest(self) -> int | None:
        """The newest epoch that this table has seen; `None` while no number is known."""
        found = max(self.begun, -1 if self.epoch is None else self.epoch)
        return None if found < 0 else found

    def holds(self, epoch: int) -> bool:
        """Tell whether an epoch's rows are in the table."""
        return self.epoch is not None and self.epoch >= epoch


class Ledger:
    """The ledger's row of one step and table. Every call runs in the caller's transaction."""

    def __init__(self, metadata_schema: str, incarnation: str, table: TableName) -> None:
        self._name = TableName(metadata_schema, "ledger").escaped()
        self._key = {"incarnation": incarnation, "target": str(table)}

    def read(self, connection: Connection, *, lock: bool = False) -> LedgerRow | None:
        """Return the row, `None` when there is none; with `lock` no other transaction writes it meanwhile."""
        query = sql.SQL(
            "SELECT generation, begun, epoch, revoked FROM {}"
            " WHERE incarnation = %(incarnation)s AND target = %(target)s"
        ).format(self._name)
        if lock:
            query += sql.SQL(" FOR UPDATE")
        with connection.cursor(row_factory=class_row(LedgerRow)) as cursor:
            return cursor.execute(query, self._key).fetchone()

    def share(self, connection: Connection) -> LedgerRow | None:
        """Return the row under a lock that many may hold; `begin` and whoever locks it alone wait for them."""
        query = sql.SQL(
            "SELECT generation, begun, epoch, revoked FROM {}"
            " WHERE incarnation = %(incarnation)s AND target = %(target)s FOR SHARE"
        ).format(self._name)
        with connection.cursor(row_factory=class_row(LedgerRow)) as cursor:
            return cursor.execute(query, self._key).fetchone()

    def published_by_others(self, connection: Connection, step: str) -> LedgerRow | None:
        """Return the newest row of the same step and table that another incarnation has published under."""
        query = sql.SQL(
            "SELECT generation, begun, epoch, revoked FROM {} WHERE step = %(step)s AND target = %(target)s"
            " AND incarnation <> %(incarnation)s AND epoch IS NOT NULL ORDER BY changed DESC LIMIT 1"
        ).format(self._name)
        with connection.cursor(row_factory=class_row(LedgerRow)) as cursor:
            return cursor.execute(query, self._key | {"step": step}).fetchone()

    def begin(self, connection: Connection, *, step: str, generation: int, epoch: int) -> LedgerRow:
        """Write that a generation began, unless a newer one did, and return the row as it is then."""
        statement = sql.SQL(
            "INSERT INTO {0} AS ledger (incarnation, target, step, generation, begun)"
            " VALUES (%(incarnation)s, %(target)s, %(step)s, %(generation)s, %(epoch)s)"
            " ON CONFLICT (incarnation, target) DO UPDATE"
            " SET step = EXCLUDED.step, generation = EXCLUDED.generation,"
            " begun = greatest(ledger.begun, EXCLUDED.begun), changed = now()"
            " WHERE ledger.generation <= EXCLUDED.generation"
        ).format(self._name)
        connection.execute(statement, self._key | {"step": step, "generation": generation, "epoch": epoch})
        found = self.read(connection, lock=True)
        if found is None:
            raise RuntimeError("the ledger lost a row that was just written")
        return found

    def published(self, connection: Connection, *, epoch: int, rows: int) -> None:
        """Write that an epoch's rows are in the table. The caller holds the lock."""
        statement = sql.SQL(
            "UPDATE {} SET epoch = %(epoch)s, begun = greatest(begun, %(epoch)s), rows = rows + %(rows)s,"
            " changed = now()"
            " WHERE incarnation = %(incarnation)s AND target = %(target)s"
        ).format(self._name)
        connection.execute(statement, self._key | {"epoch": epoch, "rows": rows})

    def revoke(self, connection: Connection, *, generation: int) -> None:
        """Write that a generation and all before it may publish no more. The caller holds the lock."""
        statement = sql.SQL(
            "UPDATE {} SET revoked = greatest(revoked, %(generation)s), changed = now()"
            " WHERE incarnation = %(incarnation)s AND target = %(target)s"
        ).format(self._name)
        connection.execute(statement, self._key | {"generation": generation})

    def end(self, connection: Connection) -> None:
        """Remove the row: nobody comes back to this incarnation, and what it began is completed."""
        statement = sql.SQL("DELETE FROM {} WHERE incarnation = %(incarnation)s AND target = %(target)s").format(
            self._name
        )
        connection.execute(statement, self._key)


def ledger_ddl(metadata_schema: str) -> list[sql.Composed]:
    """Return the statements that make what all sinks of a database share. Running them again changes nothing."""
    schema = sql.Identifier(metadata_schema)
    return [
        sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(schema),
        sql.SQL(
            "CREATE TABLE IF NOT EXISTS {}.ledger ("
            "incarnation text NOT NULL, target text NOT NULL, step text NOT NULL, generation bigint NOT NULL,"
            " begun bigint NOT NULL, epoch bigint, revoked bigint NOT NULL DEFAULT 0, rows bigint NOT NULL DEFAULT 0,"
            " changed timestamptz NOT NULL DEFAULT now(), PRIMARY KEY (incarnation, target))"
        ).format(schema),
        sql.SQL(
            "CREATE TABLE IF NOT EXISTS {}.attempts ("
            "stage bigint PRIMARY KEY, staging text NOT NULL, incarnation text NOT NULL, generation bigint NOT NULL,"
            " epoch bigint NOT NULL, attempt bigint NOT NULL, rows bigint NOT NULL,"
            " staged timestamptz NOT NULL DEFAULT now())"
        ).format(schema),
    ]
