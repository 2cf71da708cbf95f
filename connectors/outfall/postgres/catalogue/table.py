"""The user's table: checks that rows fit, and the statements that create or change it.

Upserts and source offsets require a unique index, COPY into the table requires that it has no rules, and a crash of the
server must not empty it. The catalog has this information, so an unsuitable table is rejected before the first row.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

import psycopg
import pyarrow as pa
from psycopg import sql

from outfall.errors import ConfigurationError, TargetError, TargetLostError
from outfall.postgres.catalogue.columns import TableColumn, read_columns
from outfall.postgres.catalogue.conflict import Arbiter, arbiters, conflicting
from outfall.postgres.catalogue.relation import Relation, read_relation
from outfall.postgres.catalogue.types import new_column_type, why_not
from outfall.postgres.connection.database import PostgresConnection
from outfall.postgres.connection.errors import describe, lacks_right
from outfall.postgres.names import LONGEST, TableName
from outfall.postgres.options import PostgresOptions
from outfall.values import spark_type


class Table:
    """The user's table, as the server describes it."""

    def __init__(self, options: PostgresOptions, name: TableName) -> None:
        self._options = options
        self._name = name

    def check(self, connection: PostgresConnection, schema: pa.Schema) -> None:
        """Reject rows that the table cannot store, with a reason for each column. Changes nothing.

        Raises `ConfigurationError`, which names every column that does not fit, and `TargetError` if the table does not
        exist, or has no unique index on the keys of an upsert.
        """
        columns = {column.name: column for column in read_columns(connection, self._name)}
        if not columns:
            self._check_new(schema)
            return
        problems = [
            *(self._problem(field, columns) for field in self._fields(schema)),
            *self._differ_in_case(schema, columns),
            *self._missing_names(schema),
            *self._not_given(schema, columns),
            *self._taken_names([*schema.names, *(name for name, column in columns.items() if column.writable)]),
        ]
        told = [problem for problem in problems if problem]
        if told:
            new = any(field.name not in columns for field in self._fields(schema))
            addable = new and self._options.schema_evolution == "fail" and self._options.payload_column is None
            raise ConfigurationError(
                f"the rows do not fit {self._name}: {'; '.join(told)}",
                do="change the columns, or the table"
                + ("; or set schema_evolution='add_columns' to add the missing ones" if addable else ""),
            )
        self._check_conflict(connection)
        if self._options.conflict_where:
            given = [field.name for field in self._fields(schema)]
            conflicting(connection, self._name, self._options.key_columns, self._options.conflict_where, given)

    def check_without_rows(self, connection: PostgresConnection) -> None:
        """Reject a table that fits no rows: one that is missing, or does not match the options. Changes nothing.

        Raises `TargetError` as `check` does, or if the table lacks a column that an option names.
        """
        options = self._options
        self.check_relation(connection)
        columns = {column.name for column in read_columns(connection, self._name)}
        if not columns:
            if options.create_table == "never":
                raise self._missing()
            return
        stored = [name for name in options.columns_named() if name != options.delete_marker]
        unknown = [name for name in stored if name not in columns]
        if unknown and options.schema_evolution == "fail":
            raise TargetError(
                f"{self._name} has no column {unknown[0]!r}, which an option names",
                do="set the option to a column of the table, or add the column; or set"
                " schema_evolution='add_columns', if the rows have it",
            )
        self._check_conflict(connection)

    def check_relation(self, connection: PostgresConnection) -> None:
        """Reject a table that would lose or hide rows without an error. A missing table passes. Changes nothing.

        Raises `ConfigurationError` if it is temporary, or if COPY, which parts use, cannot write it or ignores its
        rules. Raises `TargetError` if a crash of the server empties it, other servers store its rows, or a DELETE would
        skip rows.
        """
        options, name = self._options, self._name
        relation = read_relation(connection, name)
        if relation is None:
            return
        if relation.temporary:
            raise ConfigurationError(
                f"{name} is a temporary table", why="its rows end with one session", do="set table to a regular table"
            )
        if relation.remote:
            raise TargetError(
                f"{name} stores rows in the foreign table {relation.remote[0]}",
                why="its server commits them apart from the ledger, so a crash could duplicate or lose them",
                do="write to a regular table; or set dsn and table to that server and its table",
            )
        if relation.unlogged and not options.allow_unlogged:
            raise unlogged(name, relation, "; or set allow_unlogged=True to accept the loss")
        deletes = options.write_mode == "delete" or options.delete_marker or options.existing.others == "delete"
        if deletes and relation.hides_rows:
            raise TargetError(
                f"row security of {name} hides rows from this user",
                why="a DELETE skips hidden rows without an error",
                do="give the sink's user BYPASSRLS, or a policy FOR ALL with USING (true) and no restrictive one",
            )
        if options.parts is not None:
            self._check_copied_into(relation)

    def _check_copied_into(self, relation: Relation) -> None:
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
            f"{self._name} {what}",
            why="by parts, rows are written with COPY, which cannot write such a view or table and runs no rules",
            do="omit parts, because epochs insert rows; or write to the underlying table as a user with access",
        )

    def delete_rows(self, connection: PostgresConnection) -> None:
        """Delete all rows, for `on_existing="overwrite"`.

        Raises `TargetError` if a trigger or a rule keeps some of them.
        """
        connection.execute(sql.SQL("DELETE FROM {}").format(self._name.identifier()))
        relation = read_relation(connection, self._name)
        if relation is not None and relation.on_delete and self.holds_rows(connection):
            raise TargetError(
                f"{self._name} still holds rows after DELETE",
                why=f"on_existing is 'overwrite', but {', '.join(relation.on_delete)} of the table can keep rows",
                do='empty the table yourself, or set on_existing="resume" to keep its rows',
            )

    def missing_ddl(self, connection: PostgresConnection, schema: pa.Schema) -> list[sql.Composed]:
        """Return the statements that create the table or add columns, as the options allow; none if rows fit."""
        columns = {column.name for column in read_columns(connection, self._name)}
        if not columns:
            return [self._create(schema)]
        if self._options.schema_evolution != "add_columns":
            return []
        adding = sql.SQL("ALTER TABLE {} ADD COLUMN IF NOT EXISTS {}")
        return [
            adding.format(self._name.identifier(), _definition(field))
            for field in self._fields(schema)
            if field.name not in columns
        ]

    def holds_rows(self, connection: PostgresConnection) -> bool:
        """Return whether the table exists and has rows."""
        if not read_columns(connection, self._name):
            return False
        found = connection.execute(
            sql.SQL("SELECT EXISTS (SELECT 1 FROM {})").format(self._name.identifier())
        ).fetchone()
        return bool(found and found[0])

    def _check_conflict(self, connection: PostgresConnection) -> None:
        options = self._options
        if options.write_mode != "upsert":
            return
        if options.conflict_constraint:
            check_constraint(connection, self._name, options.conflict_constraint, options.key_columns)
        else:
            why = "an upsert needs it to find the row of a key"
            check_unique(connection, self._name, options.key_columns, why=why, where=options.conflict_where)

    def _fields(self, schema: pa.Schema) -> list[pa.Field]:
        return [field for field in schema if field.name != self._options.delete_marker]

    def _check_new(self, schema: pa.Schema) -> None:
        if self._options.create_table == "never":
            raise self._missing()
        for field in self._fields(schema):
            new_column_type(field.type, field.name)
        names = (_why_no_name(field.name) for field in self._fields(schema))
        problems = [*filter(None, names), *self._missing_names(schema), *self._taken_names(schema.names)]
        named = self._options.conflict_constraint
        if named and named != f"{self._name.name}_pkey":
            problems.append(f"the new table would have no constraint {named!r}, only its primary key")
        if problems:
            raise ConfigurationError(
                f"the table {self._name} cannot be created: {'; '.join(problems)}",
                do="correct the columns or the options",
            )

    def _missing(self) -> TargetError:
        return TargetError(f"there is no table {self._name}", do='create it, or set create_table="if_missing"')

    def _problem(self, field: pa.Field, columns: dict[str, TableColumn]) -> str | None:
        column = columns.get(field.name)
        if column is None:
            if self._options.schema_evolution == "add_columns":
                new_column_type(field.type, field.name)
                return _why_no_name(field.name)
            near = difflib.get_close_matches(field.name, columns, n=1)
            return f"the table has no column {field.name!r}" + (f", did you mean {near[0]!r}?" if near else "")
        if not column.writable:
            return f"{field.name!r} is a column that the server fills"
        reason = why_not(field.type, column, json=field.name == self._options.payload_column)
        return f"{field.name!r}: {reason}" if reason else None

    def _differ_in_case(self, schema: pa.Schema, columns: Iterable[str]) -> list[str]:
        """Return problems of new columns that unquoted SQL and Spark would confuse with another column."""
        if self._options.schema_evolution != "add_columns":
            return []
        known = {name.lower(): name for name in columns}
        new = [field.name for field in self._fields(schema) if field.name not in columns]
        return [
            f"the new column {name!r} differs only in case from {other!r}"
            for name in new
            if (other := known.setdefault(name.lower(), name)) != name
        ]

    def _missing_names(self, schema: pa.Schema) -> list[str]:
        options = self._options
        problems = [
            f"the rows have no column {name!r}, which an option names"
            for name in options.columns_named()
            if name not in schema.names
        ]
        if options.delete_marker in schema.names:
            kind = schema.field(options.delete_marker).type
            if not pa.types.is_boolean(kind):
                problems.append(
                    f"the delete marker {options.delete_marker!r} is {spark_type(kind)}, but must be boolean"
                )
        return problems

    def _taken_names(self, names: Sequence[str]) -> list[str]:
        """Return problems of columns whose names are reserved for staging or for the publishing statement."""
        if self._options.parts is not None:
            return []
        own = self._options.reserved_columns()
        return [f"the name {name!r} is reserved for the sink" for name in dict.fromkeys(names) if name in own]

    def _not_given(self, schema: pa.Schema, columns: dict[str, TableColumn]) -> list[str]:
        """Return problems of required columns that the rows lack."""
        if self._options.write_mode == "delete":
            return []
        return [
            f"the rows have no column {column.name!r}, which is NOT NULL and has no default"
            for column in columns.values()
            if column.needed and column.name not in schema.names
        ]

    def _create(self, schema: pa.Schema) -> sql.Composed:
        fields = [_definition(field) for field in self._fields(schema)]
        keys = self._options.key_columns
        if keys:
            fields.append(sql.SQL("PRIMARY KEY ({})").format(sql.SQL(", ").join(map(sql.Identifier, keys))))
        return sql.SQL("CREATE TABLE {} ({})").format(self._name.identifier(), sql.SQL(", ").join(fields))


