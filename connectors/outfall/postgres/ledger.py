"""The ledger: which epoch of which step a table holds, in the same database and the same transactions.

```
begin      lock the row · is its BEGIN in our log? · write generation and token of ours: from then on an older driver's
           publication is refused, and that of a driver on a copy of the log
publish    lock the row · is its BEGIN in our log? · is the epoch in? · move the rows · write the epoch · COMMIT
```

A lost reply to COMMIT is settled by looking: whoever holds the row's lock knows what is in the table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from psycopg import sql
from psycopg.rows import class_row

from outfall.postgres.columns import read_columns
from outfall.postgres.connection import Connection
from outfall.postgres.names import TableName
from outfall.target_record import TargetRecord


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
    token: str | None = None
    """The token of the BEGIN of `generation`; `None` in a row that a release without tokens wrote."""
    published_token: str | None = None
    """The token of the BEGIN that the rows of `epoch` were written under; `None` likewise."""
    has_tokens: bool = True
    """Whether the ledger has columns for tokens."""

    def holds(self, epoch: int) -> bool:
        """Tell whether an epoch's rows are in the table."""
        return self.epoch is not None and self.epoch >= epoch

    def record(self) -> TargetRecord:
        """Return what it says of the step."""
        return TargetRecord(self.generation, self.token, self.epoch)


# A release without tokens made the ledger without their columns, and not everybody may add them.
_ROW = sql.SQL(
    "generation, begun, epoch, revoked, to_jsonb(ledger) ->> 'token' AS token,"
    " to_jsonb(ledger) ->> 'published_token' AS published_token, to_jsonb(ledger) ? 'published_token' AS has_tokens"
)
CALLED = sql.SQL("(target, step) IN (SELECT * FROM unnest(%(targets)s::text[], %(steps)s::text[]))")
"""The condition that a row is of a step and table, whatever its incarnation."""

_MINE = sql.SQL("incarnation = %(incarnation)s AND ") + CALLED


class Ledger:
    """The ledger's row of one step and table. Every call runs in the caller's transaction.

    Args:
        metadata_schema: where the ledger is.
        incarnation: the step's.
        names: what the ledger may call table and step: see `TableName.ledger_names`.
    """

    def __init__(self, metadata_schema: str, incarnation: str, names: Sequence[tuple[str, str]]) -> None:
        self.metadata_schema = metadata_schema
        self.name = TableName(metadata_schema, "ledger").escaped()
        """Its table, as SQL."""
        self.key: Mapping[str, object] = {
            "incarnation": incarnation,
            "targets": [target for target, _ in names],
            "steps": [step for _, step in names],
        }
        """What statements with `target` or `CALLED` in them need."""

    @property
    def target(self) -> sql.Composed:
        """A query for what the ledger calls the table."""
        return sql.SQL("(SELECT target FROM {} WHERE {})").format(self.name, _MINE)

    def read(self, connection: Connection, *, lock: bool = False) -> LedgerRow | None:
        """Return the row, `None` when there is none; with `lock` no other transaction writes it meanwhile."""
        return self._read(connection, _MINE + sql.SQL(" FOR UPDATE" if lock else ""))

    def share(self, connection: Connection) -> LedgerRow | None:
        """Return the row under a lock that many may hold; `begin` and whoever locks it alone wait for them."""
        return self._read(connection, _MINE + sql.SQL(" FOR SHARE"))

    def published_by_others(self, connection: Connection) -> int | None:
        """Return the newest epoch of the same step and table that another incarnation has published."""
        query = sql.SQL(
            "SELECT epoch FROM {} WHERE {} AND incarnation <> %(incarnation)s AND epoch IS NOT NULL"
            " ORDER BY changed DESC LIMIT 1"
        ).format(self.name, CALLED)
        found = connection.execute(query, self.key).fetchone()
        return None if found is None else int(found[0])

    def _read(self, connection: Connection, which: sql.Composable) -> LedgerRow | None:
        query = sql.SQL("SELECT {} FROM {} AS ledger WHERE {}").format(_ROW, self.name, which)
        with connection.cursor(row_factory=class_row(LedgerRow)) as cursor:
            return cursor.execute(query, self.key).fetchone()

    def begin(
        self, connection: Connection, opened: TargetRecord, *, epoch: int, check: Callable[[LedgerRow], None]
    ) -> None:
        """Write which BEGIN opens the table, once `check` has let the row pass as it was.

        Args:
            connection: a connection.
            opened: generation and token.
            epoch: the epoch; -1 if its number is not known.
            check: is called under the row's lock.
        """
        given = {"generation": opened.generation, "token": opened.token, "epoch": epoch}
        found = self.read(connection, lock=True)
        if found is None:
            statement = sql.SQL(
                "INSERT INTO {} (incarnation, target, step, generation, begun)"
                " SELECT %(incarnation)s, (%(targets)s::text[])[1], (%(steps)s::text[])[1], %(generation)s, %(epoch)s"
                " ON CONFLICT DO NOTHING"
            ).format(self.name)
            connection.execute(statement, {**self.key, **given})
            # Of two that make it at once one waits for the other.
            found = self.read(connection, lock=True)
        if found is None:
            raise RuntimeError("the ledger lost a row that was just written")
        check(found)
        self._set(connection, given, "generation = %(generation)s, begun = greatest(begun, %(epoch)s)", found, "token")

    def published(self, connection: Connection, found: LedgerRow, written: TargetRecord, *, rows: int) -> None:
        """Write that an epoch's rows are in the table.

        Args:
            connection: a connection.
            found: the row, whose lock the caller holds.
            written: the epoch, and the BEGIN that it was written under.
            rows: how many.
        """
        given = {"generation": written.generation, "token": written.token, "epoch": written.epoch, "rows": rows}
        changes = (
            "generation = %(generation)s, epoch = %(epoch)s, begun = greatest(begun, %(epoch)s), rows = rows + %(rows)s"
        )
        self._set(connection, given, changes, found, "token", "published_token")

    def revoke(self, connection: Connection, found: LedgerRow, *, generation: int) -> None:
        """Write that a generation and all before it may publish no more. The caller holds the lock."""
        self._set(connection, {"generation": generation}, "revoked = greatest(revoked, %(generation)s)", found)

    def _set(
        self, connection: Connection, given: Mapping[str, object], changes: str, found: LedgerRow, *tokens: str
    ) -> None:
        kept = [f"{name} = %(token)s" for name in tokens if found.has_tokens]
        statement = sql.SQL("UPDATE {} SET {}, changed = now() WHERE {}").format(
            self.name, sql.SQL(", ".join([changes, *kept])), _MINE
        )
        connection.execute(statement, {**self.key, **given})

    def end(self, connection: Connection) -> None:
        """Remove the row: nobody comes back to this incarnation, and what it began is completed."""
        connection.execute(sql.SQL("DELETE FROM {} WHERE {}").format(self.name, _MINE), self.key)


