"""The words of PostgreSQL.

One statement cannot write a row twice, so the last row of each key is found first: by DISTINCT ON, or in the table
`RANKS`, which `ranks` fills.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from outfall.postgres.names import quote
from outfall.sql.dialect import compose
from outfall.sql.options import MARKER, OPERATION, REMOVED, ROW, STAGE, TABLE
from outfall.sql.statements import Statements
from outfall.sql.words import Latest, Removed, Selection, Words, doubled

RANKS = "pg_temp._outfall_ranks"


class PostgresWords(Words):
    """The words of PostgreSQL."""

    make_schema = "CREATE SCHEMA IF NOT EXISTS {}"
    schemas = "pg_catalog.pg_namespace WHERE nspname"
    name = "text NOT NULL"
    time = "timestamptz NOT NULL DEFAULT now()"
    staging = "CREATE UNLOGGED TABLE {table} ({fields})"
    own = {STAGE: "bigint", ROW: "bigint", MARKER: "boolean", OPERATION: "text", TABLE: "text"}
    tombstones = (
        "CREATE TABLE {table} ({fields}, {deleted} timestamptz NOT NULL, PRIMARY KEY ({keys}))",
        "CREATE INDEX ON {table} ({deleted})",
    )
    altered = "ALTER COLUMN {name} TYPE {type} USING {name}::{plain}"
    forget = (
        "DELETE FROM {table} WHERE ctid = ANY(ARRAY(SELECT ctid FROM {table}"
        " WHERE {deleted} < now() - make_interval(secs => %s) ORDER BY {deleted} LIMIT %s))"
    )
    keeping = "ON CONFLICT DO NOTHING"

    target = " AS target"
    delete = "DELETE FROM {table} AS target USING {source} AS removed WHERE {same}{also}"
    # As arrays, because only PostgreSQL 18 has a max of bytea.
    newest = "(max(CASE WHEN {condition} THEN ARRAY[{value}] END) OVER ({window}))[1]"
    leaves = True
    bury = (
        "ON CONFLICT ({keys}) DO UPDATE SET {buried} = EXCLUDED.{buried}, {deleted} = EXCLUDED.{deleted}"
        " WHERE target.{buried} < EXCLUDED.{buried}"
    )
    now = clock = "now()"
    lock = "SELECT pg_advisory_xact_lock(hashtext('outfall: changing'), hashtext(%(table)s))"
    owned = ", FOREIGN KEY (incarnation, target) REFERENCES {}.ledger ON DELETE CASCADE"
    first = "SELECT pg_advisory_xact_lock(hashtext('outfall: beginning'), hashtext(%(name)s))"
    # LOCK needs more privileges.
    holding = "EXPLAIN INSERT INTO {table} DEFAULT VALUES"
    at_once = "SET CONSTRAINTS ALL IMMEDIATE"
    # Stable while a transaction has locked the table, because a rewrite needs a lock (manual, 5.6 System Columns).
    keep = "UPDATE {staging} AS kept SET {column} = found._outfall_value FROM ({query}) AS found WHERE {same}"
    address = ("ctid",)
    place = "{0}::text"

    def quote(self, column: str) -> str:
        return quote(column)

    def all(self, stages: Sequence[int]) -> Selection:
        return Selection(f"{quote(STAGE)} = ANY(%(stages)s)", {"stages": list(stages)}, every=True)

    def at(self, places: Sequence[str]) -> Selection:
        return Selection("ctid = ANY(%(places)s::tid[])", {"places": list(places)})

    def held(self, statements: Statements) -> list[str]:
        # Without rows, no way to them is planned, and tables and privileges are the same.
        return statements.moving(Selection("false"))

    def latest(self, statements: Statements, rows: Selection, columns: Sequence[str]) -> Latest:
        query = _merged if statements.options.update_columns else _latest
        before = f"WITH {query(statements, rows, columns)} "
        return Latest("latest", self.listed(statements.keys), removed=quote(REMOVED), before=before)

    def removed(self, statements: Statements, rows: Selection) -> Removed:
        options, keys = statements.options, statements.keys
        if options.write_mode == "delete":
            source = statements.filled("(SELECT DISTINCT {keys} FROM {staging} WHERE {these})", rows)
            return Removed(source, {key: f"removed.{quote(key)}" for key in keys})
        names = [name for name in dict.fromkeys([*keys, options.order_column]) if name is not None]
        # Other names, because the user's predicate has unqualified names of columns.
        own = {name: quote(f"_outfall_{number}") for number, name in enumerate(names)}
        first, order = _first(statements, rows, list(map(quote, keys)))
        source = statements.filled(
            "(SELECT {first}{columns} FROM {staging} WHERE {these} AND {is_removal}{order})",
            these=rows.removals or rows.condition, first=first, order=order,
            columns=", ".join(f"{quote(name)} AS {own[name]}" for name in names),
        )  # fmt: skip
        predicate = _predicate(statements)
        return Removed(source, {name: f"removed.{own[name]}" for name in names}, [predicate] if predicate else [])

    def upsert(self, statements: Statements) -> str:
        predicate, updated, ordered = _predicate(statements), statements.updated(), statements.options.ordered_by
        pairs = ", ".join(f"{quote(name)} = EXCLUDED.{quote(name)}" for name in updated)
        newer = f" WHERE {statements.not_newer('target', ordered, f'excluded.{quote(ordered)}')}" if ordered else ""
        return statements.filled(
            "ON CONFLICT ({keys}){where} DO {action}",
            where=f" WHERE {predicate}" if predicate else "",
            action=f"UPDATE SET {pairs}{newer}" if updated else "NOTHING",
        )

    def content(self, removal: str, columns: Sequence[str]) -> str:
        return f"(CASE WHEN {removal} THEN '-' ELSE ROW({', '.join(columns)})::text END) COLLATE \"C\""


def ranked(condition: str, **given: Any) -> Selection:
    """Return the rows of `RANKS` that a condition on it selects, and the removals before them."""
    text = "ctid = ANY(ARRAY(SELECT {} FROM {} WHERE {}))"
    rows, removals = (compose(text, quote(column), RANKS, condition) for column in ("place", "removal"))
    return Selection(rows, given, removals=removals, ranked=condition)


def ranks(statements: Statements, rows: Selection) -> list[str]:
    """Return the statements that rank the last rows of all keys, in address order. The parameter is `stages`.

    Each row has the previous row of its key (`replaced`), the last removal up to itself (`removal`), and the first row
    after that (`first`), which inserts.

    They are determined once, by one sort, and stored in a temporary table that ends with the transaction, so connection
    poolers are supported.
    """
    keys = _group(statements)
    own = [quote(f"_outfall_key_{number}") for number in range(len(keys))]
    # In time order, the rows of a key form stretches. Each stretch except the first begins with a removal.
    fill = statements.filled(
        "INSERT INTO {ranks} (place, replaced, removal, first, rank)"
        " SELECT _outfall_place, _outfall_replaced,"
        " CASE WHEN _outfall_stretch > 0 THEN first_value(_outfall_place) OVER of_stretch END,"
        " CASE WHEN _outfall_stretch > 0 THEN nth_value(_outfall_place, 2) OVER of_stretch"
        " ELSE first_value(_outfall_place) OVER of_stretch END,"
        " CASE WHEN _outfall_n = 1"
        " THEN row_number() OVER (PARTITION BY _outfall_n = 1 ORDER BY _outfall_place) - 1 END"
        " FROM (SELECT *, count(*) FILTER (WHERE _outfall_gone)"
        " OVER (PARTITION BY {own} ORDER BY _outfall_n DESC) AS _outfall_stretch"
        " FROM (SELECT {aliased}, {is_removal} AS _outfall_gone, ctid AS _outfall_place,"
        " row_number() OVER of_key AS _outfall_n, lead(ctid) OVER of_key AS _outfall_replaced"
        " FROM {staging} WHERE {these} WINDOW of_key AS (PARTITION BY {group} ORDER BY {order})) AS numbered)"
        " AS placed WINDOW of_stretch AS (PARTITION BY {own}, _outfall_stretch ORDER BY _outfall_n DESC)",
        rows, ranks=RANKS, own=", ".join(own), group=", ".join(keys), order=_order(statements, keys),
        aliased=", ".join(f"{key} AS {name}" for key, name in zip(keys, own, strict=True)),
    )  # fmt: skip
    tids = "place tid, replaced tid, removal tid, first tid"
    create = compose("CREATE TEMPORARY TABLE {} ({}, rank bigint) ON COMMIT DROP", RANKS, tids)
    indexes = [compose("CREATE INDEX ON {} ({})", RANKS, quote(name)) for name in ("rank", "place")]
    return [create, fill, *indexes, compose("ANALYZE {}", RANKS)]


def pass_over(statements: Statements) -> str:
    """Return the statement that takes stale changes out of the ranking. Its row count is their number."""
    return statements.filled(
        "UPDATE {ranks} AS ranks SET rank = NULL FROM {staging} AS latest WHERE latest.ctid = ranks.place"
        " AND ranks.rank IS NOT NULL AND {stale}",
        ranks=RANKS, stale=statements.stale(),
    )  # fmt: skip


def _latest(statements: Statements, rows: Selection, columns: Sequence[str]) -> str:
    """Return a query for the last row of each key."""
    first, order = _first(statements, rows, _group(statements))
    return statements.filled(
        "latest AS (SELECT {first}{columns}, {is_removal} AS {removed} FROM {staging} WHERE {these}{order})",
        rows, columns=statements.words.listed(columns), first=first, order=order,
    )  # fmt: skip


def _merged(statements: Statements, rows: Selection, columns: Sequence[str]) -> str:
    """Return a query for updated columns from the last row of each key, and others from the first after a removal.

    It is as if each row had arrived alone: the first inserts, and the last updates.
    """
    updated, every = list(map(quote, statements.updated())), list(map(quote, columns))
    if rows.ranked is not None:
        return statements.filled(
            "latest AS (SELECT {chosen}, {marker} AS {removed} FROM (SELECT place, first FROM {ranks} WHERE {ranked})"
            " AS ranks JOIN {staging} AS newest ON newest.ctid = ranks.place"
            " LEFT JOIN {staging} AS oldest ON oldest.ctid = ranks.first)",
            chosen=", ".join(f"{'newest' if name in updated else 'oldest'}.{name}" for name in every),
            marker=f"coalesce(newest.{quote(MARKER)}, false)" if statements.options.delete_marker else "false",
            ranks=RANKS, ranked=rows.ranked,
        )  # fmt: skip
    return statements.filled(
        "numbered AS (SELECT {columns}, {alone} AS {place}, row_number() OVER of_key AS {number},"
        " bool_or({is_removal}) OVER of_key AS {removed}"
        " FROM {staging} WHERE {these} WINDOW of_key AS (PARTITION BY {keys}, {alone} ORDER BY {order})),"
        " picked AS (SELECT {picked}, {number}, {removed} FROM numbered"
        " WINDOW whole AS (PARTITION BY {keys}, {place}, {removed}"
        " ORDER BY {number} ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING)),"
        " latest AS (SELECT {columns}, {removed} FROM picked WHERE {number} = 1)",
        rows, columns=", ".join(every), place=quote("_outfall_place"),
        alone=_alone(statements) or "NULL::tid", order=_order(statements, _group(statements)),
        picked=", ".join(each if each in updated else f"last_value({each}) OVER whole AS {each}" for each in every),
    )  # fmt: skip


def _group(statements: Statements) -> list[str]:
    """Return what rows that replace one another share: the key; beyond a partial index, a row is alone."""
    alone = _alone(statements)
    return [*map(quote, statements.keys), *([] if alone is None else [alone])]


def _alone(statements: Statements) -> str | None:
    """Return the address of a row that replaces no other one, and NULL for other rows; `None` if all are others."""
    within = statements.conflicts.within
    return None if within is None else f"CASE WHEN NOT ({statements.is_removal} OR {within}) THEN ctid END"


def _first(statements: Statements, rows: Selection, group: Sequence[str]) -> tuple[str, str]:
    """Return what begins and ends a query for the last row of each group; nothing for ranked rows, which are that."""
    if rows.ranked is not None:
        return "", ""
    return f"DISTINCT ON ({', '.join(group)}) ", f" ORDER BY {_order(statements, group)}"


def _order(statements: Statements, group: Sequence[str]) -> str:
    """Return the sort order with the last row of each key first: by the ordering column, then by write order."""
    ordered = statements.options.ordered_by
    newest = [] if ordered is None else [f"{quote(ordered)} DESC NULLS LAST"]
    return ", ".join([*group, *newest, f"{quote(STAGE)} DESC", f"{quote(ROW)} DESC"])


def _predicate(statements: Statements) -> str:
    """Return the predicate of a partial index; an empty text without one. It is the user's own SQL."""
    where = getattr(statements.options, "conflict_where", None)
    return f"({doubled(where)})" if where else ""
