"""`PostgresSink`: rows in a table, each in it once."""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta
from typing import Any, Literal, Never, Protocol, Self

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
from outfall.options import make_options, options_in_save_mode
from outfall.postgres.columns import schema_of
from outfall.postgres.connection import Connection, Database, max_connections
from outfall.postgres.dead_letters import dead_letters
from outfall.postgres.failures import explained
from outfall.postgres.ledger import Ledger
from outfall.postgres.names import TableName
from outfall.postgres.options import PostgresOptions
from outfall.postgres.privileges import check_rights
from outfall.postgres.table import Table
from outfall.postgres.target import Target
from outfall.sinks import Sink


class _OfStep(Protocol):
    """What any context says."""

    @property
    def step_id(self) -> str: ...

    @property
    def incarnation(self) -> str: ...


class PostgresSink(
    Sink[Any],
    SupportsWriterContext,
    SupportsTarget[Any],
    DeclaresGuarantee,
):
    """Writes rows into a PostgreSQL table: appends, upserts or deletes them, each in it once.

    Item type: rows (dicts or Arrow batches), whose columns are the table's by name.

    What must exist: the table, unless `create_table="if_missing"`; the right to make the schema `outfall`, or what
    `ddl()` prints; for upserts a unique index on the keys. No extension, no superuser; pgbouncer may stand between.

    Unit of parallelism: by default each Spark task copies its rows into a staging table, on a connection of its own,
    and the driver publishes them in one transaction, together with the epoch's number in a ledger: an epoch is in the
    table as a whole or not at all. With `delivery="offset"` each task publishes its own rows in one transaction of its
    own, under keys that tell a second copy of them from the first: `offset_columns` names columns of the row that the
    source numbered it by; `parts=N` routes rows by key to N parts, each of which counts its rows.

    Guarantee: exactly once, whatever is retried, killed or woken late, and whatever reply is lost; by offsets only for
    a source that brings the same rows again, as `requires()` says.

    `PostgresSink(...)` makes one of its subclasses, as `pathlib.Path` does.

    Args:
        dsn: the connection; also `env:NAME` or `file:PATH`. See `PostgresOptions`, as for all arguments.
        table: `name`, `schema.name` or quoted parts.

    Raises:
        ConfigurationError: naming every option that is wrong.
    """

    def __new__(cls, *args: Any, **options: Any) -> Self:
        if cls is not PostgresSink:
            return object.__new__(cls)
        from outfall.postgres.epoch_sink import EpochSink
        from outfall.postgres.part_sink import PartSink
        from outfall.postgres.source_sink import SourceSink

        chosen: Any = EpochSink
        if options.get("delivery") == "offset":
            chosen = SourceSink if options.get("offset_columns") else PartSink
        return object.__new__(chosen)  # type: ignore[no-any-return]

    def __init__(
        self,
        dsn: str,
        table: str,
        *,
        delivery: Literal["epoch", "offset"] = "epoch",
        offset_columns: str | Sequence[str] = (),
        parts: int | None = None,
        offset_keys: Literal["columns", "ledger"] = "columns",
        part_column: str = "partition_id",
        part_offset_column: str = "offset",
        payload_column: str | None = None,
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
        **unknown: Never,
    ) -> None:
        given = {name: value for name, value in locals().items() if name in PostgresOptions.model_fields} | unknown
        self.options = make_options(PostgresOptions, given)
        self.table = TableName.parse(self.options.table)
        self.letters = dead_letters(self.options)
        self.context: WriterInitContext | None = None
        self.max_connections: int | None = None
        """The server's, once the driver has asked."""
        self.schema: pa.Schema | None = None
        """The columns of the rows, as far as the driver has been told."""
        self.schema_name = self.table.schema
        """The table's schema; where it is not named, that in which the search path finds the table, once somebody has
        asked. Tasks learn it of the driver."""

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
        return f"postgres:{self.database.database_name()}/{self.table}"

    def place(self) -> str:
        found = TableName(self._found_in(starting=True), self.table.name)
        return f"{self.database.server()} {self.database.database_name()}/{found}"

    def in_save_mode(self, mode: SaveMode | None) -> Self:
        changed = copy.copy(self)
        changed.options = options_in_save_mode(self.options, mode)
        return changed

    def output_modes(self) -> Collection[str]:
        return OUTPUT_MODES if self.options.write_mode == "upsert" else ("append",)

    def guarantee(self) -> Guarantee:
        return Guarantee.EXACTLY_ONCE

    def requires(self) -> Sequence[str]:
        return ("a server that keeps what it has committed (synchronous_commit is not off)",)

    def bind(self, context: WriterInitContext) -> Self:
        bound = copy.copy(self)
        bound.context = context
        return bound

    def check_schema(self, schema: pa.Schema) -> None:
        """Explain, column by column, why rows with these columns cannot be written."""
        self.schema = schema
        with explained(self.database, f"looking at {self.table}"):
            self.database.run("looking at", lambda connection: self._check_schema(connection, schema), starting=True)

    def check_target(self, context: TargetContext[Any]) -> Mapping[str, Any]:
        with explained(self.database, f"looking at {self.table}", context.step_id):
            self._target(context).check()
            self.max_connections = self.max_connections or self.database.run("looking at", max_connections)
        return {}

    def check_connection(self) -> Sequence[str]:
        with explained(self.database, f"asking for the rights on {self.table}"):
            # Whoever looks for what is wrong is told at once.
            return self.database.run_once(lambda connection: check_rights(connection, self))

    def open_target(self, context: TargetContext[Any]) -> None:
        with explained(self.database, f"opening {self.table}", context.step_id):
            self._target(context).open(self.schema)

    def ddl(self, step_id: str = "sink") -> str:
        """Return the SQL that makes what the sink needs beside the table, for `create_staging="never"`.

        Called by hand or by a DBA's script, with the table there. Running it again changes nothing but a staging table
        whose columns are no longer the table's.

        Raises:
            TargetError: the server cannot be asked for the table's columns.
        """
        with explained(self.database, f"looking at {self.table}"), self.database.connection() as connection:
            statements = self._support_ddl(connection, step_id)
            return ";\n".join(text.as_string(connection) for text in statements) + ";\n"

    def _found_in(self, *, starting: bool = False) -> str | None:
        """The schema where the server finds the table. `starting`: as for `run`."""
        if self.table.schema is not None:
            return self.table.schema
        if self.schema_name is None:
            with explained(self.database, f"looking at {self.table}"):
                self.schema_name = self.database.run(
                    "looking at", lambda connection: schema_of(connection, self.table), starting=starting
                )
        return self.schema_name

    def _ledger(self, context: _OfStep, *, starting: bool = False) -> Ledger:
        """The ledger's row of a step, whatever the table is called."""
        names = self.table.ledger_names(self._found_in(starting=starting), context.step_id)
        return Ledger(self.options.metadata_schema, context.incarnation, names)

    @property
    def _table_options(self) -> PostgresOptions:
        """The options as those need them who look at the table or make it."""
        return self.options

    def _writer(self) -> WriterInitContext:
        if self.context is None:
            raise ConfigurationError(
                "PostgresSink was not told who writes", do="run it through outfall, which calls bind() first"
            )
        return self.context

    def _target(self, context: TargetContext[Any]) -> Target:
        """The table in one epoch."""
        raise NotImplementedError

    def _check_schema(self, connection: Connection, schema: pa.Schema) -> None:
        Table(self._table_options, self.table).check(connection, schema)

    def _support_ddl(self, connection: Connection, step_id: str) -> list[sql.Composed]:
        """What is made beside the table."""
        raise NotImplementedError