def _why_no_name(name: str) -> str | None:
    fits = 0 < len(name.encode()) <= LONGEST and "\0" not in name
    return None if fits else f"{name!r} cannot be a column name: the server allows 1 to {LONGEST} bytes"


def _definition(field: pa.Field) -> sql.Composed:
    kind = new_column_type(field.type, field.name)
    return sql.SQL("{} {}").format(sql.Identifier(field.name), sql.SQL(kind))


_CONSTRAINT = """
SELECT c.contype IN ('u', 'p') AND NOT c.condeferrable
           AND NOT EXISTS (SELECT 1 FROM pg_catalog.pg_index WHERE indexrelid = c.conindid AND indisexclusion),
       (SELECT array_agg(a.attname::text ORDER BY a.attname::text) FROM unnest(c.conkey) AS key (attnum)
        JOIN pg_catalog.pg_attribute AS a ON a.attrelid = c.conrelid AND a.attnum = key.attnum)
FROM pg_catalog.pg_constraint AS c WHERE c.conrelid = to_regclass(%s) AND c.conname = %s
"""


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
    named = table.identifier().as_string(connection)
    listed = sql.SQL(", ").join(map(sql.Identifier, columns)).as_string(connection)
    problem: psycopg.Error | None = None
    found = []
    try:
        with connection.transaction():
            found = arbiters(connection, table, columns, where)
    except psycopg.ProgrammingError as error:
        if lacks_right(error) or (where is None and not isinstance(error, psycopg.errors.InvalidColumnReference)):
            raise
        problem = error
    deferrable = [index.name for index in found if not index.immediate]
    if deferrable or not found:
        raise TargetError(
            f"{table} has no unique index on {', '.join(columns)}"
            + (" that matches conflict_where" if where else "")
            + (" alone" if len(deferrable) < len(found) else ""),
            why=why if where is None or problem is None else f"{why}; {describe(problem)}",
            do=(f"drop the deferrable constraint {deferrable[0]}, which ON CONFLICT rejects; " if deferrable else "")
            + f"CREATE UNIQUE INDEX ON {named} ({listed})"
            + (f" WHERE {where}; it must not be" if where else "; it must be neither partial nor")
            + " on expressions, and a constraint not deferrable",
        ) from problem
    for index in found:
        if index.unlike:
            raise TargetError(
                f"the index {index.name} of {table} compares {', '.join(index.unlike)} otherwise than the column",
                why="rows that have one key for the index have two for the column, or the reverse",
                do="drop the index and create it without COLLATE, or give the column the collation of the index",
            )
    return found


