"""The statements that apply changes: the newest of each key, unless the table or its tombstones hold a newer one."""

from __future__ import annotations

from collections.abc import Sequence

from outfall.postgres.names import TableName, quote
from outfall.postgres.options import PostgresOptions
from outfall.postgres.staging.publish_sql import assigned
from outfall.postgres.staging.selection_sql import RANKS, Rows, is_removal, latest, listed, these, updated
from outfall.sql.dialect import compose
from outfall.sql.options import REMOVED
from outfall.sql.tombstones import DELETED, SEQUENCE


class ChangeStatements:
    """The statements for the changes of some attempts. The parameter `stages` has the numbers of the attempts.

    `columns` are the target's columns for which the rows have values.
    """

    def __init__(
        self,
        options: PostgresOptions,
        table: TableName,
        staging: TableName,
        tombstones: TableName,
        columns: Sequence[str],
    ) -> None:
        self._options = options
        self._keys = options.key_columns
        self._staging = staging
        self._columns = columns
        self._parts = {
            "table": table.sql,
            "staging": staging.sql,
            "tombstones": tombstones.sql,
            "keys": listed(options.key_columns),
            "sequence": quote(options.sequence_column or ""),
            "removed": quote(REMOVED),
            "is_removal": is_removal(options),
            "buried": quote(SEQUENCE),
            "deleted": quote(DELETED),
            "all": these("all"),
            "ranks": RANKS,
        }

    def survey(self) -> str:
        """Return the query for the numbers of keys to write and to remove, and of rows that may be tied.

        The last are those that share the newest sequence of their key with another one.
        """
        return self._filled(
            "SELECT count(*) FILTER (WHERE number = 1 AND NOT removed), count(*) FILTER (WHERE number = 1 AND removed),"
            " count(*) FILTER (WHERE newest = 1 AND alike > 1)"
            " FROM (SELECT {is_removal} AS removed, row_number() OVER of_key AS number, {ranked}"
            " FROM {staging} WHERE {all} WINDOW of_key AS (PARTITION BY {keys} ORDER BY {sequence} DESC)) AS ranked",
            ranked=_RANKED,
        )

    def tied(self) -> str:
        """Return the query for the addresses of rows that share the newest sequence of their key with a different one.

        The parameter `most` is their maximum number. Removals are alike if their keys are. Other rows are compared as
        text, because not every type has an equality, and by bytes.
        """
        own = {key: quote(f"_outfall_key_{number}") for number, key in enumerate(self._keys)}
        return self._filled(
            "SELECT place::text FROM (SELECT place, min(content) OVER of_key <> max(content) OVER of_key AS differ"
            " FROM (SELECT ranked.place, {own},"
            " (CASE WHEN {is_removal} THEN '-' ELSE ROW({columns})::text END) COLLATE \"C\" AS content"
            " FROM (SELECT ctid AS place, {aliased}, {ranked} FROM {staging} WHERE {all}"
            " WINDOW of_key AS (PARTITION BY {keys} ORDER BY {sequence} DESC)) AS ranked"
            " JOIN {staging} AS staged ON staged.ctid = ranked.place WHERE ranked.newest = 1 AND ranked.alike > 1)"
            " AS candidates WINDOW of_key AS (PARTITION BY {own})) AS found WHERE differ ORDER BY place LIMIT %(most)s",
            own=", ".join(own.values()),
            aliased=", ".join(f"{quote(key)} AS {name}" for key, name in own.items()),
            columns=", ".join(f"staged.{quote(name)}" for name in self._columns),
            ranked=_RANKED,
        )

    def write_tombstones(self, rows: Rows) -> str:
        """Return the statement that writes the sequences of removed keys.

        Its row count is the number of removals that are not stale.
        """
        return self._filled(
            "WITH {latest} INSERT INTO {tombstones} AS target ({keys}, {buried}, {deleted})"
            " SELECT {keys}, {sequence}, now() FROM latest WHERE {removed} AND NOT EXISTS (SELECT FROM {table}"
            " AS target WHERE {same} AND target.{sequence} >= latest.{sequence}) ORDER BY {keys}"
            " ON CONFLICT ({keys}) DO UPDATE SET {buried} = EXCLUDED.{buried}, {deleted} = EXCLUDED.{deleted}"
            " WHERE target.{buried} < EXCLUDED.{buried}",
            latest=self._latest(rows, [*self._keys, self._options.sequence_column or ""]),
            same=self._same("latest"),
        )

    def remove(self, rows: Rows) -> str:
        """Return the statement that removes the rows whose tombstones this transaction has written."""
        chosen = (
            ""
            if rows == "all"
            else self._filled(
                " AND ({own}) IN (SELECT {keys} FROM {staging} WHERE {these})",
                own=", ".join(f"removed.{quote(key)}" for key in self._keys),
                these=these(rows),
            )
        )
        return self._filled(
            "DELETE FROM {table} AS target USING {tombstones} AS removed WHERE removed.{deleted} = now() AND {same}"
            " AND (target.{sequence} IS NULL OR target.{sequence} < removed.{buried}){chosen}",
            same=self._same("removed"),
            chosen=chosen,
        )

    def write(self, rows: Rows) -> str:
        """Return the statement that writes the rows that are newer than the table's and than removals."""
        return self._filled(
            "WITH {latest} INSERT INTO {table} AS target ({columns}) SELECT {columns} FROM latest WHERE NOT {removed}"
            " AND NOT EXISTS (SELECT FROM {tombstones} AS target"
            " WHERE {same} AND target.{buried} >= latest.{sequence}) ORDER BY {keys}"
            " ON CONFLICT ({keys}) DO UPDATE SET {pairs}"
            " WHERE target.{sequence} IS NULL OR target.{sequence} < EXCLUDED.{sequence}",
            latest=self._latest(rows, self._columns),
            same=self._same("latest"),
            columns=listed(self._columns),
            pairs=assigned(updated(self._options, self._columns)),
        )

    def pass_over(self) -> str:
        """Return the statement that takes stale rows out of the ranking. Its row count is their number."""
        return self._filled(
            "UPDATE {ranks} AS ranks SET rank = NULL FROM {staging} AS latest"
            " WHERE latest.ctid = ranks.place AND rank IS NOT NULL AND ("
            "EXISTS (SELECT FROM {table} AS target WHERE {same} AND target.{sequence} >= latest.{sequence})"
            " OR EXISTS (SELECT FROM {tombstones} AS target WHERE {same} AND target.{buried} >= latest.{sequence}))",
            same=self._same("latest"),
        )

    def _latest(self, rows: Rows, columns: Sequence[str]) -> str:
        return latest(self._options, self._staging, columns, rows, None)

    def _same(self, other: str) -> str:
        return " AND ".join(f"target.{quote(key)} = {quote(other)}.{quote(key)}" for key in self._keys)

    def _filled(self, template: str, **parts: str) -> str:
        return compose(template, **self._parts, **parts)


_RANKED = "rank() OVER of_key AS newest, count(*) OVER of_key AS alike"
"""The rank of a row in its key, and up to its equals the number of rows: those with rank 1 if it has rank 1."""
