"""The ledger: which epoch of which step, and of which part, a table holds. In the same database and transactions.

```
begin      lock the row · is its BEGIN in our log? · write generation and token of ours: from then on an older driver's
           publication is refused, and that of a driver on a copy of the log
publish    lock the row · is its BEGIN in our log? · is the epoch in? · move the rows · write the epoch · COMMIT
```

A lost reply to COMMIT is settled by looking: whoever holds the row's lock knows what is in the table.

Where tasks publish by themselves, by parts, each part has a row of its own, for as long as the step's row:

```
begin      each part has a row, made before its first epoch
publish    COPY · share the step's row · lock the parts' rows · are they before this epoch? · write the epoch · COMMIT
seal       lock the step's row · has each part what its state says? · write the epoch there: nothing new of it may come
```

The step's generation fences older drivers. Its lock is shared by the tasks that publish and taken alone by a driver
that begins or seals, so neither happens in the middle of a publication.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import psycopg
from psycopg import sql
from psycopg.rows import class_row

from outfall.capabilities import CommitterInitContext, SealContext, TargetContext
from outfall.errors import TargetLostError
from outfall.part_ledger.checks import PartRow
from outfall.postgres.catalogue.columns import is_there, read_columns
from outfall.postgres.connection.database import PostgresConnection
from outfall.postgres.names import TableName
from outfall.postgres.staging.staging_table import StagedRows
from outfall.target_record import TargetRecord, check_opening, check_publishing


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
_CALLED = sql.SQL("(target, step) IN (SELECT * FROM unnest(%(targets)s::text[], %(steps)s::text[]))")
"""The condition that a row is of a step and table, whatever its incarnation."""

_MINE = sql.SQL("incarnation = %(incarnation)s AND ") + _CALLED


class StepLedger:
    """The ledger's row of one step and table. Every call runs in the caller's transaction.

    Args:
        metadata_schema: where the ledger is.
        incarnation: the step's.
        step_id: the step.
        table: the target, as the user names it.
        found_in: the schema where the server finds it.
    """

    def __init__(
        self, metadata_schema: str, incarnation: str, step_id: str, table: TableName, found_in: str | None
    ) -> None:
        self.metadata_schema = metadata_schema
        self.name = TableName(metadata_schema, "ledger").escaped()
        """Its table, as SQL."""
        names = table.ledger_names(found_in, step_id)
        self.key: Mapping[str, object] = {
            "incarnation": incarnation,
            "targets": [target for target, _ in names],
            "steps": [step for _, step in names],
        }
        """What statements with `target` or `_CALLED` in them need."""
        self._step_id = step_id
        self._table = table

    @property
    def target(self) -> sql.Composed:
        """A query for what the ledger calls the table."""
        return sql.SQL("(SELECT target FROM {} WHERE {})").format(self.name, _MINE)

    def read(self, connection: PostgresConnection, *, lock: bool = False) -> LedgerRow | None:
        """Return the row, `None` when there is none; with `lock` no other transaction writes it meanwhile."""
        return self._read(connection, _MINE + sql.SQL(" FOR UPDATE" if lock else ""))

    def share(self, connection: PostgresConnection) -> LedgerRow | None:
        """Return the row under a lock that many may hold; `begin` and whoever locks it alone wait for them."""
        return self._read(connection, _MINE + sql.SQL(" FOR SHARE"))

    def published_by_others(self, connection: PostgresConnection) -> int | None:
        """Return the newest epoch of the same step and table that another incarnation has published."""
        query = sql.SQL(
            "SELECT epoch FROM {} WHERE {} AND incarnation <> %(incarnation)s AND epoch IS NOT NULL"
            " ORDER BY changed DESC LIMIT 1"
        ).format(self.name, _CALLED)
        found = connection.execute(query, self.key).fetchone()
        return None if found is None else int(found[0])

    def _read(self, connection: PostgresConnection, which: sql.Composable) -> LedgerRow | None:
        query = sql.SQL("SELECT {} FROM {} AS ledger WHERE {}").format(_ROW, self.name, which)
        with connection.cursor(row_factory=class_row(LedgerRow)) as cursor:
            return cursor.execute(query, self.key).fetchone()

    def read_published(
        self,
        connection: PostgresConnection,
        context: CommitterInitContext,
        attempts: Sequence[StagedRows],
        *,
        lock: bool = False,
    ) -> LedgerRow:
        """Return the row, if the epoch may be published by this driver; with `lock` nobody writes it meanwhile.

        Args:
            connection: a connection.
            context: the epoch.
            attempts: what is recorded of it, for texts.
            lock: see above.

        Raises:
            TargetLostError: there is no row.
            FencedError: another driver opened the table since, or has published rows of its own as this epoch.
        """
        try:
            row = self.read(connection, lock=lock)
        except psycopg.errors.UndefinedTable:
            row = None
        if row is None:
            raise self._without_row(context, attempts)
        check_publishing(str(self._table), row.record(), context)
        if row.holds(context.epoch):
            published = replace(row.record(), generation=context.generation, token=row.published_token)
            check_publishing(f"epoch {row.epoch} of {self._table}", published, context)
        return row

    def begin(self, connection: PostgresConnection, context: TargetContext[Any]) -> None:
        """Write that this driver's BEGIN opens the table.

        Raises:
            FencedError: another driver has opened it meanwhile.
        """
        given = {
            "generation": context.generation,
            "token": context.token,
            "epoch": -1 if context.epoch is None else context.epoch,
        }
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
        check_opening(str(self._table), found.record(), context)
        self._set(connection, given, "generation = %(generation)s, begun = greatest(begun, %(epoch)s)", found, "token")

    def published(
        self, connection: PostgresConnection, found: LedgerRow, context: CommitterInitContext | SealContext, rows: int
    ) -> None:
        """Write that an epoch's rows are in the table.

        Args:
            connection: a connection.
            found: the row, whose lock the caller holds.
            context: the epoch, and the BEGIN that it was written under.
            rows: how many.
        """
        given = {"generation": context.generation, "token": context.token, "epoch": context.epoch, "rows": rows}
        changes = (
            "generation = %(generation)s, epoch = %(epoch)s, begun = greatest(begun, %(epoch)s), rows = rows + %(rows)s"
        )
        self._set(connection, given, changes, found, "token", "published_token")

    def revoke(self, connection: PostgresConnection, found: LedgerRow, generation: int) -> None:
        """Write that a generation and all before it may publish no more. The caller holds the lock."""
        self._set(connection, {"generation": generation}, "revoked = greatest(revoked, %(generation)s)", found)

    def end(self, connection: PostgresConnection) -> None:
        """Remove the row: nobody comes back to this incarnation, and what it began is completed."""
        connection.execute(sql.SQL("DELETE FROM {} WHERE {}").format(self.name, _MINE), self.key)

    def lost(self, what: str, epoch: int | None, *, why: str | None = None, do: str | None = None) -> TargetLostError:
        """Make the error for a ledger without what this query has written there.

        Args:
            what: what is missing.
            epoch: the epoch.
            why: the reason, where it is known.
            do: what to do then.
        """
        return TargetLostError(
            f"the ledger {what}",
            step=self._step_id,
            epoch=epoch,
            why=why
            or "the ledger was emptied or dropped, or metadata_schema is another one, or the database is, or was"
            " restored from a copy older than this query",
            do=do or "restore the database, or start the query with a new checkpoint",
        )

    def _without_row(self, context: CommitterInitContext, attempts: Sequence[StagedRows]) -> TargetLostError:
        what = f"has no row for this query's writes to {self._table}"
        former = next((staged.staging[0] for staged in attempts if staged.staging), self.metadata_schema)
        if former == self.metadata_schema:
            return self.lost(what, context.epoch)
        why = (
            f"metadata_schema is {self.metadata_schema!r}, and was {former!r} when the rows of this epoch were written"
        )
        return self.lost(what, context.epoch, why=why, do=f"set metadata_schema to {former!r} again")

    def _set(
        self, connection: PostgresConnection, given: Mapping[str, object], changes: str, found: LedgerRow, *tokens: str
    ) -> None:
        kept = [f"{name} = %(token)s" for name in tokens if found.has_tokens]
        statement = sql.SQL("UPDATE {} SET {}, changed = now() WHERE {}").format(
            self.name, sql.SQL(", ".join([changes, *kept])), _MINE
        )
        connection.execute(statement, {**self.key, **given})


class PartLedger:
    """The rows of one step's parts, which go with the step's own. Every call runs in the caller's transaction."""

    def __init__(self, step: StepLedger) -> None:
        self.table = TableName(step.metadata_schema, "parts")
        self._name = self.table.escaped()
        self._step = step

    def read(
        self, connection: PostgresConnection, parts: Iterable[str] | None = None, *, lock: bool = False
    ) -> Mapping[str, PartRow]:
        """Return the rows of parts, by default of all; with `lock`, taken in the parts' order, nobody writes them."""
        query = sql.SQL(
            "SELECT part, generation, epoch, attempt, next_offset, rows, hash FROM {}"
            " WHERE incarnation = %(incarnation)s AND target = {}"
        ).format(self._name, self._step.target)
        values = dict(self._step.key)
        if parts is not None:
            query += sql.SQL(" AND part = ANY(%(parts)s)")
            values["parts"] = list(parts)
        if lock:
            query += sql.SQL(" ORDER BY part FOR UPDATE")
        with connection.cursor(row_factory=class_row(PartRow)) as cursor:
            return {row.part: row for row in cursor.execute(query, values).fetchall()}

    def published_by_others(self, connection: PostgresConnection) -> int | None:
        """Return the epoch of the part that another incarnation of the same step and table published last."""
        query = sql.SQL(
            "SELECT part.epoch FROM {} AS part JOIN {} AS steps USING (incarnation, target)"
            " WHERE {} AND incarnation <> %(incarnation)s AND part.epoch IS NOT NULL ORDER BY part.changed DESC LIMIT 1"
        ).format(self._name, self._step.name, _CALLED)
        found = connection.execute(query, self._step.key).fetchone()
        return None if found is None else int(found[0])

    def begin(self, connection: PostgresConnection, offsets: Mapping[str, int]) -> None:
        """Make rows for parts that have none, with the offsets they start from."""
        statement = sql.SQL(
            "INSERT INTO {} (incarnation, target, part, next_offset)"
            " SELECT %(incarnation)s, {}, part, start"
            " FROM unnest(%(parts)s::text[], %(starts)s::bigint[]) AS given (part, start) ON CONFLICT DO NOTHING"
        ).format(self._name, self._step.target)
        values = {"parts": list(offsets), "starts": list(offsets.values())}
        connection.execute(statement, {**self._step.key, **values})

    def published(self, connection: PostgresConnection, rows: Sequence[PartRow]) -> None:
        """Write what the parts have now, all of one attempt. The caller holds their locks."""
        statement = sql.SQL(
            "UPDATE {} AS mine SET generation = %(generation)s, epoch = %(epoch)s, attempt = %(attempt)s,"
            " next_offset = given.next_offset, rows = given.rows, hash = given.hash, changed = now()"
            " FROM unnest(%(parts)s::text[], %(offsets)s::bigint[], %(counts)s::bigint[], %(hashes)s::bigint[])"
            " AS given (part, next_offset, rows, hash)"
            " WHERE incarnation = %(incarnation)s AND target = {} AND mine.part = given.part"
        ).format(self._name, self._step.target)
        values = {
            "generation": rows[0].generation,
            "epoch": rows[0].epoch,
            "attempt": rows[0].attempt,
            "parts": [row.part for row in rows],
            "offsets": [row.next_offset for row in rows],
            "counts": [row.rows for row in rows],
            "hashes": [row.hash for row in rows],
        }
        connection.execute(statement, {**self._step.key, **values})


