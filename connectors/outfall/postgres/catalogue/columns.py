"""The columns of a table, as the server's catalogue has them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import psycopg

from outfall.postgres.names import TableName

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
        WHERE c.oid = a.attcollation AND a.attcollation <> t.typcollation)
FROM pg_catalog.pg_attribute AS a
JOIN bases USING (attnum)
JOIN types AS t ON t.oid = a.atttypid
JOIN types AS b ON b.oid = bases.oid AND b.typtype <> 'd'
LEFT JOIN types AS e ON e.oid = b.typelem AND b.typcategory = 'A'
WHERE a.attrelid = to_regclass(%(table)s)
ORDER BY a.attnum
"""


@dataclass(frozen=True)
class Kind:
    """What values of a column are made of, once domains are taken away.

    Args:
        name: the type's name in the catalogue, as `int4`; outside PostgreSQL's own with its schema, as `public.mood`.
        receive: the name of the server's function that reads its binary form.
        typmod: what stands in brackets behind the type's name, in the server's form; -1 for nothing.
        element: of an array, what its elements are made of.
    """

    name: str
    receive: str | None
    typmod: int = -1
    element: Kind | None = None


@dataclass(frozen=True)
class TableColumn:
    """One column.

    Args:
        type: the type as SQL, as `numeric(38,18)` or `"My Schema".mood`.
        kind: what its values are made of.
        not_null: whether it refuses NULL.
        generated: whether the server computes it from other columns.
        identity: whether the server numbers it: `always`, `by default` or, mostly, not.
        has_default: whether a row may leave it out although it is not NULL.
        collation: how its text is compared, as SQL; `None` for its type's own way.
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

    @property
    def writable(self) -> bool:
        """Whether rows may hold a value for it."""
        return not self.generated and self.identity != "always"

    @property
    def needed(self) -> bool:
        """Whether a row that is inserted must hold a value for it."""
        return self.writable and self.not_null and not self.has_default


def read_columns(connection: psycopg.Connection[Any], table: TableName) -> list[TableColumn]:
    """Read the columns of a table, partitioned table, view or foreign table, in their order.

    Returns:
        Nothing when there is no such table.

    Raises:
        psycopg.Error: the server's.
    """
    # to_regclass() reads a name as SQL, and looks along the search path: so it is given a quoted one.
    named = table.identifier().as_string(connection)
    return [_column(row) for row in connection.execute(_QUERY, {"table": named}).fetchall()]


def is_there(connection: psycopg.Connection[Any], table: TableName) -> bool:
    """Tell whether there is such a table."""
    named = table.identifier().as_string(connection)
    # Not to_regclass() alone: it locks nothing, and may not know what was made since this session looked last.
    found = connection.execute(
        "SELECT EXISTS (SELECT 1 FROM pg_catalog.pg_class WHERE oid = to_regclass(%s))", (named,)
    ).fetchone()
    return bool(found and found[0])


def schema_of(connection: psycopg.Connection[Any], table: TableName) -> str | None:
    """Return the schema in which a table lies, or in which it would be made; `None` where the search path has none."""
    if table.schema is not None:
        return table.schema
    named = table.identifier().as_string(connection)
    found = connection.execute(
        "SELECT coalesce((SELECT nspname FROM pg_catalog.pg_class AS c"
        " JOIN pg_catalog.pg_namespace AS n ON n.oid = relnamespace WHERE c.oid = to_regclass(%s)), current_schema())",
        (named,),
    ).fetchone()
    return found[0] if found else None


def read_primary_key(connection: psycopg.Connection[Any], table: TableName) -> tuple[str, ...]:
    """Return the columns of a table's primary key; none when it has no such key."""
    named = table.identifier().as_string(connection)
    found = connection.execute(
        "SELECT a.attname FROM pg_catalog.pg_index AS i"
        " CROSS JOIN unnest(i.indkey) WITH ORDINALITY AS k (attnum, place)"
        " JOIN pg_catalog.pg_attribute AS a ON a.attrelid = i.indrelid AND a.attnum = k.attnum"
        " WHERE i.indrelid = to_regclass(%s) AND i.indisprimary ORDER BY k.place",
        (named,),
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