def check_constraint(connection: PostgresConnection, table: TableName, name: str, columns: Sequence[str]) -> None:
    """Reject, with a `TargetError`, a constraint that is missing or is not unique on exactly these columns."""
    named = table.identifier().as_string(connection)
    found = connection.execute(_CONSTRAINT, (named, name)).fetchone()
    if found is None:
        what = f"{table} has no constraint {name!r}"
    elif not found[0]:
        what = f"the constraint {name!r} of {table} cannot decide conflicts"
    elif sorted(found[1]) != sorted(columns):
        what = (
            f"the constraint {name!r} of {table} is on {', '.join(found[1])}, but key_columns are {', '.join(columns)}"
        )
    else:
        return
    raise TargetError(
        what,
        why="an upsert needs it to find the row of a key",
        do="use a unique, non-deferrable constraint on the key columns, or leave conflict_constraint out",
    )


def dropped(name: TableName, step_id: str) -> TargetLostError:
    """Return the error of a missing table to which the query has written."""
    return TargetLostError(
        f"the table {name} is missing, but this query has written to it",
        step=step_id,
        why="it was dropped or renamed, or the search_path changed",
        do="restore the table, or start the query with a new checkpoint",
    )


def unlogged(name: TableName, relation: Relation, otherwise: str = "") -> TargetError:
    """Return the error of a table that a crash of the server empties."""
    return TargetError(
        f"{name} is unlogged, or stores rows in unlogged tables: {', '.join(relation.unlogged)}",
        why="a crash of the server empties them, and rows of completed epochs are not written again",
        do="; ".join(f"ALTER TABLE {table} SET LOGGED" for table in relation.unlogged) + otherwise,
    )
