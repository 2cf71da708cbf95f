"""The ledger: the epochs of each step and part that a table holds, in the same database and transactions.

```
begin      lock the row · check its BEGIN against the log · write this driver's generation and token, which rejects
           publications of older drivers and of drivers on a copy of the log
publish    lock the row · check its BEGIN against the log · check the epoch · move the rows · write the epoch · COMMIT
```

If the acknowledgment of a COMMIT is lost, the row is read again: the holder of its lock sees the outcome.

By parts, tasks publish independently. Each part has its own row, which exists as long as the step's row:

```
begin      create a row for each part, before its first epoch
publish    COPY · share the step's row · lock the parts' rows · check that they precede this epoch · write the epoch ·
           COMMIT
seal       lock the step's row · compare each part with its state · write the epoch, which closes it
```

The step's generation fences older drivers. Publishing tasks share the lock of the step's row, and a driver that begins
or seals takes it exclusively, so neither happens during a publication.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

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
from outfall.target_record import TargetRecord, check_publishing


@dataclass(frozen=True)
class LedgerRow:
    """The ledger row of one step."""

    generation: int
    """The newest generation that began."""
    begun: int
    """The newest epoch that began with a known number; -1 before the first. With an adopted checkpoint and options, the
    number of the first epoch is known only to the tasks."""
    epoch: int | None
    """The newest epoch whose rows are in the table; `None` before the first. Epochs without rows are not recorded,
    except the first one with `on_existing="overwrite"`, which empties the table."""
    revoked: int
    """Generations up to this one can no longer publish."""
    token: str | None = None
    """The token of the BEGIN of `generation`; `None` in rows of a release without tokens."""
    published_token: str | None = None
    """The token of the BEGIN under which the rows of `epoch` were written; `None` as above."""
    has_tokens: bool = True
    """Whether the ledger has columns for tokens."""

    ready: ClassVar[bool] = True

    def holds(self, epoch: int) -> bool:
        """Return whether an epoch's rows are in the table."""
        return self.epoch is not None and self.epoch >= epoch

    @property
    def record(self) -> TargetRecord:
        """What is compared with the log."""
        return TargetRecord(self.generation, self.token, self.epoch)

    def opened_by(self, context: TargetContext[Any]) -> LedgerRow:
        """Return the row after a BEGIN has opened the table."""
        begun = self.begun if context.epoch is None else max(self.begun, context.epoch)
        return replace(self, generation=context.generation, token=context.token, begun=begun)


# Ledgers of releases without tokens lack their columns, and not every user may add them.
_ROW = sql.SQL(
    "generation, begun, epoch, revoked, to_jsonb(ledger) ->> 'token' AS token,"
    " to_jsonb(ledger) ->> 'published_token' AS published_token, to_jsonb(ledger) ? 'published_token' AS has_tokens"
)
_CALLED = sql.SQL("(target, step) IN (SELECT * FROM unnest(%(targets)s::text[], %(steps)s::text[]))")
"""The condition for rows of a step and table, of any incarnation."""

_MINE = sql.SQL("incarnation = %(incarnation)s AND ") + _CALLED


