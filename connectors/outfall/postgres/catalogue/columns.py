"""The columns of a table, from the server's catalog."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import psycopg

from outfall.sql.dialect import SqlName

_QUERY = """
WITH RECURSIVE bases (attnum, oid, typmod) AS (
    SELECT attnum, atttypid, atttypmod FROM pg_catalog.pg_attribute
    WHERE attrelid = to_regclass(%(table)s) AND attnum > 0 AND NOT attisdropped
  UNION ALL
    -- A domain may stand on a domain, and only the innermost has the type modifier.
    SELECT attnum, typbasetype, typtypmod FROM bases JOIN pg_catalog.pg_type AS t USING (oid) WHERE typtype = 'd'
), types AS (
    SELECT t.oid, CASE nspname WHEN 'pg_catalog' THEN typname ELSE nspname || '.' || typname END AS name,
           (SELECT proname FROM pg_catalog.pg_proc AS p WHERE p.oid = typreceive) AS receive,
           typtype, typcategory, typelem, typnotnull, typdefault, typcollation
    FROM pg_catalog.pg_type AS t JOIN pg_catalog.pg_namespace AS n ON n.oid = typnamespace
)
SELECT a.attname, format_type(a.atttypid, a.atttypmod), b.name, b.receive, bases.typmod, e.name, e.receive,
       a.attnotnull OR t.typnotnull, a.attgenerated <> '', a.attidentity::text,
       a.atthasdef OR a.attidentity <> '' OR t.typdefault IS NOT NULL,
       (SELECT format('%%I.%%I', nspname, collname)
        FROM pg_catalog.pg_collation AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.collnamespace
        WHERE c.oid = a.attcollation AND a.attcollation <> b.typcollation)
FROM pg_catalog.pg_attribute AS a
JOIN bases USING (attnum)
JOIN types AS t ON t.oid = a.atttypid
JOIN types AS b ON b.oid = bases.oid AND b.typtype <> 'd'
LEFT JOIN types AS e ON e.oid = b.typelem AND b.typcategory = 'A'
WHERE a.attrelid = to_regclass(%(table)s)
ORDER BY a.attnum
"""

_WIDER = {
    "int2": ("int4", "int8", "numeric"),
    "int4": ("int8", "numeric"),
    "int8": ("numeric",),
    "float4": ("float8",),
    "varchar": ("text",),
}
"""The types that store all values of another one unchanged."""


@dataclass(frozen=True)
class Kind:
    """The base type of a column, after domains are resolved.

    `name` is the type's name in the catalog, for example `int4`; for other schemas qualified, as `public.mood`.
    `receive` names the server's function that reads its binary form. `typmod` is the type modifier (such as a length)
    in the server's form; -1 for none. `element` is the element type of an array.
    """

    name: str
    receive: str | None
    typmod: int = -1
    element: Kind | None = None

    def stores_all_of(self, other: Kind) -> bool:
        """Return whether an assignment stores each value of another type unchanged."""
        if self.name == other.name:
            longer = self.name == "varchar" and 0 <= other.typmod <= self.typmod
            return self.typmod in (-1, other.typmod) or longer
        return self.typmod == -1 and self.name in _WIDER.get(other.name, ())


@dataclass(frozen=True)
class TableColumn:
    """One column.

    `type` is SQL, for example `numeric(38,18)` or `"My Schema".mood`, and `kind` its base type. The server computes a
    `generated` column from other columns. `identity` is `always`, `by default`, or empty for a column without identity.
    With `has_default` a row may omit the column although it is NOT NULL. `collation` is SQL; `None` for that of its
    base type.
    """

    name: str
    type: str
    kind: Kind
    not_null: bool = False
    generated: bool = False
    identity: str = ""
    has_default: bool = False
    collation: str | None = None

    @property
    def definition(self) -> str:
        """The type with its collation, as SQL."""
        return self.type if self.collation is None else f"{self.type} COLLATE {self.collation}"

    def stores_all_of(self, other: TableColumn) -> bool:
        """Return whether an assignment stores each value of another column unchanged, and compares it alike.

        The server casts an assignment, which rounds without an error (numeric to integer, timestamp to timestamp(0)).
        """
        return self.kind.stores_all_of(other.kind) and self.collation == other.collation

    @property
    def writable(self) -> bool:
        """Whether rows may have a value for it."""
        return not self.generated and self.identity != "always"

    @property
    def needed(self) -> bool:
        """Whether an inserted row must have a value for it."""
        return self.writable and self.not_null and not self.has_default


def read_columns(connection: psycopg.Connection[Any], table: SqlName) -> list[TableColumn]:
    """Read the columns of a table, partitioned table, view or foreign table, in their order; none if it is missing."""
    # to_regclass() parses a name as SQL and resolves it along the search path, so pass a quoted name.
    return [_column(row) for row in connection.execute(_QUERY, {"table": table.quoted}).fetchall()]


def exists(connection: psycopg.Connection[Any], table: SqlName) -> bool:
    """Return whether a table exists."""
    # Not to_regclass() alone: it takes no lock, and may not find a table that another session has just created.
    found = connection.execute(
        "SELECT EXISTS (SELECT 1 FROM pg_catalog.pg_class WHERE oid = to_regclass(%s))", (table.quoted,)
    ).fetchone()
    return bool(found and found[0])


def schema_of(connection: psycopg.Connection[Any], table: SqlName) -> str | None:
    """Return the schema of a table, or the one in which it would be created; `None` if the search path has none."""
    if table.schema is not None:
        return table.schema
    found = connection.execute(
        "SELECT coalesce((SELECT nspname FROM pg_catalog.pg_class AS c"
        " JOIN pg_catalog.pg_namespace AS n ON n.oid = relnamespace WHERE c.oid = to_regclass(%s)), current_schema())",
        (table.quoted,),
    ).fetchone()
    return found[0] if found else None


def read_primary_key(connection: psycopg.Connection[Any], table: SqlName) -> tuple[str, ...]:
    """Return the columns of a table's primary key; empty if it has none."""
    found = connection.execute(
        "SELECT a.attname FROM pg_catalog.pg_index AS i"
        " CROSS JOIN unnest(i.indkey) WITH ORDINALITY AS k (attnum, place)"
        " JOIN pg_catalog.pg_attribute AS a ON a.attrelid = i.indrelid AND a.attnum = k.attnum"
        " WHERE i.indrelid = to_regclass(%s) AND i.indisprimary ORDER BY k.place",
        (table.quoted,),
    )
    return tuple(name for (name,) in found.fetchall())


def _column(row: tuple[Any, ...]) -> TableColumn:
    name, type, base, receive, typmod, element, element_receive, not_null, generated, identity, default, collation = row
    inner = None if element is None else Kind(element, element_receive, typmod)
    return TableColumn(
        name,
        type,
        Kind(base, receive, typmod, inner),
        not_null,
        generated,
        {"a": "always", "d": "by default"}.get(identity, ""),
        default,
        collation,
    )