def find_tokens(connection: Connection, metadata_schema: str) -> Literal["kept", "may be added", "missing"]:
    """Tell whether a ledger that is there has columns for tokens, which former releases made it without."""
    names = {column.name for column in read_columns(connection, TableName(metadata_schema, "ledger"))}
    if {"token", "published_token"} <= names:
        return "kept"
    ours = connection.execute(
        "SELECT EXISTS (SELECT 1 FROM pg_catalog.pg_class WHERE oid = to_regclass(%s)"
        " AND pg_has_role(relowner, 'USAGE'))",
        (sql.Identifier(metadata_schema, "ledger").as_string(connection),),
    ).fetchone()
    return "may be added" if ours and ours[0] else "missing"


def ledger_ddl(metadata_schema: str) -> list[sql.Composed]:
    """Return the statements that make what all sinks of a database share. Running them again changes nothing."""
    schema = sql.Identifier(metadata_schema)
    return [
        sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(schema),
        sql.SQL(
            "CREATE TABLE IF NOT EXISTS {}.ledger ("
            "incarnation text NOT NULL, target text NOT NULL, step text NOT NULL, generation bigint NOT NULL,"
            " begun bigint NOT NULL, epoch bigint, revoked bigint NOT NULL DEFAULT 0, rows bigint NOT NULL DEFAULT 0,"
            " changed timestamptz NOT NULL DEFAULT now(), token text, published_token text,"
            " PRIMARY KEY (incarnation, target))"
        ).format(schema),
        sql.SQL(
            "CREATE TABLE IF NOT EXISTS {}.attempts ("
            "stage bigint PRIMARY KEY, staging text NOT NULL, incarnation text NOT NULL, generation bigint NOT NULL,"
            " epoch bigint NOT NULL, attempt bigint NOT NULL, rows bigint NOT NULL,"
            " staged timestamptz NOT NULL DEFAULT now())"
        ).format(schema),
    ]


def token_ddl(metadata_schema: str) -> list[sql.Composed]:
    """Return the statement that adds the columns for tokens to a ledger of a former release."""
    return [
        sql.SQL(
            "ALTER TABLE {}.ledger ADD COLUMN IF NOT EXISTS token text, ADD COLUMN IF NOT EXISTS published_token text"
        ).format(sql.Identifier(metadata_schema))
    ]
