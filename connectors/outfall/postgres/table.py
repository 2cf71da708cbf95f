"""The target table: whether rows fit it, and what is made or changed for them."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

import pyarrow as pa
from psycopg import sql

from outfall.errors import ConfigurationError, TargetError
from outfall.postgres.columns import TableColumn, read_columns
from outfall.postgres.connection import Connection
from outfall.postgres.ledger import ledger_ddl, token_ddl
from outfall.postgres.names import LONGEST, TableName
from outfall.postgres.options import PostgresOptions
from outfall.postgres.publish_sql import statement_columns
from outfall.postgres.staging import own_columns, staging_ddl
from outfall.postgres.types import new_column_type, why_not
from outfall.postgres.unique_index import check_constraint, check_unique


class Table:
    """The user's table, as the server describes it."""

    def __init__(self, options: PostgresOptions, name: TableName) -> None:
        self._options = options
        self._name = name

    def check(self, connection: Connection, schema: pa.Schema) -> None:
        """Refuse rows that the table cannot take, column by column. Changes nothing.

        Raises:
            ConfigurationError: naming every column that does not fit.
            TargetError: there is no such table, or no index that an upsert's keys are of.
        """
        columns = {column.name: column for column in read_columns(connection, self._name)}
        if not columns:
            self._check_new(schema)
            return
        problems = [
            *(self._problem(field, columns) for field in self._fields(schema)),
            *self._missing_names(schema),
            *self._not_given(schema, columns),
            *self._taken_names([*schema.names, *(name for name, column in columns.items() if column.writable)]),
        ]
        told = [problem for problem in problems if problem]
        if told:
            raise ConfigurationError(
                f"the rows do not fit {self._name}: {'; '.join(told)}", do="change the columns, or the table"
            )
        self._check_conflict(connection)

    def missing_ddl(self, connection: Connection, schema: pa.Schema) -> list[sql.Composed]:
        """Return what creates the table, or adds columns to it, as the options allow; nothing when rows fit it."""
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

    def holds_rows(self, connection: Connection) -> bool:
        """Tell whether the table exists and has rows."""
        if not read_columns(connection, self._name):
            return False
        found = connection.execute(
            sql.SQL("SELECT EXISTS (SELECT 1 FROM {})").format(self._name.identifier())
        ).fetchone()
        return bool(found and found[0])

    def staging_ddl(self, connection: Connection, staging: TableName) -> list[sql.Composed]:
        """Return what is to be run so that staging has the table's columns; nothing when it has them."""
        # With the table's collations: which keys are one must not depend on where they are compared.
        wanted = [
            (column.name, column.definition) for column in read_columns(connection, self._name) if column.writable
        ]
        if not wanted:
            raise TargetError(f"there is no table {self._name}", do='create it, or set create_table="if_missing"')
        wanted = own_columns(self._options) + wanted
        found = [(column.name, column.definition) for column in read_columns(connection, staging)]
        if found == wanted:
            return []
        old = [sql.SQL("DROP TABLE {}").format(staging.identifier())] if found else []
        return old + staging_ddl(staging, wanted)

    def support_ddl(self, connection: Connection, staging: TableName) -> list[sql.Composed]:
        """Return all that is made beside the table."""
        schema = self._options.metadata_schema
        return ledger_ddl(schema) + token_ddl(schema) + self.staging_ddl(connection, staging)

    def _check_conflict(self, connection: Connection) -> None:
        options = self._options
        if options.write_mode != "upsert":
            return
        if options.conflict_constraint:
            check_constraint(connection, self._name, options.conflict_constraint, options.key_columns)
        else:
            why = "an upsert finds the row of a key by it"
            check_unique(connection, self._name, options.key_columns, why=why, where=options.conflict_where)

    def _fields(self, schema: pa.Schema) -> list[pa.Field]:
        return [field for field in schema if field.name != self._options.delete_marker]

    def _check_new(self, schema: pa.Schema) -> None:
        if self._options.create_table == "never":
            raise TargetError(f"there is no table {self._name}", do='create it, or set create_table="if_missing"')
        for field in self._fields(schema):
            new_column_type(field.type, field.name)
        names = (_why_no_name(field.name) for field in self._fields(schema))
        problems = [*filter(None, names), *self._missing_names(schema), *self._taken_names(schema.names)]
        named = self._options.conflict_constraint
        if named and named != f"{self._name.name}_pkey":
            problems.append(f"the table that is made would have no constraint {named!r}, only its primary key")
        if problems:
            raise ConfigurationError(
                f"the table {self._name} cannot be made: {'; '.join(problems)}", do="correct the columns or the options"
            )

    def _problem(self, field: pa.Field, columns: dict[str, TableColumn]) -> str | None:
        column = columns.get(field.name)
        if column is None:
            if self._options.schema_evolution == "add_columns":
                new_column_type(field.type, field.name)
                return _why_no_name(field.name)
            near = difflib.get_close_matches(field.name, columns, n=1)
            return f"the table has no column {field.name!r}" + (f", did you mean {near[0]!r}?" if near else "")
        if not column.writable:
            return f"{field.name!r} is a column that the server fills itself"
        reason = why_not(field.type, column, json=field.name == self._options.payload_column)
        return f"{field.name!r}: {reason}" if reason else None

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
                problems.append(f"the delete marker {options.delete_marker!r} is {kind}, and must be boolean")
        return problems

    def _taken_names(self, names: Sequence[str]) -> list[str]:
        """Columns whose names staging needs for its own, or the statement that publishes."""
        if self._options.parts is not None:
            return []
        own = {name for name, _ in own_columns(self._options)} | set(statement_columns(self._options))
        return [f"the name {name!r} is the sink's own" for name in dict.fromkeys(names) if name in own]

    def _not_given(self, schema: pa.Schema, columns: dict[str, TableColumn]) -> list[str]:
        """Columns that every row must have, and none does."""
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
    return None if fits else f"{name!r} can name no column: the server takes 1 to {LONGEST} bytes"


def _definition(field: pa.Field) -> sql.Composed:
    kind = new_column_type(field.type, field.name)
    return sql.SQL("{} {}").format(sql.Identifier(field.name), sql.SQL(kind))
