"""The user's table as PostgreSQL describes it: whether it keeps rows, and whether it finds those of a key.

Upserts and source offsets require a unique index, COPY into the table requires that it has no rules, and a crash of the
server must not empty it. The catalog has this information, so an unsuitable table is rejected before the first row.
"""

from __future__ import annotations

from collections.abc import Sequence

import psycopg
from psycopg import sql

from outfall.errors import ConfigurationError, TargetError
from outfall.postgres.catalogue.columns import read_columns
from outfall.postgres.catalogue.conflict import Arbiter, arbiters, conflicts
from outfall.postgres.catalogue.relation import Relation, read_relation
from outfall.postgres.connection.database import PostgresConnection
from outfall.postgres.connection.errors import describe, means
from outfall.postgres.names import TableName
from outfall.postgres.options import PostgresOptions
from outfall.sql.database import Means


def check_relation(options: PostgresOptions, connection: PostgresConnection, name: TableName) -> None:
    """Reject a table that would lose or hide rows without an error. A missing table passes. Changes nothing.

    Raises `ConfigurationError` if it is temporary, accepts no rows, or if COPY, which parts use, cannot write it or
    ignores its rules. Raises `TargetError` if a crash of the server empties it, other servers store its rows, a DELETE
    would skip rows, or logical replication makes its statements fail.
    """
    relation = read_relation(connection, name)
    if relation is None:
        return
    if relation.temporary:
        raise ConfigurationError(
            f"{name} is a temporary table", why="its rows end with one session", do="set table to a regular table"
        )
    _check_accepts(options, name, relation)
    if relation.remote:
        raise TargetError(
            f"{name} stores rows in the foreign table {relation.remote[0]}",
            why="its server commits them separately from the ledger, so a crash could duplicate or lose them",
            do="write to a regular table; or set dsn and table to that server and its table",
        )
    if relation.unlogged and not options.allow_unlogged:
        raise unlogged(name, relation, "; or set allow_unlogged=True to accept the loss")
    if options.deletes and relation.hides_rows:
        raise TargetError(
            f"row security of {name} hides rows from this user",
            why="a DELETE skips hidden rows without an error",
            do="give the sink's user BYPASSRLS, or a policy FOR ALL with USING (true) and no restrictive one",
        )
    if options.parts is not None:
        _check_copied_into(name, relation)


def _check_accepts(options: PostgresOptions, name: TableName, relation: Relation) -> None:
    """Reject a relation that accepts no INSERT or no DELETE, or on which an UPDATE or a DELETE fails."""
    statements = [] if options.write_mode == "delete" else ["INSERT"]
    for statement in [*statements, *(["DELETE"] if options.deletes else [])]:
        if what := relation.rejects(statement):
            view = " for which the server runs no " + statement if relation.kind == "v" else ""
            raise ConfigurationError(
                f"{name} is {what}{view}",
                why="it joins or groups rows, and has no INSTEAD OF trigger" if view else None,
                do=f"write to the table below it, or create an INSTEAD OF {statement} trigger"
                if view
                else "set table to a regular table",
            )
    needed = {"UPDATE"} if options.by_key else set()
    failing = (needed | ({"DELETE"} if options.deletes else set())) & {*relation.unpublishable}
    if failing:
        raise TargetError(
            f"{name} is published, and has no replica identity",
            why=f"the server rejects each {' and '.join(sorted(failing))} of such a table",
            do=f"create a primary key, or ALTER TABLE {name.quoted} REPLICA IDENTITY USING INDEX (or FULL)",
        )


def _check_copied_into(name: TableName, relation: Relation) -> None:
    """Reject a table for which COPY differs from INSERT (manual, COPY)."""
    if relation.is_read_only_for_copy:
        what = "is a view without an INSTEAD OF INSERT trigger"
    elif relation.secured:
        what = "has row security that applies to this user"
    elif relation.has_insert_rule:
        what = "has a rule for INSERT"
    else:
        return
    raise ConfigurationError(
        f"{name} {what}",
        why="by parts, rows are written with COPY, which cannot write such a view or table and runs no rules",
        do="omit parts, because epochs insert rows; or write to the underlying table as a user with access",
    )


def check_keys(
    options: PostgresOptions, connection: PostgresConnection, name: TableName, given: Sequence[str] | None
) -> None:
    """Reject a table without the unique index that an upsert needs. Changes nothing.

    `given` are the columns of the rows, if they are known. Raises `TargetError`.
    """
    if options.by_key:
        why = "the sink needs it to find the row of a key"
        check_unique(connection, name, options.key_columns, why=why, where=options.conflict_where)
    if options.conflict_where and given is not None:
        conflicts(connection, name, options, given)


def check_unique(
    connection: PostgresConnection, table: TableName, columns: Sequence[str], *, why: str, where: str | None = None
) -> list[Arbiter]:
    """Reject a table without a unique index on exactly these columns that compares them like the columns do.

    Returns the indexes; none if the table is missing. The columns are in any order. `why` is the purpose of the index,
    and `where` the predicate of a partial index, as SQL. Raises `TargetError` with the statement that creates the
    index.
    """
    if not read_columns(connection, table):
        return []
    listed = sql.SQL(", ").join(map(sql.Identifier, columns)).as_string(connection)
    problem: psycopg.Error | None = None
    found = []
    try:
        with connection.savepoint():
            found = arbiters(connection, table, columns, where)
    except psycopg.ProgrammingError as error:
        expected = where is not None or isinstance(error, psycopg.errors.InvalidColumnReference)
        if Means.DENIED in means(error) or not expected:
            raise
        problem = error
    deferrable = [index.name for index in found if not index.immediate]
    if deferrable or not found:
        raise TargetError(
            f"{table} has no unique index on {', '.join(columns)}"
            + (" that matches conflict_where" if where else "")
            + (f" without the deferrable constraint {deferrable[0]}" if len(deferrable) < len(found) else ""),
            why=why if where is None or problem is None else f"{why}; {describe(problem)}",
            do=(f"drop the deferrable constraint {deferrable[0]}, which ON CONFLICT rejects; " if deferrable else "")
            + f"CREATE UNIQUE INDEX ON {table.quoted} ({listed})"
            + (f" WHERE {where}; it must not be" if where else "; it must be neither partial nor")
            + " on expressions, and a constraint not deferrable",
        ) from problem
    for index in found:
        if index.unlike:
            raise TargetError(
                f"the index {index.name} of {table} compares {', '.join(index.unlike)} differently from the column",
                why="rows with equal keys in the index have different keys in the column, or the reverse",
                do="drop the index and create it without COLLATE, or give the column the collation of the index",
            )
    return found


def unlogged(name: TableName, relation: Relation, otherwise: str = "") -> TargetError:
    """Return the error of a table that a crash of the server empties."""
    return TargetError(
        f"{name} is unlogged, or stores rows in unlogged tables: {', '.join(relation.unlogged)}",
        why="a crash of the server empties them, and rows of completed epochs are not written again",
        do="; ".join(f"ALTER TABLE {table} SET LOGGED" for table in relation.unlogged) + otherwise,
    )
