"""`PostgresSink`: rows in a table, each in it once."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Literal, Self

import pyarrow as pa

from outfall.capabilities import (
    CommitterInitContext,
    DeclaresGuarantee,
    Guarantee,
    SupportsCommitter,
    SupportsSchemaCheck,
    SupportsSweep,
    SupportsTarget,
    SupportsWriterContext,
    SweepContext,
    TargetContext,
    WriterInitContext,
)
from outfall.errors import ConfigurationError
from outfall.options import make_options
from outfall.postgres.commit import PostgresCommitter
from outfall.postgres.connection import Database, max_connections
from outfall.postgres.failures import explained
from outfall.postgres.ledger import Ledger
from outfall.postgres.letters import dead_letters
from outfall.postgres.names import TableName, staging_name
from outfall.postgres.options import PostgresOptions
from outfall.postgres.part import StagingPart
from outfall.postgres.staging import StagedRows, Staging, own_columns
from outfall.postgres.table import Table
from outfall.postgres.target import Target
from outfall.serde import ModelSerializer
from outfall.sinks import DynamicSink


class PostgresSink(
    DynamicSink[Any],
    SupportsWriterContext,
    SupportsTarget[Any],
    SupportsSchemaCheck,
    SupportsCommitter[StagedRows],
    SupportsSweep,
    DeclaresGuarantee,
):
    """Writes rows into a PostgreSQL table: appends, upserts or deletes them, an epoch at a time, all or nothing.

    Item type: rows (dicts or Arrow batches), whose columns are the table's by name.

    What must exist: the table, unless `create_table="if_missing"`; the right to make the schema `outfall`, or what
    `ddl()` prints; for upserts a unique index on the keys. No extension, no superuser; pgbouncer may stand between.

    Unit of parallelism: each Spark task copies its rows into a staging table, on a connection of its own. The driver
    publishes them in one transaction, together with the epoch's number in a ledger.

    Guarantee: exactly once, whatever is retried, killed or woken late, and whatever reply is lost.

    Args:
        dsn: the connection; also `env:NAME` or `file:PATH`. See `PostgresOptions`, as for all arguments.
        table: `name`, `schema.name` or quoted parts.

    Raises:
        ConfigurationError: naming every option that is wrong.
    """

    def __init__(
        self,
        dsn: str,
        table: str,
        *,
        write_mode: Literal["append", "upsert", "delete"] = "append",
        key_columns: str | Sequence[str] = (),
        update_columns: str | Sequence[str] = (),
        order_column: str | None = None,
        delete_marker: str | None = None,
        conflict_constraint: str | None = None,
        conflict_where: str | None = None,
        on_existing: Literal["check", "resume", "error", "overwrite"] = "check",
        on_rewind: Literal["error"] = "error",
        dead_letter_table: str | None = None,
        max_dead_letters: int = 1000,
        create_table: Literal["never", "if_missing"] = "never",
        schema_evolution: Literal["fail", "add_columns"] = "fail",
        metadata_schema: str = "outfall",
        create_staging: Literal["if_missing", "never"] = "if_missing",
        connect_timeout: timedelta | float | str = 10,
        statement_timeout: timedelta | float | str = 600,
        retry_deadline: timedelta | float | str = 300,
    ) -> None:
        given = {name: value for name, value in locals().items() if name in PostgresOptions.model_fields}
        self.options = make_options(PostgresOptions, given)
        self.table = TableName.parse(self.options.table)
        self.letters = dead_letters(self.options)
        self.context: WriterInitContext | None = None
        self.max_connections: int | None = None
        """The server's, once the driver has asked."""
        self.schema: pa.Schema | None = None
        """The columns of the rows, as far as the driver has been told."""

    def __repr__(self) -> str:
        return f"PostgresSink(table={str(self.table)!r}, write_mode={self.options.write_mode!r})"

    @property
    def database(self) -> Database:
        """How to reach the server."""
        return Database(self.options, self.max_connections, 0 if self.context is None else self.context.worker_count)

    def kind(self) -> str:
        return "postgres"

    def target(self) -> str:
        # Neither host nor port: a server may move, and the ledger proves that it is the same database.
        return f"postgres:{self.database.name().partition('/')[2]}/{self.table}"

    def guarantee(self) -> Guarantee:
        return Guarantee.EXACTLY_ONCE

    def requires(self) -> Sequence[str]:
        return ("a server that keeps what it has committed (synchronous_commit is not off)",)

    def bind(self, context: WriterInitContext) -> Self:
        bound = copy.copy(self)
        bound.context = context
        return bound

    def build(self, step_id: str, worker_index: int, worker_count: int) -> StagingPart:
        if self.context is None:
            raise ConfigurationError(
                "PostgresSink was not told who writes", do="run it through outfall, which calls bind() first"
            )
        return StagingPart(self.database, self._staging(step_id), self.letters, self.context)

    def check_schema(self, schema: pa.Schema) -> None:
        """Explain, column by column, why rows with these columns cannot be written."""
        self.schema = schema
        table = Table(self.options, self.table)
        with explained(self.database, f"looking at {self.table}"):
            self.database.run("looking at", lambda connection: table.check(connection, schema), starting=True)

    def check_target(self, context: TargetContext[Any]) -> Mapping[str, Any]:
        with explained(self.database, f"looking at {self.table}", context.step_id):
            self._target(context).check()
            self.max_connections = self.max_connections or self.database.run("looking at", max_connections)
        return {}

    def open_target(self, context: TargetContext[Any]) -> None:
        with explained(self.database, f"opening {self.table}", context.step_id):
            self._target(context).open(self.schema)

    def create_committer(self, context: CommitterInitContext) -> PostgresCommitter:
        ledger = Ledger(self.options.metadata_schema, context.incarnation, self.table)
        staging = self._staging(context.step_id)
        return PostgresCommitter(self.database, self.table, staging, ledger, self.letters, context)

    def committable_serializer(self) -> ModelSerializer[StagedRows]:
        return ModelSerializer(StagedRows)

    def sweep(self, context: SweepContext) -> int:
        staging = self._staging(context.step_id)
        ledger = Ledger(self.options.metadata_schema, context.incarnation, self.table)
        with explained(self.database, f"sweeping {staging.table}", context.step_id):
            if context.final:
                self.database.run("ending the ledger of", ledger.end)
            count = self.database.run(
                "sweeping staging of", lambda connection: staging.forget_older(connection, context)
            )
            self.database.run("clearing staging of", staging.clear)
            if self.letters is not None:
                self.database.run("clearing dead letters of", self.letters.clear)
        return count

    def ddl(self, step_id: str = "sink") -> str:
        """Return the SQL that makes what the sink needs beside the table, for `create_staging="never"`.

        Called by hand or by a DBA's script, with the table there. Running it again changes nothing but a staging table
        whose columns are no longer the table's.

        Raises:
            TargetError: the server cannot be asked for the table's columns.
        """
        with explained(self.database, f"looking at {self.table}"), self.database.connection() as connection:
            statements = Table(self.options, self.table).support_ddl(connection, self._staging(step_id).table)
            if self.letters is not None:
                statements += self.letters.missing_ddl(connection)
            return ";\n".join(text.as_string(connection) for text in statements) + ";\n"

    def _staging(self, step_id: str) -> Staging:
        schema = self.options.metadata_schema
        extra = [name for name, _ in own_columns(self.options)[1:]]
        return Staging(schema, staging_name(schema, self.table, step_id, extra))

    def _target(self, context: TargetContext[Any]) -> Target:
        return Target(self.database, self.table, self._staging(context.step_id), self.letters, context)
