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

from outfall.part_ledger.checks import PartRow
from outfall.sql.database import Session
from outfall.sql.dialect import Dialect, compose
from outfall.sql.ledger import StepLedger
from outfall.sql.session import Statement
from outfall.sql.words import Words

_COLUMNS = ("part", "generation", "epoch", "attempt", "next_offset", "rows", "hash")


class PartLedger:
    """The ledger rows of one step's parts, which are removed with the step's row. Runs in the caller's transaction."""

    def __init__(self, dialect: Dialect, step: StepLedger) -> None:
        self.table = dialect.parse(dialect.options.table or "").sibling(step.metadata_schema, "parts")
        self._words = dialect.words
        self._name = self.table.sql
        self._step = step
        # The step's row may have the name as it was spelled earlier.
        self._target = compose("(SELECT target FROM {} WHERE {})", step.name, step.mine)
        self._mine = compose("incarnation = %(incarnation)s AND target = {}", self._target)

    def read(self, session: Session) -> Mapping[str, PartRow]:
        """Return the rows of all parts."""
        return {row[0]: PartRow(*row) for row in session.execute(*self.reading()).fetchall()}

    def reading(self) -> Statement:
        """Return the query of `read`."""
        listed = self._words.listed(_COLUMNS)
        return compose("SELECT {} FROM {} WHERE {}", listed, self._name, self._mine), dict(self._step.key)

    def locked(self, session: Session, parts: Iterable[str]) -> Mapping[str, PartRow]:
        """Return the rows of some parts, and lock them in the order of the parts."""
        query, values = self.reading()
        # One by one: a server that scans the table for several would wait for the parts of other tasks.
        one = compose("{} AND part = %(part)s FOR UPDATE", query)
        found = session.each([(one, {**values, "part": part}) for part in sorted(parts)])
        return {row[0]: PartRow(*row) for result in found for row in result.fetchall()}

    def published_by_others(self, session: Session) -> int | None:
        """Return the epoch of the part that another incarnation of the same step and table published last."""
        query = compose(
            "SELECT part.epoch FROM {} AS part JOIN {} AS steps USING (incarnation, target)"
            " WHERE {} AND incarnation <> %(incarnation)s AND part.epoch IS NOT NULL"
            " ORDER BY part.changed DESC LIMIT 1",
            self._name,
            self._step.name,
            self._step.called,
        )
        found = session.execute(query, self._step.key).fetchone()
        return None if found is None else int(found[0])

    def begin(self, session: Session, offsets: Mapping[str, int]) -> None:
        """Create rows for parts that have none, with their start offsets. The caller has locked the step's row."""
        statement = compose(
            "INSERT INTO {} (incarnation, target, part, next_offset)"
            " VALUES (%(incarnation)s, {}, %(part)s, %(next_offset)s)",
            self._name,
            self._target,
        )
        for part, offset in offsets.items():
            session.later(statement, {**self._step.key, "part": part, "next_offset": offset})

    def published(self, session: Session, rows: Sequence[PartRow]) -> None:
        """Update the rows of parts, all of one attempt. The caller holds their locks."""
        names = _COLUMNS[1:]
        pairs = ", ".join(f"{self._words.quote(name)} = %({name})s" for name in names)
        statement = compose(
            "UPDATE {} SET {}, changed = {} WHERE {} AND part = %(part)s",
            self._name,
            pairs,
            self._words.clock,
            self._mine,
        )
        for row in rows:
            session.later(statement, {**self._step.key, **{name: getattr(row, name) for name in _COLUMNS}})

    def fence(self, session: Session) -> None:
        """Let no transaction that publishes now commit afterwards. The caller has locked the step's row.

        Where that lock holds on one node only, what this changes is in conflict with such a transaction.
        """
        if self._words.locks_on_one_node:
            changes = compose("UPDATE {} SET changed = {} WHERE {}", self._name, self._words.clock, self._mine)
            session.later(changes, dict(self._step.key))

    def rename(self, session: Session) -> None:
        """Give the rows the name of today, before the step's row gets it."""
        statement = compose("UPDATE {} SET target = %(target)s WHERE {}", self._name, self._mine)
        session.execute(statement, dict(self._step.key))

    def forget(self, session: Session) -> None:
        """Remove rows whose step has lost its own, if the server has not removed them with it."""
        statement = compose("DELETE FROM {} WHERE {}", self._name, self._mine)
        session.later(statement, dict(self._step.key))


def part_ledger_ddl(words: Words, metadata_schema: str) -> list[str]:
    """Return the statement that creates the table of parts, after those of the ledger."""
    schema, name = words.quote(metadata_schema), words.name.format(180)
    return [
        compose(
            "CREATE TABLE IF NOT EXISTS {schema}.parts ("
            "incarnation {name}, target {name}, part {part}, generation bigint NOT NULL DEFAULT 0,"
            " epoch bigint, attempt bigint NOT NULL DEFAULT 0, next_offset bigint NOT NULL,"
            " {rows} bigint NOT NULL DEFAULT 0, hash bigint NOT NULL DEFAULT 0,"
            " changed {time}, PRIMARY KEY (incarnation, target, part){owned}){made}",
            schema=schema, name=name, part=words.name.format(40), rows=words.quote("rows"), time=words.time,
            owned=words.owned.format(schema), made=words.made,
        )
    ]  # fmt: skip
