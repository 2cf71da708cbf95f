"""The base of the deliveries: checks and opens the table before an epoch; and the delivery by epochs."""

from __future__ import annotations

import hashlib
import re
from abc import abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar

import pyarrow as pa

from outfall.capabilities import (
    OUTPUT_MODES,
    CleanUpContext,
    CommittableMessage,
    CommitterInitContext,
    DeclaresGuarantee,
    RowIdentity,
    SaveMode,
    SupportsCommitter,
    SupportsPreCommitTopology,
    SupportsTarget,
    SupportsWriterContext,
    TargetContext,
    WriterInitContext,
    changed,
)
from outfall.delegating_sink import DelegatingSink
from outfall.errors import ConfigurationError
from outfall.first_contact import first_contact, one_attempt
from outfall.options import options_in_save_mode
from outfall.possession.possession import check as check_record
from outfall.possession.possession import check_same_name, find_moved
from outfall.serde import ModelSerializer
from outfall.sinks import DynamicSink, Sink
from outfall.sql.database import SqlDatabase
from outfall.sql.dead_letters import DeadLetterTable, dead_letters
from outfall.sql.dialect import Dialect, StagedRows
from outfall.sql.ledger import MANY, StepLedger
from outfall.sql.names import Found, SqlName, is_own
from outfall.sql.options import SqlOptions
from outfall.sql.publish import EpochCommitter
from outfall.sql.staging import Staging, new_stage
from outfall.sql.statements import ledger_ddl
from outfall.sql.table import Table
from outfall.sql.tables import StepTables
from outfall.sql.target import SqlTarget, open_tables
from outfall.sql.tombstones import Tombstones
from outfall.sql.writer import StagingWriter
from outfall.tables.key_options import keeps_newer_rows, key_identity
from outfall.target_record import TargetRecord

T = TypeVar("T", bound=SqlOptions)

_LOG = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
"""The name of a table that can be the name of a log."""


class StepContext(Protocol):
    """The common attributes of all contexts."""

    @property
    def step_id(self) -> str: ...

    @property
    def incarnation(self) -> str: ...


@dataclass(frozen=True)
class Owner:
    """The step and the incarnation of an attempt."""

    step_id: str
    incarnation: str


