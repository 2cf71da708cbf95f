"""The base of PostgreSQL's deliveries, the delivery by epochs, and the target that tasks publish into."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from outfall.capabilities import CommitterInitContext, Guarantee, TargetContext
from outfall.postgres.catalogue.columns import schema_of
from outfall.postgres.catalogue.privileges import check_rights
from outfall.postgres.catalogue.relation import read_relation
from outfall.postgres.catalogue.table import unlogged
from outfall.postgres.connection.database import PostgresConnection, PostgresDatabase, max_connections
from outfall.postgres.dialect import PostgresDialect
from outfall.postgres.names import TableName
from outfall.postgres.options import PostgresOptions
from outfall.postgres.staging.moving import PostgresCommitter
from outfall.sql.delivery import SqlDelivery, StagedEpochs
from outfall.sql.many.delivery import ManyEpochs, ManyTarget
from outfall.sql.names import Found
from outfall.sql.parts.delivery import PartDelivery
from outfall.sql.parts.target import PartTarget
from outfall.sql.target import SqlTarget


class PostgresTarget(SqlTarget):
    """One step's table in PostgreSQL, in one transaction."""

    def check_table(self) -> None:
        super().check_table()
        # A crash of the server must not empty the ledger or the dead-letter table.
        options = self._tables.options
        names: list[Any] = [TableName(options.metadata_schema, name) for name in ("ledger", "parts")]
        if self._tables.dead_letters is not None and not self._tables.dialect.options.allow_unlogged:
            names.append(self._tables.dead_letters.table)
        for name in names:
            relation = read_relation(self._session, name)
            if relation is not None and relation.unlogged:
                raise unlogged(name, relation)


class PostgresDelivery(SqlDelivery):
    """A delivery mode of `PostgresSink`."""

    options: PostgresOptions
    table: TableName
    _target_class = PostgresTarget
    _max_connections: int | None = None
    """The server's `max_connections`, once the driver has read it."""

    def dialect(self, options: PostgresOptions | None = None) -> PostgresDialect:
        tasks = 0 if self.context is None else self.context.worker_count
        used = options or self.options
        return PostgresDialect(used, PostgresDatabase(used, self._max_connections, tasks))

    @property
    def database(self) -> PostgresDatabase:
        return self.dialect().database

    def find(self, session: PostgresConnection) -> Found:
        return schema_of(session, self.table), self.table.name

    def _known(self) -> Found | None:
        return None if self.table.schema is None else (self.table.schema, self.table.name)

    def kind(self) -> str:
        return "postgres"

    def guarantee(self) -> Guarantee:
        return Guarantee.AT_LEAST_ONCE if self.options.allow_unlogged else Guarantee.EXACTLY_ONCE

    def requires(self) -> Sequence[str]:
        kept = "a server that keeps committed transactions (synchronous_commit is not off)"
        if self.options.allow_unlogged:
            kept_tables = "a server that does not crash, which would empty unlogged tables and lose their rows"
            return (kept, kept_tables, *self._retained())
        return (kept, *self._retained())

    def check_connection(self) -> Sequence[str]:
        database = self.database

        def check(session: PostgresConnection) -> Sequence[str]:
            named = self.options.dead_letter_table
            dead_letters = None if named is None else TableName.parse(named)
            self._found = self._found or self.find(session)
            tombstones = self._tombstones_of(self._found)
            own: Any = None if tombstones is None else tombstones.table
            names: Sequence[Any] = [table.name for table in self._named(session)]
            found = [text for name in names for text in check_rights(session, database, name, dead_letters, own)]
            self._check_table(session)
            relations = {name: read_relation(session, name) for name in names}
            found += [relation.sentence(name) for name, relation in relations.items() if relation is not None]
            return list(dict.fromkeys(found))

        with database.translated_errors(f"checking the privileges on {self.table}"):
            # Without retries, to report problems at once.
            return database.run_once(check, looks=True)

    def _read_limits(self, session: PostgresConnection) -> None:
        if self._max_connections is None:
            self._max_connections = max_connections(session)


class EpochDelivery(PostgresDelivery, StagedEpochs):
    """Writes each epoch in one transaction, so readers see either all or none of it."""

    def create_committer(self, context: CommitterInitContext) -> PostgresCommitter:
        return PostgresCommitter(self._tables(context), context)


class PostgresManyTarget(ManyTarget, PostgresTarget):
    """The tables that rows of a step name in PostgreSQL, in one transaction."""


class ManyDelivery(ManyEpochs, EpochDelivery):
    """Writes each epoch in one transaction into the tables that its rows name."""

    _target_class = PostgresManyTarget


class PostgresPartDelivery(PartDelivery, PostgresDelivery):
    """Writes a part's rows of an epoch exactly once, see `PartDelivery`."""

    options: PostgresOptions

    def _target(self, session: Any, context: TargetContext[Any]) -> SqlTarget:
        return PostgresPartTarget(self._tables(context, self._table_options), self._written, session, self.list_parts())


class PostgresPartTarget(PartTarget, PostgresTarget):
    """One step's table and parts in PostgreSQL, in one transaction."""