def has_ledger(connection: PostgresConnection, metadata_schema: str) -> bool:
    """Tell whether the tables are there that all sinks of a database share."""
    return all(is_there(connection, TableName(metadata_schema, name)) for name in ("ledger", "attempts"))


def missing_ledger_ddl(
    connection: PostgresConnection, metadata_schema: str, *, add_tokens: bool
) -> Sequence[sql.Composed]:
    """Return what makes these tables; nothing when they are there.

    Args:
        connection: a connection.
        metadata_schema: where they are.
        add_tokens: whether to add what a former release made the ledger without, if this user may.
    """
    if has_ledger(connection, metadata_schema):
        may = add_tokens and find_tokens(connection, metadata_schema) == "may be added"
        return token_ddl(metadata_schema) if may else []
    found = connection.execute(
        "SELECT EXISTS (SELECT 1 FROM pg_namespace WHERE nspname = %s)", (metadata_schema,)
    ).fetchone()
    statements = ledger_ddl(metadata_schema)
    # IF NOT EXISTS asks for the right to make a schema also where there is one.
    return statements[1:] if found and found[0] else statements


def find_tokens(connection: PostgresConnection, metadata_schema: str) -> Literal["kept", "may be added", "missing"]:
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


def part_ledger_ddl(metadata_schema: str) -> list[sql.Composed]:
    """Return the statement that makes the table, after those of `ledger_ddl`."""
    schema = sql.Identifier(metadata_schema)
    return [
        sql.SQL(
            "CREATE TABLE IF NOT EXISTS {0}.parts ("
            "incarnation text NOT NULL, target text NOT NULL, part text NOT NULL, generation bigint NOT NULL DEFAULT 0,"
            " epoch bigint, attempt bigint NOT NULL DEFAULT 0, next_offset bigint NOT NULL,"
            " rows bigint NOT NULL DEFAULT 0, hash bigint NOT NULL DEFAULT 0,"
            " changed timestamptz NOT NULL DEFAULT now(), PRIMARY KEY (incarnation, target, part),"
            " FOREIGN KEY (incarnation, target) REFERENCES {0}.ledger ON DELETE CASCADE)"
        ).format(schema)
    ]