class SqlDelivery(Sink[Any], SupportsWriterContext, SupportsTarget[Any], DeclaresGuarantee):
    """A delivery mode of the sink of a database.

    Before an epoch, the driver runs two transactions: `check_target` checks the columns, the table and the ledger, and
    `open_target` records the driver in the ledger. In the first epoch, `check_schema` runs another one.
    """

    options: SqlOptions
    table: SqlName
    takes_many: ClassVar[bool] = False
    """Whether rows name their tables."""
    _target_class: ClassVar[type[SqlTarget]] = SqlTarget

    def __init__(self, options: SqlOptions) -> None:
        self.options = options
        self.context: WriterInitContext | None = None
        dialect = self.dialect()
        if options.table is None and not self.takes_many:
            raise ConfigurationError(f"{dialect.sink} cannot take the table from a column", do="set table")
        self.table = dialect.parse(options.table or MANY)
        for entry in options.allowed_tables:
            dialect.parse(entry)
        dead_letters(dialect)
        self._schema: pa.Schema | None = None
        """The columns of the rows, once the driver knows them."""
        self._written: pa.Schema | None = None
        """The columns that are written for such rows."""
        self._found = self._known()
        """What the server has found; `None` before it was asked. The driver passes it to the tasks."""

    @property
    def described(self) -> str:
        """The table, or what names the tables, for texts."""
        return str(self.table)

    @abstractmethod
    def dialect(self, options: Any = None) -> Dialect:
        """Return the dialect of the database, with the sink's options or with others."""

    @abstractmethod
    def find(self, session: Any) -> Found:
        """Return schema and name of the table as the server's catalogue has them, or would have them."""

    @property
    def dead_letters(self) -> DeadLetterTable | None:
        """The dead-letter table; `None` if rejected rows fail the query."""
        return dead_letters(self.dialect())

    @property
    def database(self) -> SqlDatabase:
        """The database of the table."""
        return self.dialect().database

    def target(self) -> str:
        # Without host and port, because a server may move. The ledger proves that it is the same database.
        return f"{self.kind().partition('/')[0]}:{self.database.database_name()}/{self.table}"

    def row_identity(self) -> RowIdentity | None:
        options = self.options
        if options.keys_are_primary and not options.table_keys:
            return RowIdentity(options.write_mode, (), options.ordered_by, options.delete_marker)
        return key_identity(options, options.ordered_by)

    def find_moved(self, context: TargetContext[Any], recorded: str) -> TargetRecord | None:
        check_same_name(str(self.table), recorded.partition("/")[2], self.dialect().sink)

        def find(session: Any) -> TargetRecord:
            self._found = self._found or self.find(session)
            return find_moved(self._target(session, context), context)

        with first_contact(context.step_id):
            return self.database.run("checking", find, step=context.step_id, starting=True)

    def recovery_location(self) -> str | None:
        found = self.database.log_url()
        if found is None:
            return None
        # Queries whose steps have the same id need a log each, and write to a table each.
        log = str(self.table)
        if not _LOG.fullmatch(log):
            log = f"table_{hashlib.sha256(log.encode()).hexdigest()[:12]}"
        return str(replace(found, parameters={**found.parameters, "log": log}))

    def row_schema(self) -> pa.Schema | None:
        dialect, options = self.dialect(), self.options
        columns = self.database.run("checking", lambda session: dialect.columns(session, self.table), starting=True)
        fields = [pa.field(column.name, dialect.arrow_type(column)) for column in columns if column.writable]
        if not fields:
            return None
        kinds = {options.delete_marker: pa.bool_(), options.operation_column: pa.string()}
        return pa.schema([*fields, *(pa.field(name, kind) for name, kind in kinds.items() if name is not None)])

    def place(self) -> str:
        schema, name = self.found(starting=True)
        return f"{self.database.server()} {self.database.database_name()}/{schema}.{name}"

    def _retained(self) -> Sequence[str]:
        """Return what `requires` says of changes: that older ones do not come when a delete is forgotten."""
        kept = self.options.tombstone_retention
        if self.options.write_mode != "changes" or not kept:
            return ()
        return (f"no change that arrives later than tombstone_retention ({kept}) after a newer delete of its key",)

    def in_save_mode(self, mode: SaveMode | None) -> Self:
        return changed(self, options=options_in_save_mode(self.options, mode))

    def replaces_rows(self) -> bool:
        return self.options.write_mode != "append"

    def keeps_newer_rows(self) -> bool:
        return self.options.write_mode == "changes" or keeps_newer_rows(self.options)

    def output_modes(self) -> Collection[str]:
        return OUTPUT_MODES if self.options.write_mode == "upsert" else ("append",)

    def bind(self, context: WriterInitContext) -> Self:
        return changed(self, context=context)

    def check_schema(self, schema: pa.Schema) -> None:
        """Reject a schema that does not fit the table, with a reason for each column.

        The server is queried only for a new schema, and waited for only by `check_target`, which knows whether the step
        has ever reached it. It checks the schema again in every epoch.
        """
        if schema != self._schema:
            with one_attempt():
                self.database.run("checking", partial(self._check_columns, schema=schema), starting=True)
            self._schema = schema

    def check_target(self, context: TargetContext[Any]) -> Mapping[str, Any]:
        def check(session: Any) -> Mapping[str, Any]:
            if self._found is None:
                self._found = self.find(session)
            self._refuse_own_tables(session)
            if self._schema is not None:
                self._check_columns(session, self._schema)
            self._read_limits(session)
            target = self._target(session, context)
            target.check_table()
            check_record(target, context)
            states = target.starts(context)
            target.check_support()
            return states

        known = self._found is not None and context.incarnation and not context.first_contact
        return self.database.run(
            "checking",
            check,
            step=context.step_id,
            starting=context.first_contact,
            foreseen=[self._tables(context).ledger.reading("")] if known else [],
            looks=True,
        )

    def open_target(self, context: TargetContext[Any]) -> None:
        open_tables(self._tables(context, self._table_options), partial(self._target, context=context), context)

    def ddl(self, step_id: str) -> str:
        """Return the statements that create the sink's own tables."""

        def missing(session: Any) -> list[str]:
            return self._support_ddl(session, step_id)

        with self.database.translated_errors(f"checking {self.table}"):
            # Statements have their % doubled.
            return ";\n".join(text % () for text in self.database.run_once(missing)) + ";\n"

    def found(self, *, starting: bool = False) -> Found:
        """Return what the server finds. `starting`: see `SqlDatabase.run_raw`."""
        if self._found is None:
            self._found = self.database.run("checking", self.find, starting=starting)
        return self._found

    def _known(self) -> Found | None:
        """Return what the server would find, if it need not be asked."""
        return None

    @property
    def _resolved(self) -> SqlName:
        """The table in the schema in which it was found, if that is known."""
        return self.table.resolved(self._found)

    def _tables(self, context: StepContext, options: Any = None, *, starting: bool = False) -> StepTables[Any]:
        """Return the tables of a step, with the sink's options or with others."""
        step, found, dialect = context.step_id, self.found(starting=starting), self.dialect(options)
        ledger, staging = self._ledger(dialect, context, found), self._staging(step, found)
        tombstones = self._tombstones_of(found)
        return StepTables(step, dialect, self._resolved, ledger, staging, self.dead_letters, tombstones)

    def _ledger(self, dialect: Dialect, context: StepContext, found: Found) -> StepLedger:
        return dialect.ledger(context.incarnation, context.step_id, found[0])

    def _staging(self, step_id: str, found: Found) -> Staging:
        return self.dialect().staging(step_id, self.table.resolved(found), found[0])

    def _tombstones_of(self, found: Found) -> Tombstones | None:
        """Return the sequences of deleted keys of the table; `None` unless the rows are changes."""
        if self.options.write_mode != "changes":
            return None
        return self.dialect().tombstones(self.table.resolved(found))

    @property
    def _table_options(self) -> Any:
        """The options for checking and creating the table."""
        return self.options

    def _writer(self) -> WriterInitContext:
        if self.context is None:
            raise ConfigurationError(
                f"{self.dialect().sink} has no writer context",
                do="run the sink through outfall, which calls bind() first",
            )
        return self.context

    def _read_limits(self, session: Any) -> None:
        """Read what the sink's messages say about the server."""

    def _check_columns(self, session: Any, schema: pa.Schema) -> None:
        """Reject rows whose columns do not fit the table, and a table that is not for rows."""
        self._refuse_own_tables(session)
        self._written = self._written_schema(session, schema)
        for table in self._named(session):
            table.check(session, self._written)

    def _check_table(self, session: Any) -> None:
        """Reject a table that fits no rows."""
        self._refuse_own_tables(session)
        for table in self._named(session):
            table.check_without_rows(session)

    def _named(self, session: Any) -> Sequence[Table]:
        """Return the tables that options name, and that are therefore checked before there are rows."""
        return [Table(self.dialect(self._table_options), self._resolved)]

    def _refuse_own_tables(self, session: Any) -> None:
        """Reject an option that names one of the sink's own tables."""
        found = self._found or self.find(session)
        letters = self.dead_letters
        tables = {"table": self.table.resolved(found)}
        tables |= (
            {} if letters is None else {"dead_letter_table": letters.table.resolved((found[0], letters.table.name))}
        )
        for option, table in tables.items():
            if is_own(table, self.options.metadata_schema):
                raise ConfigurationError(
                    f"{option} is {table}, which contains Outfall's own records", do=f"correct {option}"
                )

    def _written_schema(self, session: Any, schema: pa.Schema) -> pa.Schema:
        """Return the columns that are written for rows with a schema."""
        return schema

    def _target(self, session: Any, context: TargetContext[Any]) -> SqlTarget:
        """Return the table in one transaction."""
        return self._target_class(self._tables(context, self._table_options), self._written, session)

    def _support_ddl(self, session: Any, step_id: str) -> list[str]:
        """Return the statements that create the sink's own tables."""
        own = self._own_tables(session, step_id, self.find(session))
        missing = [statement for table in own if table is not None for statement in table.missing_ddl(session)]
        return [*ledger_ddl(self.dialect().words, self.options.metadata_schema), *dict.fromkeys(missing)]

    def _own_tables(self, session: Any, step_id: str, found: Found) -> Sequence[Any]:
        """Return the tables for staging, for dead letters and for tombstones of those that options name, or `None`."""
        return [self._staging(step_id, found), self.dead_letters, self._tombstones_of(found)]


