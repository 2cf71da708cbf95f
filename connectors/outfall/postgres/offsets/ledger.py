"""The rows of parts in the ledger, whose tasks publish independently.

Each part has its own row, which exists as long as the step's row:

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

from psycopg.rows import class_row

from outfall.part_ledger.checks import PartRow
from outfall.postgres.connection.database import PostgresConnection
from outfall.postgres.names import TableName, quote
from outfall.sql.dialect import compose
from outfall.sql.ledger import StepLedger


class PartLedger:
    """The ledger rows of one step's parts, which are removed with the step's row. Runs in the caller's transaction."""

    def __init__(self, step: StepLedger) -> None:
        self.table = TableName(step.metadata_schema, "parts")
        self._name = self.table.sql
        self._step = step
        self._target = compose("(SELECT target FROM {} WHERE {})", step.name, step.mine)

    def read(
        self, connection: PostgresConnection, parts: Iterable[str] | None = None, *, lock: bool = False
    ) -> Mapping[str, PartRow]:
        """Return the rows of some or all parts; with `lock`, they are locked in the order of the parts."""
        query = compose(
            "SELECT part, generation, epoch, attempt, next_offset, rows, hash FROM {}"
            " WHERE incarnation = %(incarnation)s AND target = {}",
            self._name,
            self._target,
        )
        values = dict(self._step.key)
        if parts is not None:
            query += " AND part = ANY(%(parts)s)"
            values["parts"] = list(parts)
        if lock:
            query += " ORDER BY part FOR UPDATE"
        with connection.cursor(row_factory=class_row(PartRow)) as cursor:
            return {row.part: row for row in cursor.execute(query, values).fetchall()}

    def published_by_others(self, connection: PostgresConnection) -> int | None:
        """Return the epoch of the part that another incarnation of the same step and table published last."""
        query = compose(
            "SELECT part.epoch FROM {} AS part JOIN {} AS steps USING (incarnation, target)"
            " WHERE {} AND incarnation <> %(incarnation)s AND part.epoch IS NOT NULL"
            " ORDER BY part.changed DESC LIMIT 1",
            self._name,
            self._step.name,
            self._step.called,
        )
        found = connection.execute(query, self._step.key).fetchone()
        return None if found is None else int(found[0])

    def begin(self, connection: PostgresConnection, offsets: Mapping[str, int]) -> None:
        """Create rows for parts that have none, with their start offsets."""
        statement = compose(
            "INSERT INTO {} (incarnation, target, part, next_offset)"
            " SELECT %(incarnation)s, {}, part, start"
            " FROM unnest(%(parts)s::text[], %(starts)s::bigint[]) AS given (part, start) ON CONFLICT DO NOTHING",
            self._name,
            self._target,
        )
        values = {"parts": list(offsets), "starts": list(offsets.values())}
        connection.execute(statement, {**self._step.key, **values})

    def published(self, connection: PostgresConnection, rows: Sequence[PartRow]) -> None:
        """Update the rows of parts, all of one attempt. The caller holds their locks."""
        statement = compose(
            "UPDATE {} AS mine SET generation = %(generation)s, epoch = %(epoch)s, attempt = %(attempt)s,"
            " next_offset = given.next_offset, rows = given.rows, hash = given.hash, changed = now()"
            " FROM unnest(%(parts)s::text[], %(offsets)s::bigint[], %(counts)s::bigint[], %(hashes)s::bigint[])"
            " AS given (part, next_offset, rows, hash)"
            " WHERE incarnation = %(incarnation)s AND target = {} AND mine.part = given.part",
            self._name,
            self._target,
        )
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


def part_ledger_ddl(metadata_schema: str) -> list[str]:
    """Return the statement that creates the table of parts, after those of the ledger."""
    return [
        compose(
            "CREATE TABLE IF NOT EXISTS {0}.parts ("
            "incarnation text NOT NULL, target text NOT NULL, part text NOT NULL, generation bigint NOT NULL DEFAULT 0,"
            " epoch bigint, attempt bigint NOT NULL DEFAULT 0, next_offset bigint NOT NULL,"
            " rows bigint NOT NULL DEFAULT 0, hash bigint NOT NULL DEFAULT 0,"
            " changed timestamptz NOT NULL DEFAULT now(), PRIMARY KEY (incarnation, target, part),"
            " FOREIGN KEY (incarnation, target) REFERENCES {0}.ledger ON DELETE CASCADE)",
            quote(metadata_schema),
        )
    ]
