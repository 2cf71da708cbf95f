"""The unique indexes that decide a conflict: how they compare keys, and which rows they hold.

The planner chooses them for ON CONFLICT, through views too. It may choose several, each of which decides.

A partial index has no entry for a row outside its predicate: such a row is inserted next to others of its key (manual,
11.8 Partial Indexes). The predicate may be wider than `conflict_where`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql

from outfall.errors import TargetError
from outfall.postgres.catalogue.columns import TableColumn, read_columns
from outfall.postgres.connection.database import PostgresConnection
from outfall.postgres.names import TableName, quote
from outfall.postgres.options import PostgresOptions
from outfall.sql.dialect import compose
from outfall.sql.session import Statement
from outfall.sql.words import NO_CONFLICTS, Conflicts, doubled

# With support function 4, equal keys have equal bytes (manual, 65.1.2 B-Tree Support Functions). Equal numbers are one
# offset, whatever their bytes are. Strings of type character are padded before they are compared.
_ARBITERS = """
SELECT c.relname AS name, i.indimmediate AS immediate, pg_get_expr(i.indpred, i.indrelid) AS predicate,
       coalesce((to_jsonb(i) ->> 'indnullsnotdistinct')::boolean, false) AS nulls_equal,
       ARRAY(SELECT DISTINCT a.attname::text FROM pg_catalog.pg_depend AS d
             JOIN pg_catalog.pg_attribute AS a ON a.attrelid = i.indrelid AND a.attnum = d.refobjsubid
             WHERE d.classid = 'pg_catalog.pg_class'::regclass AND d.objid = i.indexrelid
               AND d.refclassid = 'pg_catalog.pg_class'::regclass AND d.refobjid = i.indrelid AND d.refobjsubid > 0
       ) AS needed,
       coalesce(keys.unlike, '{}') AS unlike, coalesce(keys.inexact, '{}') AS inexact
FROM pg_catalog.pg_index AS i JOIN pg_catalog.pg_class AS c ON c.oid = i.indexrelid
JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
CROSS JOIN LATERAL (
    SELECT array_agg(a.attname::text) FILTER (
               WHERE k.collated <> a.attcollation AND NOT (deterministic AND coalesce(own.collisdeterministic, true))
           ) AS unlike,
           array_agg(a.attname::text) FILTER (
               WHERE NOT deterministic OR opcintype = 'bpchar'::regtype OR (
                   opcintype NOT IN ('numeric'::regtype, 'float4'::regtype, 'float8'::regtype) AND NOT EXISTS (
                       SELECT 1 FROM pg_catalog.pg_amproc WHERE amprocfamily = opcfamily AND amprocnum = 4
                         AND amproclefttype = opcintype AND amprocrighttype = opcintype))) AS inexact
    FROM unnest(i.indkey::int2[], i.indcollation::oid[], i.indclass::oid[]) AS k (attnum, collated, class)
    JOIN pg_catalog.pg_opclass AS o ON o.oid = k.class
    JOIN pg_catalog.pg_attribute AS a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
    LEFT JOIN pg_catalog.pg_collation AS own ON own.oid = a.attcollation
    LEFT JOIN pg_catalog.pg_collation AS its ON its.oid = k.collated
    CROSS JOIN coalesce(its.collisdeterministic, true) AS deterministic
) AS keys
WHERE n.nspname = %s AND c.relname = ANY(%s) ORDER BY 1
"""

_EQUAL_NULLS = """
SELECT coalesce(bool_or((to_jsonb(i) ->> 'indnullsnotdistinct')::boolean), false) FROM pg_catalog.pg_index AS i
WHERE i.indrelid = to_regclass(%s) AND i.indisunique AND i.indpred IS NULL AND %s = ARRAY(
    SELECT a.attname::text FROM unnest((i.indkey::int2[])[0:i.indnkeyatts - 1]) AS k (attnum)
    JOIN pg_catalog.pg_attribute AS a ON a.attrelid = i.indrelid AND a.attnum = k.attnum ORDER BY a.attname
)
"""

_DEFAULTS = """
SELECT a.attname::text, pg_get_expr(d.adbin, d.adrelid) FROM pg_catalog.pg_attrdef AS d
JOIN pg_catalog.pg_attribute AS a ON a.attrelid = d.adrelid AND a.attnum = d.adnum
WHERE d.adrelid = to_regclass(%s) AND a.attgenerated = ''
"""

_SAME_IN_A_TRANSACTION = re.compile(
    r"""\(?(?:'(?:[^']|'')*'|-?\d+(?:\.\d+)?|true|false|NULL|now\(\)|CURRENT_\w+)\)?(?:::[\w ".\[\](),]+)?""",
    re.IGNORECASE,
)
"""A default whose value at ranking is the value that is inserted."""


