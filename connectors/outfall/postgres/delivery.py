"""The base of the deliveries: checks and opens the table before an epoch."""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Protocol, Self

import pyarrow as pa
from psycopg import sql

from outfall.capabilities import (
    OUTPUT_MODES,
    DeclaresGuarantee,
    Guarantee,
    SaveMode,
    SupportsTarget,
    SupportsWriterContext,
    TargetContext,
    WriterInitContext,
)
from outfall.errors import ConfigurationError
from outfall.options import options_in_save_mode
from outfall.possession.possession import check as check_record
from outfall.postgres.catalogue.columns import read_columns, schema_of
from outfall.postgres.catalogue.privileges import check_rights
from outfall.postgres.catalogue.relation import read_relation
from outfall.postgres.catalogue.table import Table
from outfall.postgres.catalogue.types import arrow_type
from outfall.postgres.connection.database import PostgresConnection, PostgresDatabase, max_connections
from outfall.postgres.connection.errors import explained
from outfall.postgres.ledger import StepLedger
from outfall.postgres.names import TableName
from outfall.postgres.options import PostgresOptions
from outfall.postgres.staging.dead_letters import dead_letters
from outfall.postgres.staging.staging_table import Staging
from outfall.postgres.tables import StepTables
from outfall.postgres.target import PostgresTarget, open_tables
from outfall.sinks import Sink


class _OfStep(Protocol):
    """The common attributes of all contexts."""

    @property
    def step_id(self) -> str: ...

    @property
    def incarnation(self) -> str: ...


