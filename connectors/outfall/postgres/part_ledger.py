"""The ledger of parts: which epoch each part was last written in, how far it counts, and what its rows were.

```
begin      each part has a row, made before its first epoch
publish    COPY · share the step's row · lock the parts' rows · are they before this epoch? · write the epoch · COMMIT
seal       lock the step's row · has each part what its state says? · write the epoch there: nothing new of it may come
```

The step's row is that of `outfall.postgres.ledger`: its generation fences older drivers. Its lock is shared by the
tasks that publish and taken alone by a driver that begins or seals, so neither happens in the middle of a publication.
There is one row per part, for as long as the step's row: it goes with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from psycopg import sql
from psycopg.rows import class_row

from outfall.postgres.connection import Connection
from outfall.postgres.ledger import CALLED, Ledger
from outfall.postgres.names import TableName


@dataclass(frozen=True)
class PartRow:
    """What the table holds of one part."""

    part: str
    generation: int
    """The generation that wrote it last."""
    epoch: int | None
    """The newest epoch whose rows of this part are in the table; `None` before the first."""
    attempt: int
    """The attempt that wrote them."""
    next_offset: int
    """How many rows the part has, and what it began with."""
    rows: int
    """How many of them that epoch brought."""
    hash: int
    """What they were: see `outfall.postgres.row_hash`."""

    def holds(self, epoch: int) -> bool:
        """Tell whether the epoch's rows are in the table."""
        return self.epoch == epoch

    def same_rows(self, other: PartRow) -> bool:
        """Tell whether both are of the same rows in the same places."""
        return (self.epoch, self.next_offset, self.rows, self.hash) == (
            other.epoch,
            other.next_offset,
            other.rows,
            other.hash,
        )


class PartLedger:
    """The rows of one step's parts, behind the step's own. Every call runs in the caller's transaction."""

    def __init__(self, step: Ledger) -> None:
        self.table = TableName(step.metadata_schema, "parts")
        self._name = self.table.escaped()
        self._step = step

    def read(
        self, connection: Connection, parts: Iterable[str] | None = None, *, lock: bool = False
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

    def published_by_others(self, connection: Connection) -> int | None:
        """Return the epoch of the part that another incarnation of the same step and table published last."""
        query = sql.SQL(
            "SELECT part.epoch FROM {} AS part JOIN {} AS steps USING (incarnation, target)"
            " WHERE {} AND incarnation <> %(incarnation)s AND part.epoch IS NOT NULL ORDER BY part.changed DESC LIMIT 1"
        ).format(self._name, self._step.name, CALLED)
        found = connection.execute(query, self._step.key).fetchone()
        return None if found is None else int(found[0])

    def begin(self, connection: Connection, offsets: Mapping[str, int]) -> None:
        """Make rows for parts that have none, with the offsets they start from."""
        statement = sql.SQL(
            "INSERT INTO {} (incarnation, target, part, next_offset)"
            " SELECT %(incarnation)s, {}, part, start"
            " FROM unnest(%(parts)s::text[], %(starts)s::bigint[]) AS given (part, start) ON CONFLICT DO NOTHING"
        ).format(self._name, self._step.target)
        values = {"parts": list(offsets), "starts": list(offsets.values())}
        connection.execute(statement, {**self._step.key, **values})

    def published(self, connection: Connection, rows: Sequence[PartRow]) -> None:
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