@dataclass(frozen=True)
class Arbiter:
    """A unique index that decides conflicts."""

    name: str
    immediate: bool
    """Whether it is not deferrable, as ON CONFLICT requires."""
    predicate: str | None
    """Its predicate as SQL; `None` if it holds all rows."""
    nulls_equal: bool
    """Whether it takes a NULL for equal to another one: NULLS NOT DISTINCT, from PostgreSQL 15 on."""
    needed: Sequence[str]
    """The columns of its keys and its predicate."""
    unlike: Sequence[str]
    """The keys that it compares by another equality than their columns: a nondeterministic collation."""
    inexact: Sequence[str]
    """The keys whose distinct values it compares as equal, for example because it ignores case."""


def arbiters(
    connection: PostgresConnection, table: TableName, keys: Sequence[str], where: str | None = None
) -> list[Arbiter]:
    """Return the indexes that decide conflicts of these keys, by name.

    Raises `TargetError` if a rule replaces INSERT, and psycopg's `InvalidColumnReference` if no index matches.
    """
    found = connection.look(*_planning(connection, table, keys, where), table.quoted)
    named = _named(found)
    if named is None:
        raise TargetError(
            f"{table} has a rule that replaces INSERT",
            why="such a rule ignores ON CONFLICT, with which the sink recognizes rows",
            do="replace the rule by a trigger, or write to the table that the rule writes to",
        )
    return [Arbiter(*each) for each in connection.look(_ARBITERS, named, table.quoted)]


def read_arbiters(
    connection: PostgresConnection, tables: Sequence[TableName], keys: Sequence[Sequence[str]], where: str | None
) -> None:
    """Read those of several tables, each with its keys, with few round trips, unless one has none."""
    planning = [_planning(connection, table, its, where) for table, its in zip(tables, keys, strict=True)]
    # An error ends the transaction. `arbiters` then asks about one table after another, and finds the one.
    with suppress(psycopg.ProgrammingError), connection.savepoint():
        connection.look_each(planning, [table.quoted for table in tables])
        named = {
            table.quoted: _named(connection.look(*each, table.quoted))
            for table, each in zip(tables, planning, strict=True)
        }
        connection.look_each(
            [(_ARBITERS, each) for each in named.values() if each], [name for name, each in named.items() if each]
        )


def _planning(connection: PostgresConnection, table: TableName, keys: Sequence[str], where: str | None) -> Statement:
    """Return the query whose plan names the indexes."""
    # Only the planner can match a predicate with an index. No row is inserted.
    planned = sql.SQL(
        "EXPLAIN (FORMAT JSON, VERBOSE) INSERT INTO {table} AS target ({keys}) SELECT {keys} FROM {table} WHERE false"
        " ON CONFLICT ({keys}) {where} DO NOTHING"
    ).format(
        table=table.identifier(),
        keys=sql.SQL(", ").join(map(sql.Identifier, keys)),
        where=sql.SQL("" if where is None else f"WHERE ({where})"),
    )
    return doubled(planned.as_string(connection)), ()


