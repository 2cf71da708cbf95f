"""Applies the changes of an epoch in MySQL, and keeps tombstones of deleted keys.

The newest change of each key is found by one sort of the staged rows, and compared with the row of the table and with
the tombstone. Rows are moved in the order of their sequences where some are rejected, each on its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from outfall.mysql.columns import read_columns
from outfall.mysql.database import MySQLSession
from outfall.mysql.moving import MySQLMove
from outfall.mysql.names import quote
from outfall.mysql.options import MySQLOptions
from outfall.sql.changes import REMOVALS
from outfall.sql.dialect import PositionedRows, SqlName, StagedRows, among, compose
from outfall.sql.options import NUMBER, OPERATION, ROW, STAGE
from outfall.sql.tombstones import DELETED, SEQUENCE, Tombstones, tombstones_name

_STAGE, _ROW = quote(STAGE), quote(ROW)
_TIED_ROWS = 500
"""Rows of one statement that leaves them out."""


class MySQLChangeMove(MySQLMove):
    """Applies the newest change of each key.

    Publications of changes to one table wait for one another, for the lock of a row of the ledger: a statement does not
    see the tombstones of a transaction that commits while it runs. The row is changed each time, because the nodes of a
    cluster have no common locks, and compare what transactions have changed.
    """

    def __init__(
        self,
        options: MySQLOptions,
        table: SqlName,
        staging: SqlName,
        tombstones: SqlName,
        attempts: Sequence[StagedRows],
    ) -> None:
        super().__init__(options, table, staging, attempts)
        self._tombstones = tombstones
        sequence = quote(options.sequence_column or "")
        words = ", ".join(f"'{word}'" for word in REMOVALS)
        self._parts = {
            "table": table.sql,
            "staging": staging.sql,
            "tombstones": tombstones.sql,
            "columns": ", ".join(map(quote, self.columns)),
            "keys": ", ".join(map(quote, options.key_columns)),
            "sequence": sequence,
            "buried": quote(SEQUENCE),
            "deleted": quote(DELETED),
            "number": quote(NUMBER),
            "stage": _STAGE,
            "row": _ROW,
            "removed": f"LOWER({quote(OPERATION)}) IN ({words})",
            "all": f"{_STAGE} {among(self.expected)}",
            "in_table": self._newer_in(table, "target", sequence),
            "in_tombstones": self._newer_in(tombstones, "buried", quote(SEQUENCE)),
        }

    def _newer_in(self, table: SqlName, name: str, column: str) -> str:
        """Return the condition that a table has the sequence of a change of `latest`, or a greater one."""
        return compose(
            "EXISTS (SELECT 1 FROM {} AS {name} WHERE {} AND {name}.{} >= latest.{})",
            table.sql,
            self._same(name, "latest"),
            column,
            quote(self._options.sequence_column or ""),
            name=name,
        )

    def hold(self, session: MySQLSession) -> None:
        ledger = self._tombstones.sibling(self._options.metadata_schema, "ledger")
        statement = compose(
            "INSERT INTO {} (incarnation, target, step, generation, begun) VALUES ('', %s, '', 0, -1)"
            " ON DUPLICATE KEY UPDATE begun = begun + 1",
            ledger.sql,
        )
        session.execute(statement, (self._tombstones.name,))
        super().hold(session)

    def whole(self, session: MySQLSession, *, at_once: bool = False) -> int:
        self._count_stale(session)
        return super().whole(session, at_once=at_once)

    def positioned_rows(self, session: MySQLSession) -> PositionedRows:
        self._count_stale(session)
        return super().positioned_rows(session)

    def these(self, session: MySQLSession, condition: str) -> int:
        latest = self._latest(condition)
        write_tombstones = self._filled(
            "INSERT INTO {tombstones} ({keys}, {buried}, {deleted}) SELECT {keys}, {sequence}, NOW(6) FROM {latest}"
            " AND {removed} AND NOT {in_table} AND NOT {in_tombstones} ORDER BY {keys}"
            " ON DUPLICATE KEY UPDATE {buried} = latest.{sequence}, {deleted} = NOW(6)",
            latest=latest,
        )
        remove = self._filled(
            "DELETE target FROM {table} AS target JOIN (SELECT {keys}, {sequence} FROM {latest} AND {removed})"
            " AS removed ON {same} JOIN {tombstones} AS buried ON {same_buried}"
            " AND buried.{buried} = removed.{sequence}"
            " WHERE target.{sequence} IS NULL OR target.{sequence} < removed.{sequence}",
            latest=latest,
            same=self._same("target", "removed"),
            same_buried=self._same("buried", "removed"),
        )
        write = self._filled(
            "INSERT INTO {table} ({columns}) SELECT {columns} FROM {latest} AND NOT {removed} AND NOT {in_table}"
            " AND NOT {in_tombstones} ORDER BY {keys} ON DUPLICATE KEY UPDATE {updates}",
            latest=latest,
            updates=self._updates(),
        )
        session.execute(write_tombstones)
        removed = session.execute(remove).rowcount
        session.execute(write)
        return removed + session.records

    def tied(self, session: MySQLSession, most: int) -> Sequence[str]:
        ranked = "RANK() OVER of_key AS newest, COUNT(*) OVER of_key AS alike"
        window = self._filled("WINDOW of_key AS (PARTITION BY {keys} ORDER BY {sequence} DESC)")
        if not self.columns:
            return []
        found = session.execute(
            self._filled(
                "SELECT COUNT(*) FROM (SELECT {ranked} FROM {staging} WHERE {all} {window}) AS ranked"
                " WHERE newest = 1 AND alike > 1",
                ranked=ranked,
                window=window,
            )
        ).fetchone()
        if not found[0]:
            return []
        own = [quote(f"_outfall_key_{number}") for number in range(len(self._options.key_columns))]
        pairs = zip(self._options.key_columns, own, strict=True)
        # By a hash of each value as text, because some types compare different values as equal.
        content = ", ".join(f"COALESCE(SHA2({quote(name)}, 256), '-')" for name in self.columns)
        query = self._filled(
            "SELECT place FROM (SELECT place, MIN(content) OVER (PARTITION BY {own}) AS least,"
            " MAX(content) OVER (PARTITION BY {own}) AS greatest FROM (SELECT CONCAT({stage}, ':', {row}) AS place,"
            " {aliased}, IF({removed}, '-', CONCAT_WS('/', {content})) AS content, {ranked}"
            " FROM {staging} WHERE {all} {window}) AS ranked WHERE newest = 1 AND alike > 1) AS candidates"
            " WHERE least <> greatest ORDER BY place LIMIT %s",
            own=", ".join(own),
            aliased=", ".join(f"{quote(key)} AS {name}" for key, name in pairs),
            content=content,
            ranked=ranked,
            window=window,
        )
        return [str(place) for (place,) in session.execute(query, (most,)).fetchall()]

    def leave_out(self, session: MySQLSession, places: Sequence[str]) -> None:
        addresses = [tuple(map(int, place.split(":"))) for place in places]
        for first in range(0, len(addresses), _TIED_ROWS):
            some = ", ".join(f"({stage}, {row})" for stage, row in addresses[first : first + _TIED_ROWS])
            session.execute(self._filled("DELETE FROM {staging} WHERE ({stage}, {row}) IN ({some})", some=some))
        for stage, _ in addresses:
            self.expected[stage] -= 1

    def _count_stale(self, session: MySQLSession) -> None:
        if self.columns:
            query = "SELECT COUNT(*) FROM {latest} AND ({in_table} OR {in_tombstones})"
            found = session.execute(self._filled(query, latest=self._latest(self._parts["all"]))).fetchone()
            self.stale = int(found[0])

    def _latest(self, condition: str) -> str:
        """Return the newest change of each key among the rows of a condition, with the beginning of WHERE."""
        return self._filled(
            "(SELECT *, ROW_NUMBER() OVER (PARTITION BY {keys} ORDER BY {sequence} DESC) AS {number} FROM {staging}"
            " WHERE {condition}) AS latest WHERE latest.{number} = 1",
            condition=condition,
        )

    def _filled(self, template: str, **more: str) -> str:
        return compose(template, **self._parts, **more)


class MySQLTombstones(Tombstones):
    """The sequences of deleted keys of one table in MySQL."""

    def missing_ddl(self, session: MySQLSession) -> Sequence[str]:
        wanted = dict(self.columns(session))
        found = {column.name: column.definition for column in read_columns(session, self.table)}
        spelled = self._of_spelling()
        former = {} if spelled is None else {each.name: each.definition for each in read_columns(session, spelled)}
        taken = self._take_over(spelled, also=bool(found)) if spelled is not None and former else []
        fields = {name: f"{quote(name)} {_definition(kind)}" for name, kind in wanted.items()}
        if found := found or former:
            altered = [f"MODIFY COLUMN {fields[name]}" for name, kind in wanted.items() if found.get(name) != kind]
            return taken + ([compose("ALTER TABLE {} {}", self.table.sql, ", ".join(altered))] if altered else [])
        return [
            compose(
                "CREATE TABLE {} ({}, {deleted} DATETIME(6) NOT NULL, PRIMARY KEY ({}), KEY ({deleted}))"
                " ENGINE = InnoDB CHARACTER SET utf8mb4",
                self.table.sql,
                ", ".join(fields.values()),
                ", ".join(map(quote, self._options.key_columns)),
                deleted=quote(DELETED),
            )
        ]

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

    def _forget(self, session: Any, seconds: float, most: int) -> None:
        statement = compose(
            "DELETE FROM {0} WHERE {1} < NOW(6) - INTERVAL %s SECOND ORDER BY {1} LIMIT %s",
            self.table.sql,
            quote(DELETED),
        )
        session.execute(statement, (seconds, most))


def _definition(kind: str) -> str:
    """Return the type and constraint of a column of tombstones."""
    # Without a default, servers may give a TIMESTAMP one that changes with each update of the row.
    default = " DEFAULT '2000-01-01 00:00:00'" if kind.startswith("timestamp") else ""
    return f"{kind.replace('%', '%%')} NOT NULL{default}"