class StepLedger:
    """The ledger's row of one step and table. Every call runs in the caller's transaction.

    `metadata_schema` is the schema of the ledger. `table` is the target as spelled in the options, and `found_in` its
    schema; `None` if that is not known.
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
        """The parameters of statements with `target` or `_CALLED`."""
        self._step_id = step_id
        self._table = table

    @property
    def target(self) -> sql.Composed:
        """A query for the name of the table in the ledger."""
        return sql.SQL("(SELECT target FROM {} WHERE {})").format(self.name, _MINE)

    def read(self, connection: PostgresConnection, *, lock: bool = False) -> LedgerRow | None:
        """Return the row; `None` if there is none. With `lock`, no other transaction can write it."""
        return self._read(connection, _MINE + sql.SQL(" FOR UPDATE" if lock else ""))

    def share(self, connection: PostgresConnection) -> LedgerRow | None:
        """Return the row under a shared lock, for which `begin` and exclusive lockers wait."""
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
        """Return the row, locked with `lock`, if this driver may publish the epoch.

        `attempts` are the recorded attempts of the epoch, for errors. Raises `TargetLostError` if there is no row, and
        `FencedError` if another driver opened the table since, or has published its own rows as this epoch.
        """
        try:
            row = self.read(connection, lock=lock)
        except psycopg.errors.UndefinedTable:
            row = None
        if row is None:
            raise self._without_row(context, attempts)
        check_publishing(str(self._table), row.record, context)
        if row.holds(context.epoch):
            published = replace(row.record, generation=context.generation, token=row.published_token)
            check_publishing(f"epoch {row.epoch} of {self._table}", published, context)
        return row

    def create(self, connection: PostgresConnection) -> None:
        """Create the row, before the first BEGIN opens the table. If two drivers create it, one waits for the other."""
        statement = sql.SQL(
            "INSERT INTO {} (incarnation, target, step, generation, begun)"
            " SELECT %(incarnation)s, (%(targets)s::text[])[1], (%(steps)s::text[])[1], 0, -1 ON CONFLICT DO NOTHING"
        ).format(self.name)
        connection.execute(statement, self.key)

    def open(self, connection: PostgresConnection, found: LedgerRow, after: LedgerRow) -> None:
        """Record that a BEGIN opens the table. The caller holds the lock of the row that it found."""
        given = {"generation": after.generation, "begun": after.begun, "token": after.token}
        self._set(connection, given, "generation = %(generation)s, begun = %(begun)s", found, "token")

    def published(
        self, connection: PostgresConnection, found: LedgerRow, context: CommitterInitContext | SealContext, rows: int
    ) -> None:
        """Record that an epoch's rows are in the table. The caller has locked the row `found`.

        The context has the epoch and its BEGIN.
        """
        given = {"generation": context.generation, "token": context.token, "epoch": context.epoch, "rows": rows}
        changes = (
            "generation = %(generation)s, epoch = %(epoch)s, begun = greatest(begun, %(epoch)s), rows = rows + %(rows)s"
        )
        self._set(connection, given, changes, found, "token", "published_token")

    def revoke(self, connection: PostgresConnection, found: LedgerRow, generation: int) -> None:
        """Record that a generation and all earlier ones can no longer publish. The caller holds the lock."""
        self._set(connection, {"generation": generation}, "revoked = greatest(revoked, %(generation)s)", found)

    def end(self, connection: PostgresConnection) -> None:
        """Remove the row. The incarnation is completed and never resumed."""
        connection.execute(sql.SQL("DELETE FROM {} WHERE {}").format(self.name, _MINE), self.key)

    def lost(self, what: str, epoch: int | None, *, why: str | None = None, do: str | None = None) -> TargetLostError:
        """Return the error of a ledger that has lost records of this query.

        `what` is the missing record. `why` is the reason, if it is known, and `do` the remedy for that reason.
        """
        return TargetLostError(
            f"the ledger {what}",
            step=self._step_id,
            epoch=epoch,
            why=why
            or "the ledger was emptied or dropped, metadata_schema or the database changed, or the database was"
            " restored from a copy that is older than this query",
            do=do or "restore the database, or start the query with a new checkpoint",
        )

    def _without_row(self, context: CommitterInitContext, attempts: Sequence[StagedRows]) -> TargetLostError:
        what = f"has no row for this query's writes to {self._table}"
        former = next((staged.staging[0] for staged in attempts if staged.staging), self.metadata_schema)
        if former == self.metadata_schema:
            return self.lost(what, context.epoch)
        why = (
            f"metadata_schema is {self.metadata_schema!r}, but was {former!r} when the rows of this epoch were written"
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
    """The ledger rows of one step's parts, which are removed with the step's row. Runs in the caller's transaction."""

    def __init__(self, step: StepLedger) -> None:
        self.table = TableName(step.metadata_schema, "parts")
        self._name = self.table.escaped()
        self._step = step

    def read(
        self, connection: PostgresConnection, parts: Iterable[str] | None = None, *, lock: bool = False
    ) -> Mapping[str, PartRow]:
        """Return the rows of some or all parts; with `lock`, they are locked in the order of the parts."""
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
        """Create rows for parts that have none, with their start offsets."""
        statement = sql.SQL(
            "INSERT INTO {} (incarnation, target, part, next_offset)"
            " SELECT %(incarnation)s, {}, part, start"
            " FROM unnest(%(parts)s::text[], %(starts)s::bigint[]) AS given (part, start) ON CONFLICT DO NOTHING"
        ).format(self._name, self._step.target)
        values = {"parts": list(offsets), "starts": list(offsets.values())}
        connection.execute(statement, {**self._step.key, **values})

    def published(self, connection: PostgresConnection, rows: Sequence[PartRow]) -> None:
        """Update the rows of parts, all of one attempt. The caller holds their locks."""
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
    """Return whether the tables that all sinks of a database share exist."""
    return all(is_there(connection, TableName(metadata_schema, name)) for name in ("ledger", "attempts"))


def missing_ledger_ddl(
    connection: PostgresConnection, metadata_schema: str, *, add_tokens: bool
) -> Sequence[sql.Composed]:
    """Return the statements that create these tables in their schema; none if they exist.

    With `add_tokens` they add the columns for tokens to a ledger of an earlier release, if this user may.
    """
    if has_ledger(connection, metadata_schema):
        may = add_tokens and find_tokens(connection, metadata_schema) == "may be added"
        return token_ddl(metadata_schema) if may else []
    found = connection.execute(
        "SELECT EXISTS (SELECT 1 FROM pg_namespace WHERE nspname = %s)", (metadata_schema,)
    ).fetchone()
    statements = ledger_ddl(metadata_schema)
    # IF NOT EXISTS requires the privilege to create a schema even if it exists.
    return statements[1:] if found and found[0] else statements


def find_tokens(connection: PostgresConnection, metadata_schema: str) -> Literal["kept", "may be added", "missing"]:
    """Return whether an existing ledger has the columns for tokens, which earlier releases did not create."""
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
    """Return the statements that create the tables that all sinks of a database share. They can be run again."""
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
    """Return the statement that adds the columns for tokens to a ledger of an earlier release."""
    return [
        sql.SQL(
            "ALTER TABLE {}.ledger ADD COLUMN IF NOT EXISTS token text, ADD COLUMN IF NOT EXISTS published_token text"
        ).format(sql.Identifier(metadata_schema))
    ]


def part_ledger_ddl(metadata_schema: str) -> list[sql.Composed]:
    """Return the statement that creates the table of parts, after those of `ledger_ddl`."""
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