def _named(found: Sequence[tuple[Any, ...]]) -> tuple[Any, ...] | None:
    """Return the schema and the names of the indexes in a plan; `None` if a rule replaces the INSERT."""
    plan = found[0][0][0].get("Plan", {}) if found and found[0][0] else {}
    return (plan["Schema"], plan["Conflict Arbiter Indexes"]) if "Conflict Arbiter Indexes" in plan else None


def nulls_are_equal(connection: PostgresConnection, table: TableName, options: PostgresOptions) -> bool:
    """Return whether a row with a NULL in its key replaces another one, because an index says NULLS NOT DISTINCT."""
    if options.write_mode == "upsert":
        indexes = arbiters(connection, table, options.key_columns, options.conflict_where)
        return any(index.nulls_equal for index in indexes)
    found = connection.look(_EQUAL_NULLS, (table.quoted, sorted(options.key_columns)), table.quoted)
    return bool(found and found[0][0])


def conflicts(
    connection: PostgresConnection, table: TableName, options: PostgresOptions, columns: Sequence[str]
) -> Conflicts:
    """Return which rows replace others of their key.

    Every staged row can be in conflict with others if an index without a predicate decides, and no key can be NULL, or
    NULLs are equal. The target has an index for the keys and for `conflict_where`; `columns` are the target's columns
    for which the rows have values. Raises `TargetError` if the predicate needs a column that the rows lack, and whose
    default can differ between rows, and psycopg's errors, for example if no index matches.
    """
    # Each change has a key, by an index without a predicate.
    if options.write_mode not in ("upsert", "delete") or not columns:
        return NO_CONFLICTS
    keys, where, nulls = options.key_columns, options.conflict_where, list[str]()
    given = {column.name: column for column in read_columns(connection, table)}
    nullable = [key for key in keys if key in given and not given[key].not_null]
    conditions: list[str] = []
    if nullable and nulls_are_equal(connection, table, options):
        nulls = nullable
    elif options.by_key:
        # Tasks reject such rows, but those of an earlier release have staged them.
        conditions += [f"{quote(key)} IS NOT NULL" for key in nullable]
    if where is not None and (predicate := _predicate(connection, table, keys, where, columns, given)) is not None:
        conditions.append(predicate)
    return Conflicts(f"({' AND '.join(conditions)})" if conditions else None, nulls)


def _predicate(
    connection: PostgresConnection,
    table: TableName,
    keys: Sequence[str],
    where: str,
    columns: Sequence[str],
    given: Mapping[str, TableColumn],
) -> str | None:
    """Return whether an index that decides holds a staged row; `None` if one holds all rows."""
    indexes = arbiters(connection, table, keys, where)
    if any(index.predicate is None for index in indexes):
        return None
    defaults = dict(connection.look(_DEFAULTS, (table.quoted,), table.quoted))
    stored = {name: quote(name) for name in columns}
    for index in indexes:
        for name in index.needed:
            stored.setdefault(name, _omitted(given.get(name), defaults.get(name), f"{index.name} of {table}", name))
    # A row of its own, so that the names of the predicate are those of the target.
    return compose(
        "(SELECT {} FROM (SELECT {}) AS stored)",
        " OR ".join(f"coalesce({doubled(index.predicate or '')}, false)" for index in indexes),
        ", ".join(f"{value} AS {quote(name)}" for name, value in stored.items()),
    )


def _omitted(column: TableColumn | None, default: str | None, index: str, name: str) -> str:
    """Return the value that the server stores in a column that the rows lack."""
    if column is None or not column.writable or (default and not _SAME_IN_A_TRANSACTION.fullmatch(default)):
        raise TargetError(
            f"the index {index} decides conflicts by column {name!r}, which the rows do not have",
            why=f"its default is not a constant: {default}" if default else "the server computes it",
            do="add the column to the rows, or use an index whose predicate needs only columns of the rows",
        )
    return doubled(f"({default or 'NULL'})::{column.type}")