class StagedDelivery(SqlDelivery, DynamicSink[Any], SupportsCommitter[StagedRows]):
    """The base of deliveries whose tasks load rows into a staging table, with its clean-up."""

    def applies_key_at_commit(self) -> bool:
        return True

    def committable_serializer(self) -> ModelSerializer[StagedRows]:
        return ModelSerializer(StagedRows)

    def clean_up(self, context: CleanUpContext) -> int:
        tables = self._tables(context)
        if context.final:
            tables.run("ending the ledger of", tables.ledger.end)

        def clean(session: Any) -> int:
            count = tables.staging.clean_up(session, context)
            if tables.dead_letters is not None:
                tables.dead_letters.clear(session)
            return count

        return tables.run("cleaning up staging of", clean, foreseen=[tables.staging.reading_older(context)])

    def find_leftovers(self, context: CleanUpContext) -> Sequence[str]:
        tables = self._tables(context, starting=True)
        return tables.run("reading staging of", lambda session: tables.staging.older(session, context), starting=True)


class StagedEpochs(StagedDelivery, SupportsPreCommitTopology[StagedRows, StagedRows]):
    """Writes each epoch in one transaction, so readers see either all or none of it."""

    def build(self, step_id: str, worker_index: int, worker_count: int) -> StagingWriter:
        return StagingWriter(self._tables(self._writer()), self._writer())

    def create_committer(self, context: CommitterInitContext) -> EpochCommitter:
        return EpochCommitter(self._tables(context), context)

    def add_pre_commit_topology(
        self, results: Sequence[CommittableMessage[StagedRows]]
    ) -> Sequence[CommittableMessage[StagedRows]]:
        self._check_dead_letters(results)
        if results or self.options.existing.others != "delete":
            return results
        # A first epoch without rows, for which Spark may run no task, empties the table too.
        return [CommittableMessage(StagedRows(stage=new_stage(), rows=0, columns=()), epoch=0, worker_index=0)]

    def write_result_serializer(self) -> ModelSerializer[StagedRows]:
        return self.committable_serializer()

    def _check_dead_letters(self, results: Sequence[CommittableMessage[StagedRows]]) -> None:
        """Check the limit of dead letters before the epoch is recorded, so a repaired table can accept the rows."""
        dead_letters = self.dead_letters
        waiting = {message.value.stage: message.value.letters for message in results}
        if dead_letters is None or sum(waiting.values()) <= dead_letters.most:
            return
        self.database.run(
            "counting the dead letters for",
            lambda session: dead_letters.check_bound(session, waiting, epoch=results[0].epoch, step=None),
        )


class SqlSink(DelegatingSink, Generic[T]):
    """The base of the sink of a database: one of its deliveries, by the options."""

    delegate: SqlDelivery

    def __repr__(self) -> str:
        return f"{type(self).__name__}(table={self.delegate.described!r}, write_mode={self.options.write_mode!r})"

    @property
    def options(self) -> T:
        """The validated options."""
        return self.delegate.options  # type: ignore[return-value]

    def ddl(self, step_id: str = "sink") -> str:
        """Return the SQL that creates the sink's own tables, for `create_staging="never"`.

        Call it manually or in a DBA's script, after the table was created. Running the SQL again only changes a staging
        table whose columns no longer match the table.

        Raises:
            TargetError: the table's columns cannot be read.
        """
        return self.delegate.ddl(step_id)
