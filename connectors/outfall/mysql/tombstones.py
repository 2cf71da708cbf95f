"""The sequences of keys that changes have deleted, with those of a table that an earlier release has made."""

from __future__ import annotations

from collections.abc import Sequence

from outfall.mysql.database import MySQLSession
from outfall.mysql.names import quote
from outfall.sql.dialect import compose
from outfall.sql.names import SqlName
from outfall.sql.options import DELETED, SEQUENCE
from outfall.sql.tombstones import Tombstones, tombstones_name


class MySQLTombstones(Tombstones):
    """The sequences of deleted keys of one table in MySQL, with those of its table in earlier releases."""

    def missing_ddl(self, session: MySQLSession) -> Sequence[str]:
        spelled = self._of_spelling()
        former = {} if spelled is None else self._found(session, spelled)
        if spelled is None or not former:
            return super().missing_ddl(session)
        found = self._found(session, self.table)
        return [*self._take_over(spelled, also=bool(found)), *self._adapted(session, found or former)]

    def _of_spelling(self) -> SqlName | None:
        """Return the name of the table in earlier releases, which took it from the spelling; `None` if it is the same.

        That of another spelling cannot be known.
        """
        target = self._target
        name = tombstones_name(
            self._dialect, target, (target.schema or self._dialect.database.database_name(), target.name)
        )
        return None if name == self.table else name

    def _take_over(self, former: SqlName, *, also: bool) -> list[str]:
        """Return the statements that move the rows of an earlier table; `also` if there is one of today."""
        if not also:
            return [compose("RENAME TABLE {} TO {}", former.sql, self.table.sql)]
        keys, table = ", ".join(map(quote, self._options.key_columns)), self.table.sql
        return [
            compose(
                "INSERT INTO {table} ({keys}, {sequence}, {deleted}) SELECT {keys}, {sequence}, {deleted} FROM {} AS"
                " former ON DUPLICATE KEY UPDATE {deleted} = GREATEST({table}.{deleted}, former.{deleted}),"
                " {sequence} = GREATEST({table}.{sequence}, former.{sequence})",
                former.sql, table=table, keys=keys, sequence=quote(SEQUENCE), deleted=quote(DELETED),
            ),
            compose("DROP TABLE {}", former.sql),
        ]  # fmt: skip
