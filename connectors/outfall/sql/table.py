"""The user's table: checks that rows fit, and the statements that create or change it."""

from __future__ import annotations

import difflib
import logging
from collections.abc import Iterable, Sequence

import pyarrow as pa

from outfall.errors import ConfigurationError, TargetError, TargetLostError
from outfall.sql.changes import KAFKA_SEQUENCE, why_no_operation, why_no_sequence
from outfall.sql.database import Session
from outfall.sql.dialect import Column, Dialect, compose
from outfall.sql.names import SqlName
from outfall.tables.allowed import check_listed
from outfall.values import require_columns, spark_type

_log = logging.getLogger(__name__)

_POSITIONS = ("lsn", "source_lsn", "__lsn", "__source_lsn")
"""The names that Debezium's `source.lsn` gets."""


class Table:
    """The user's table, as the server describes it."""

    def __init__(self, dialect: Dialect, name: SqlName) -> None:
        self._dialect = dialect
        self._options = dialect.options
        self._name = name

    def check(self, session: Session, schema: pa.Schema) -> None:
        """Reject rows that the table cannot store, with a reason for each column. Changes nothing.

        Raises `ConfigurationError`, which names every column that does not fit, and `TargetError` if the table does not
        exist, or has no unique index on the keys of an upsert.
        """
        if self.check_columns(session, schema):
            self._dialect.check_keys(session, self._name, [field.name for field in self._fields(schema)])

    def check_columns(self, session: Session, schema: pa.Schema) -> bool:
        """Reject rows like `check`, without its keys. Returns whether the table exists; otherwise it can be created."""
        require_columns(schema.names, {"an option": self._options.columns_named()})
        self._warn_of_position(schema)
        columns = {column.name: column for column in self._dialect.columns(session, self._name)}
        if not columns:
            self._check_new(schema)
            return False
        fields = self._fields(schema)
        problems = [
            *(self._problem(field, columns) for field in fields),
            *self._differ_in_case(schema, columns),
            *self._misplaced(schema),
            *self._not_given(schema, columns),
            *self._taken_names([*schema.names, *(name for name, column in columns.items() if column.writable)]),
        ]
        found = [problem for problem in problems if problem]
        if found:
            new = any(field.name not in columns for field in fields)
            addable = new and self._options.schema_evolution == "fail" and self._dialect.adds_columns
            raise ConfigurationError(
                f"the rows do not fit {self._name}: {'; '.join(found)}",
                do="change the columns, or the table"
                + ("; or set schema_evolution='add_columns' to add the missing ones" if addable else ""),
            )
        return True

    def check_without_rows(self, session: Session) -> None:
        """Reject a table that fits no rows: one that is missing, or does not match the options. Changes nothing.

        Raises `TargetError` as `check` does, or if the table lacks a column that an option names.
        """
        options = self._options
        self._dialect.check_relation(session, self._name)
        columns = {column.name for column in self._dialect.columns(session, self._name)}
        if not columns:
            if options.create_table == "never":
                raise missing(self._name)
            return
        stored = [name for name in options.columns_named() if name not in options.not_stored]
        unknown = [name for name in stored if name not in columns]
        if unknown and options.schema_evolution == "fail":
            raise TargetError(
                f"{self._name} has no column {unknown[0]!r}, which an option names",
                do="set the option to a column of the table, or add the column; or set"
                " schema_evolution='add_columns', if the rows have it",
            )
        self._dialect.check_keys(session, self._name, None)

    @property
    def name(self) -> SqlName:
        """The name, with the schema in which the server has found it."""
        return self._name

    @property
    def spelled(self) -> str:
        """The name as the options have it."""
        return self._options.table or str(self._name)

    @property
    def keys(self) -> Sequence[str]:
        """The columns that identify a row, by the options."""
        return self._options.key_columns

    def columns(self, session: Session) -> Sequence[Column]:
        """Return the columns of the table; none if it is missing."""
        return self._dialect.columns(session, self._name)

    def check_routing(self, schema: pa.Schema) -> None:
        """Reject rows that no table can store as the options say. Raises `ConfigurationError`."""
        require_columns(schema.names, {"an option": self._options.columns_named()})
        check_listed(self._options, schema.names)
        if problems := [*self._misplaced(schema), *self._taken_names(schema.names)]:
            raise ConfigurationError(
                f"the rows do not fit the options: {'; '.join(problems)}", do="change the columns or the options"
            )

    def delete_rows(self, session: Session) -> None:
        """Delete all rows, for `on_existing="overwrite"`.

        Raises `TargetError` if a trigger or a rule keeps some of them.
        """
        session.execute(compose("DELETE FROM {}", self._name.sql))
        keeping = self._dialect.after_delete(session, self._name)
        if keeping is not None and self.holds_rows(session):
            raise TargetError(
                f"{self._name} still holds rows after DELETE",
                why=f"on_existing is 'overwrite', but {keeping} of the table can keep rows",
                do='empty the table yourself, or set on_existing="resume" to keep its rows',
            )

    def missing_ddl(self, session: Session, schema: pa.Schema) -> list[str]:
        """Return the statements that create the table or add columns, as the options allow; none if rows fit."""
        columns = {column.name for column in self._dialect.columns(session, self._name)}
        fields = [field.with_nullable(True) for field in self._fields(schema) if self._options.gets(field.name)]
        if not columns:
            return [self._dialect.create_table(self._name, pa.schema(fields), self._options.key_columns)]
        if self._options.schema_evolution != "add_columns":
            return []
        return [self._dialect.add_column(self._name, field) for field in fields if field.name not in columns]

    def holds_rows(self, session: Session) -> bool:
        """Return whether the table exists and has rows."""
        if not self._dialect.columns(session, self._name):
            return False
        found = session.execute(compose("SELECT EXISTS (SELECT 1 FROM {})", self._name.sql)).fetchone()
        return bool(found and found[0])

    def _fields(self, schema: pa.Schema) -> list[pa.Field]:
        return [field for field in schema if field.name not in self._options.not_stored]

    def _check_new(self, schema: pa.Schema) -> None:
        if self._options.create_table == "never":
            raise missing(self._name)
        fields = [field for field in self._fields(schema) if self._options.gets(field.name)]
        for field in fields:
            self._dialect.new_type(field.type, field.name)
        reasons = (self._dialect.why_no_column(field.name) or self._no_sequence(field, None) for field in fields)
        problems = [*filter(None, reasons), *self._misplaced(schema), *self._taken_names(schema.names)]
        if problems:
            raise ConfigurationError(
                f"the table {self._name} cannot be created: {'; '.join(problems)}",
                do="correct the columns or the options",
            )

    def _problem(self, field: pa.Field, columns: dict[str, Column]) -> str | None:
        column = columns.get(field.name)
        if column is None:
            options = self._options
            added = options.schema_evolution == "add_columns" and options.gets(field.name)
            if options.unknown_columns == "leave_out_null" and field.name not in options.columns_named() and not added:
                return None
            if added:
                self._dialect.new_type(field.type, field.name)
                return self._dialect.why_no_column(field.name) or self._no_sequence(field, None)
            near = difflib.get_close_matches(field.name, columns, n=1)
            return f"the table has no column {field.name!r}" + (f", did you mean {near[0]!r}?" if near else "")
        if not column.writable:
            return f"{field.name!r} is {column.filled}"
        reason = self._dialect.why_not(field.type, column) or self._no_sequence(field, column)
        return f"{field.name!r}: {reason}" if reason else None

    def _warn_of_position(self, schema: pa.Schema) -> None:
        name = self._options.ordered_by or ""
        if name.lower() in _POSITIONS and schema.field(name).type != KAFKA_SEQUENCE:
            _log.warning(
                "%s: the order of its changes is that of %s. If this is Debezium's source.lsn, updates can be lost,"
                " because a position in PostgreSQL's log does not follow the commits. Order by the sequence of"
                " outfall.spark.debezium.changes: see the recipe 'Change data capture with deletes'",
                self._name,
                name,
            )

    def _no_sequence(self, field: pa.Field, column: Column | None) -> str | None:
        """Return why a column cannot order changes, if it has to."""
        if field.name != self._options.sequence_column:
            return None
        if self._options.sequence_kind == "kafka" and field.type != KAFKA_SEQUENCE:
            return f"a sequence of outfall.spark.debezium.changes is {spark_type(KAFKA_SEQUENCE)}, not {field.type}"
        return why_no_sequence(field.type) or self._dialect.why_no_sequence(field.type, column)

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

    def _misplaced(self, schema: pa.Schema) -> list[str]:
        """Return problems of the columns that say what to do with a row."""
        options = self._options
        problems = []
        if options.delete_marker in schema.names:
            kind = schema.field(options.delete_marker).type
            if not pa.types.is_boolean(kind):
                problems.append(
                    f"the delete marker {options.delete_marker!r} is {spark_type(kind)}, but must be boolean"
                )
        if options.table_column in schema.names:
            kind = schema.field(options.table_column).type
            if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
                problems.append(
                    f"the table column {options.table_column!r} is {spark_type(kind)}, but must be a string"
                )
        if options.operation_column in schema.names:
            problems += why_no_operation(schema.field(options.operation_column))
        return problems

    def _taken_names(self, names: Sequence[str]) -> list[str]:
        """Return problems of columns whose names are reserved for staging or for the publishing statement."""
        own = self._options.reserved_columns()
        return [f"the name {name!r} is reserved for the sink" for name in dict.fromkeys(names) if name in own]

    def _not_given(self, schema: pa.Schema, columns: dict[str, Column]) -> list[str]:
        """Return problems of required columns that the rows lack."""
        if self._options.write_mode == "delete":
            return []
        return [
            f"the rows have no column {column.name!r}, which is NOT NULL and has no default"
            for column in columns.values()
            if column.needed and column.name not in {field.name for field in self._fields(schema)}
        ]


def missing(name: SqlName) -> TargetError:
    """Return the error of a table that does not exist."""
    return TargetError(f"there is no table {name}", do='create it, or set create_table="if_missing"')


def dropped(name: SqlName, step_id: str, *, one_of_many: bool = False) -> TargetLostError:
    """Return the error of a missing table to which the query has written."""
    return TargetLostError(
        f"the table {name} is missing, but this query has written to it",
        step=step_id,
        why="it was dropped or renamed, or the sink now looks for it elsewhere",
        do="restore the table, or create it without rows if its rows are not wanted any more, and start the query again"
        if one_of_many
        else "restore the table, or start the query with a new checkpoint",
    )


def dropped_early(name: SqlName, step_id: str, epoch: int) -> TargetError:
    """Return the error of a missing table for which an epoch has its first rows."""
    return TargetError(
        f"the table {name} is missing, but its rows are recorded",
        step=step_id,
        epoch=epoch,
        why="it was dropped or renamed after its rows were staged",
        do="create it again with the same columns, or rename it back, and start the query again",
    )
