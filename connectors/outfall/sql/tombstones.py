"""The sequences of deleted keys, in a table of the sink's own, one per target table.

Every step that writes changes to the table uses the same one, so that a query with a new checkpoint sees what its
predecessor deleted. A deleted key has one row:

```
the key columns        with the types and collations of the target, as primary key
_outfall_sequence      the sequence of its newest delete
_outfall_deleted       the server's time of the transaction that wrote it; indexed
```

Writing the key again does not remove it: it still rejects older changes. A publication after `tombstone_retention`
removes it. Each publication removes about as many expired tombstones as it has rows, at most.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from outfall.errors import TargetError
from outfall.sql.dialect import compose
from outfall.sql.names import Found, SqlName, ledger_name
from outfall.sql.options import DELETED, SEQUENCE
from outfall.sql.statements import tombstones_ddl

if TYPE_CHECKING:
    from outfall.sql.database import Session
    from outfall.sql.dialect import Column, Dialect

_FORGOTTEN_AT_LEAST = 10_000


class Tombstones:
    """The sequences of deleted keys of one table. Every call runs in the caller's transaction.

    `target` is the table, in the schema in which the server found it.
    """

    def __init__(self, dialect: Dialect, target: SqlName) -> None:
        self.table = tombstones_name(dialect, target)
        self._dialect = dialect
        self._options = dialect.options
        self._target = target

    def missing_ddl(self, session: Any) -> Sequence[str]:
        """Return the statements that create the table, or give its columns the types of the target's; else none.

        Raises `TargetError` if the target does not exist, or lacks a column.
        """
        return self._adapted(session, self._found(session, self.table))

    def _adapted(self, session: Any, found: Mapping[str, str]) -> list[str]:
        """Return the statements for a table with these columns, or for a missing one."""
        wanted, keys = dict(self.columns(session)), self._options.key_columns
        return tombstones_ddl(self._dialect.words, self.table.sql, wanted, keys, DELETED, found)

    def _found(self, session: Any, table: SqlName) -> dict[str, str]:
        """Return the columns of a table of tombstones with their types; none if it is missing."""
        return {column.name: column.definition for column in self._dialect.columns(session, table)}

    def forget(self, session: Session, rows: int) -> None:
        """Remove those that are older than `tombstone_retention`. The work is bounded by the rows of the epoch.

        It removes more than an epoch can add, so the table does not grow beyond the retention.
        """
        seconds = self._options.tombstone_retention.total_seconds()
        if seconds:
            words = self._dialect.words
            statement = compose(words.forget, table=self.table.sql, deleted=words.quote(DELETED))
            session.execute(statement, (seconds, 2 * rows + _FORGOTTEN_AT_LEAST))

    def clear(self, session: Session) -> None:
        """Remove all, for `on_existing="overwrite"`."""
        session.execute(compose("DELETE FROM {}", self.table.sql))

    def columns(self, session: Any) -> list[tuple[str, str]]:
        """Return the names and definitions of its columns for keys and sequence, as the target has them now."""
        found: dict[str, Column] = {column.name: column for column in self._dialect.columns(session, self._target)}
        named = [*self._options.key_columns, self._options.sequence_column or ""]
        missing = [name for name in named if name not in found]
        if missing:
            raise TargetError(
                f"{self._target} has no column {missing[0]!r}, which an option names"
                if found
                else f"there is no table {self._target}",
                do="create the table with this column, or correct the options",
            )
        *keys, sequence = named
        return [*((name, found[name].definition) for name in keys), (SEQUENCE, found[sequence].definition)]


def tombstones_name(dialect: Dialect, target: SqlName, found: Found | None = None) -> SqlName:
    """Return the name of the table for a target and its keys. It is deterministic, so that a DBA can create it.

    `found` is what the server has found for the target, by default as the target says. The name is the same however the
    target is spelled. Other keys have another table, because a delete is known by its key.
    """
    schema, name = found or target.found or (target.schema, target.name)
    text = "/".join([ledger_name(schema or "", name), *sorted(dialect.options.key_columns)])
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    readable = re.sub(r"[^A-Za-z0-9_]", "_", name)[:38]
    return target.sibling(dialect.options.metadata_schema, f"tombstones_{readable}_{digest}")