class PostgresDelivery(Sink[Any], SupportsWriterContext, SupportsTarget[Any], DeclaresGuarantee):
    """A delivery mode of `PostgresSink`.

    Before an epoch, the driver runs two transactions: `check_target` checks the columns, the table and the ledger, and
    `open_target` records the driver in the ledger. In the first epoch, `check_schema` runs another one.
    """

    def __init__(self, options: PostgresOptions) -> None:
        self.options = options
        self.table = TableName.parse(options.table)
        self.letters = dead_letters(options)
        self.context: WriterInitContext | None = None
        self._schema: pa.Schema | None = None
        """The columns of the rows, once the driver knows them."""
        self._written: pa.Schema | None = None
        """The columns that are written for such rows."""
        self._found_in = self.table.schema
        """The table's schema, or the one that the search path found. The driver passes it to the tasks."""
        self._max_connections: int | None = None
        """The server's `max_connections`, once the driver has read it."""

    @property
    def database(self) -> PostgresDatabase:
        """The database of the table."""
        return PostgresDatabase(
            self.options, self._max_connections, 0 if self.context is None else self.context.worker_count
        )

    def kind(self) -> str:
        return "postgres"

    def target(self) -> str:
        # Without host and port, because a server may move. The ledger proves that it is the same database.
        return f"postgres:{self.database.database_name()}/{self.table}"

    def place(self) -> str:
        found = TableName(self.found_in(starting=True), self.table.name)
        return f"{self.database.server()} {self.database.database_name()}/{found}"

    def in_save_mode(self, mode: SaveMode | None) -> Self:
        changed = copy.copy(self)
        changed.options = options_in_save_mode(self.options, mode)
        return changed

    def output_modes(self) -> Collection[str]:
        return OUTPUT_MODES if self.options.write_mode == "upsert" else ("append",)

    def guarantee(self) -> Guarantee:
        return Guarantee.AT_LEAST_ONCE if self.options.allow_unlogged else Guarantee.EXACTLY_ONCE

    def requires(self) -> Sequence[str]:
        kept = "a server that keeps what it has committed (synchronous_commit is not off)"
        if self.options.allow_unlogged:
            return (kept, "a server that does not crash, which would empty unlogged tables and lose their rows")
        return (kept,)

    def bind(self, context: WriterInitContext) -> Self:
        bound = copy.copy(self)
        bound.context = context
        return bound

    def row_schema(self) -> pa.Schema | None:
        if self.options.payload_column is not None:
            # Rows have other columns than the table.
            return None
        columns = self.database.run("checking", lambda connection: read_columns(connection, self.table), starting=True)
        fields = [pa.field(column.name, arrow_type(column.kind)) for column in columns if column.writable]
        if fields and self.options.delete_marker is not None:
            fields.append(pa.field(self.options.delete_marker, pa.bool_()))
        return pa.schema(fields) if fields else None

    def check_schema(self, schema: pa.Schema) -> None:
        """Reject a schema that does not fit the table, with a reason for each column.

        The server is queried only for a new schema; `check_target` checks it again in every epoch.
        """
        if schema != self._schema:
            self.database.run("checking", lambda connection: self._check_columns(connection, schema), starting=True)
            self._schema = schema

    def check_target(self, context: TargetContext[Any]) -> Mapping[str, Any]:
        def check(connection: PostgresConnection) -> Mapping[str, Any]:
            if self._found_in is None:
                self._found_in = schema_of(connection, self.table)
            if self._schema is not None:
                self._check_columns(connection, self._schema)
            if self._max_connections is None:
                self._max_connections = max_connections(connection)
            target = self._target(connection, context)
            target.check_table()
            check_record(target, context)
            states = target.starts(context)
            target.check_support(context.step_id)
            return states

        return self.database.run("checking", check, step=context.step_id, starting=True)

    def check_connection(self) -> Sequence[str]:
        def check(connection: PostgresConnection) -> Sequence[str]:
            letters = None if self.letters is None else self.letters.table
            found = check_rights(connection, self.database, self.table, letters)
            self._check_table(connection)
            relation = read_relation(connection, self.table)
            return found if relation is None else [*found, relation.sentence(self.table)]

        with explained(self.database, f"checking the privileges on {self.table}"):
            # Without retries, to report problems at once.
            return self.database.run_once(check)

    def open_target(self, context: TargetContext[Any]) -> None:
        open_tables(self._tables(context, self._table_options), partial(self._target, context=context), context)

    def ddl(self, step_id: str) -> str:
        """See `PostgresSink.ddl`."""
        with explained(self.database, f"checking {self.table}"), self.database.connection() as connection:
            statements = self._support_ddl(connection, step_id)
            return ";\n".join(text.as_string(connection) for text in statements) + ";\n"

    def found_in(self, *, starting: bool = False) -> str | None:
        """Return the schema in which the server finds the table. `starting`: see `PostgresDatabase.run_raw`."""
        if self._found_in is None:
            self._found_in = self.database.run(
                "checking", lambda connection: schema_of(connection, self.table), starting=starting
            )
        return self._found_in

    @property
    def _resolved(self) -> TableName:
        """The table in the schema in which it was found, if that is known."""
        return self.table.resolved(self._found_in)

    def _tables(
        self, context: _OfStep, options: PostgresOptions | None = None, *, starting: bool = False
    ) -> StepTables:
        """Return the tables of a step, with the sink's options or with others."""
        step, found_in = context.step_id, self.found_in(starting=starting)
        return StepTables(
            step,
            self.database if options is None else replace(self.database, options=options),
            self._resolved,
            StepLedger(self.options.metadata_schema, context.incarnation, step, self.table, found_in),
            self._staging(step, found_in),
            self.letters,
        )

    def _staging(self, step_id: str, found_in: str | None) -> Staging:
        return Staging(self.options, self._resolved, found_in, step_id)

    @property
    def _table_options(self) -> PostgresOptions:
        """The options for checking and creating the table."""
        return self.options

    def _writer(self) -> WriterInitContext:
        if self.context is None:
            raise ConfigurationError(
                "PostgresSink has no writer context", do="run the sink through outfall, which calls bind() first"
            )
        return self.context

    def _check_columns(self, connection: PostgresConnection, schema: pa.Schema) -> None:
        """Reject rows whose columns do not fit the table."""
        self._written = self._written_schema(connection, schema)
        Table(self._table_options, self._resolved).check(connection, self._written)

    def _check_table(self, connection: PostgresConnection) -> None:
        """Reject a table that fits no rows."""
        Table(self._table_options, self._resolved).check_without_rows(connection)

    def _written_schema(self, connection: PostgresConnection, schema: pa.Schema) -> pa.Schema:
        """Return the columns that are written for rows with a schema."""
        return schema

    @abstractmethod
    def _target(self, connection: PostgresConnection, context: TargetContext[Any]) -> PostgresTarget:
        """Return the table in one transaction."""

    @abstractmethod
    def _support_ddl(self, connection: PostgresConnection, step_id: str) -> list[sql.Composed]:
        """Return the statements that create the sink's own tables."""
