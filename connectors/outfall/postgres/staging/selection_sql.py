"""How statements select staged rows, and find the last row of each key. All are text with parameters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from outfall.postgres.names import TableName, quote
from outfall.postgres.options import PostgresOptions
from outfall.sql.changes import REMOVALS
from outfall.sql.dialect import compose
from outfall.sql.options import MARKER, NUMBER, OPERATION, REMOVED, ROW, STAGE

Rows = Literal["all", "addressed", "address", "ranked", "rank"]
"""The staged rows that a statement selects: all rows of the attempts; those from address `low` to `high` (exclusive);
the one at address `place`; or, for upserts, the last rows of their keys from rank `low` to `high` (exclusive), or the
row at `place` as if it were the last."""

_PLACE = quote("_outfall_place")
RANKS = "pg_temp._outfall_ranks"
_CONDITIONS: dict[Rows, str] = {
    "all": "{stage} = ANY(%(stages)s)",
    "addressed": "{stage} = ANY(%(stages)s) AND ctid >= %(low)s::tid AND ctid < %(high)s::tid",
    "address": "ctid = %(place)s::tid",
    "ranked": "ctid = ANY(ARRAY(SELECT {column} FROM {ranks} WHERE {ranked}))",
    "rank": "ctid = ANY(ARRAY(SELECT {column} FROM {ranks} WHERE {ranked}))",
}
_RANKED: dict[Rows, str] = {
    "ranked": "rank >= %(low)s AND rank < %(high)s",
    "rank": "place = %(place)s::tid",
}


def ranking(options: PostgresOptions, staging: TableName, conflicting: str | None) -> list[str]:
    """Return the statements that rank the last rows of all keys, in address order. The parameter is `stages`.

    Each row has the previous row of its key (`replaced`), the last removal up to itself (`removal`), and the first row
    after that (`first`), which inserts.

    They are determined once, by one sort, and stored in a temporary table that ends with the transaction, so connection
    poolers are supported.
    """
    keys = _group(options, conflicting)
    tids = "place tid, replaced tid, removal tid, first tid"
    create = compose("CREATE TEMPORARY TABLE {} ({}, rank bigint) ON COMMIT DROP", RANKS, tids)
    own = [quote(f"_outfall_key_{number}") for number in range(len(keys))]
    # In time order, the rows of a key form stretches. Each stretch except the first begins with a removal.
    fill = compose(
        "INSERT INTO {ranks} (place, replaced, removal, first, rank)"
        " SELECT _outfall_place, _outfall_replaced,"
        " CASE WHEN _outfall_stretch > 0 THEN first_value(_outfall_place) OVER of_stretch END,"
        " CASE WHEN _outfall_stretch > 0 THEN nth_value(_outfall_place, 2) OVER of_stretch"
        " ELSE first_value(_outfall_place) OVER of_stretch END,"
        " CASE WHEN _outfall_n = 1"
        " THEN row_number() OVER (PARTITION BY _outfall_n = 1 ORDER BY _outfall_place) - 1 END"
        " FROM (SELECT *, count(*) FILTER (WHERE _outfall_gone)"
        " OVER (PARTITION BY {own} ORDER BY _outfall_n DESC) AS _outfall_stretch"
        " FROM (SELECT {aliased}, {removed} AS _outfall_gone, ctid AS _outfall_place,"
        " row_number() OVER of_key AS _outfall_n, lead(ctid) OVER of_key AS _outfall_replaced"
        " FROM {staging} WHERE {all} WINDOW of_key AS (PARTITION BY {keys} ORDER BY {order})) AS numbered)"
        " AS placed"
        " WINDOW of_stretch AS (PARTITION BY {own}, _outfall_stretch ORDER BY _outfall_n DESC)",
        ranks=RANKS,
        own=", ".join(own),
        aliased=", ".join(f"{key} AS {name}" for key, name in zip(keys, own, strict=True)),
        removed=is_removal(options),
        staging=staging.sql,
        all=these("all"),
        keys=", ".join(keys),
        order=order_of(options, conflicting),
    )
    indexes = [compose("CREATE INDEX ON {} ({})", RANKS, quote(name)) for name in ("rank", "place")]
    return [create, fill, *indexes, compose("ANALYZE {}", RANKS)]


def these(rows: Rows, column: Literal["place", "removal"] = "place") -> str:
    """Return the condition on staging that selects rows, or a related row in `RANKS` for ranked ones."""
    return compose(_CONDITIONS[rows], stage=quote(STAGE), column=quote(column), ranks=RANKS, ranked=_ranked(rows))


def _ranked(rows: Rows) -> str:
    """Return the condition on `RANKS` that selects rows."""
    return _RANKED.get(rows, "true")


def latest(
    options: PostgresOptions, staging: TableName, columns: Sequence[str], rows: Rows, conflicting: str | None
) -> str:
    """Return a query for the last row of each key."""
    group = ", ".join(_group(options, conflicting))
    return compose(
        "latest AS (SELECT {first}{columns}, {is_removal} AS {removed} FROM {staging} WHERE {these}{order})",
        first=f"DISTINCT ON ({group}) " if rows == "all" else "",
        columns=listed(columns),
        is_removal=is_removal(options),
        removed=quote(REMOVED),
        staging=staging.sql,
        these=these(rows),
        order=f" ORDER BY {order_of(options, conflicting)}" if rows == "all" else "",
    )


def merged(
    options: PostgresOptions, staging: TableName, columns: Sequence[str], rows: Rows, conflicting: str | None
) -> str:
    """Return a query for updated columns from the last row of each key, and others from the first after a removal."""
    newest = [quote(name) for name in updated(options, columns)]
    all_columns = list(map(quote, columns))
    if rows == "all":
        picked = [name if name in newest else f"last_value({name}) OVER whole AS {name}" for name in all_columns]
        return compose(
            "numbered AS (SELECT {columns}, {alone} AS {place}, row_number() OVER of_key AS {n},"
            " bool_or({is_removal}) OVER of_key AS {removed}"
            " FROM {staging} WHERE {all} WINDOW of_key AS (PARTITION BY {keys}, {alone} ORDER BY {order})),"
            " picked AS (SELECT {picked}, {n}, {removed} FROM numbered"
            " WINDOW whole AS (PARTITION BY {keys}, {place}, {removed}"
            " ORDER BY {n} ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING)),"
            " latest AS (SELECT {columns}, {removed} FROM picked WHERE {n} = 1)",
            columns=", ".join(all_columns),
            n=quote(NUMBER),
            removed=quote(REMOVED),
            is_removal=is_removal(options),
            staging=staging.sql,
            all=these("all"),
            keys=listed(options.key_columns),
            alone=_alone(options, conflicting) or "NULL::tid",
            place=_PLACE,
            order=order_of(options, conflicting),
            picked=", ".join(picked),
        )
    return compose(
        "latest AS (SELECT {chosen}, {marker} AS {removed} FROM (SELECT place, first FROM {ranks} WHERE {ranked})"
        " AS ranks JOIN {staging} AS newest ON newest.ctid = ranks.place"
        " LEFT JOIN {staging} AS oldest ON oldest.ctid = ranks.first)",
        chosen=", ".join(f"{'newest' if name in newest else 'oldest'}.{name}" for name in all_columns),
        marker=f"coalesce(newest.{quote(MARKER)}, false)" if options.delete_marker else "false",
        removed=quote(REMOVED),
        ranks=RANKS,
        ranked=_ranked(rows),
        staging=staging.sql,
    )


def is_removal(options: PostgresOptions) -> str:
    """Return the expression for whether a staged row is a removal."""
    if options.operation_column:
        return f"lower({quote(OPERATION)}) = ANY('{{{','.join(REMOVALS)}}}')"
    return f"coalesce({quote(MARKER)}, false)" if options.delete_marker else "false"


def _group(options: PostgresOptions, conflicting: str | None) -> list[str]:
    """Return what rows that replace one another share: the key; beyond a partial index, a row is alone."""
    keys = list(map(quote, options.key_columns))
    alone = _alone(options, conflicting)
    return keys if alone is None else [*keys, alone]


def _alone(options: PostgresOptions, conflicting: str | None) -> str | None:
    """Return the address of a row that replaces no other one, and NULL for other rows; `None` if all are others."""
    return None if conflicting is None else f"CASE WHEN NOT ({is_removal(options)} OR {conflicting}) THEN ctid END"


def order_of(options: PostgresOptions, conflicting: str | None = None) -> str:
    """Return the sort order with the last row of each key first: by the ordering column, then by write order."""
    newest = [f"{quote(options.ordered_by)} DESC NULLS LAST"] if options.ordered_by else []
    written = [f"{quote(STAGE)} DESC", f"{quote(ROW)} DESC"]
    return ", ".join([*_group(options, conflicting), *newest, *written])


def updated(options: PostgresOptions, columns: Sequence[str]) -> list[str]:
    """Return the columns of an existing row that are updated."""
    # Includes the ordering column, or the row would seem older than its new values.
    wanted = [*options.update_columns, options.ordered_by] if options.update_columns else columns
    return [name for name in dict.fromkeys(wanted) if name is not None and name not in options.key_columns]


def listed(columns: Sequence[str]) -> str:
    """Return columns as SQL."""
    return ", ".join(map(quote, columns))
