"""The deliveries into MySQL or MariaDB: by epochs and by parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from outfall.capabilities import Guarantee, TargetContext
from outfall.first_contact import first_contact
from outfall.mysql.columns import check_rights, find_table, read_columns
from outfall.mysql.database import MySQLDatabase, MySQLSession
from outfall.mysql.dialect import MySQLDialect
from outfall.mysql.names import MySQLName
from outfall.mysql.options import MySQLOptions
from outfall.possession.possession import check_same_name, find_moved
from outfall.sql.delivery import SqlDelivery, StagedEpochs
from outfall.sql.dialect import compose
from outfall.sql.ledger import StepLedger
from outfall.sql.many.delivery import ManyEpochs
from outfall.sql.names import Found, SqlName
from outfall.sql.parts.delivery import PartDelivery
from outfall.sql.parts.ledger import PartLedger
from outfall.sql.tables import StepTables
from outfall.sql.target import SqlTarget
from outfall.sql.tombstones import tombstones_name
from outfall.target_record import TargetRecord


class MySQLDelivery(SqlDelivery):
    """A delivery mode of `MySQLSink`."""

    options: MySQLOptions

    def dialect(self, options: Any = None) -> MySQLDialect:
        return MySQLDialect(options or self.options)

    @property
    def database(self) -> MySQLDatabase:
        return self.dialect().database

    def find(self, session: MySQLSession) -> Found:
        return find_table(session, self.table)

    def kind(self) -> str:
        return "mysql"

    def guarantee(self) -> Guarantee:
        return Guarantee.EXACTLY_ONCE

    def find_moved(self, context: TargetContext[Any], recorded: str) -> TargetRecord | None:
        def find(session: MySQLSession) -> TargetRecord:
            return find_moved(SqlTarget(self._known_as(context, recorded), None, session), context)

        with first_contact(context.step_id):
            return self.database.run("checking", find, step=context.step_id, starting=True)

    def move_target(self, context: TargetContext[Any], recorded: str) -> None:
        """Rename the ledger's row and the table of deleted keys, whose names contain that of the database."""
        tables = self._known_as(context, recorded)

        def rename(session: MySQLSession) -> None:
            if self._tables(context).ledger.read(session, lock=True) is None:
                if self.options.parts is not None:
                    PartLedger(tables.dialect, tables.ledger).rename(session)
                tables.ledger.rename(session)
            if tables.tombstones is not None:
                former = tombstones_name(tables.dialect, self.table, (self._former(recorded), self.found()[1]))
                if read_columns(session, former) and not read_columns(session, tables.tombstones.table):
                    session.execute(compose("RENAME TABLE {} TO {}", former.sql, tables.tombstones.table.sql))

        tables.run("moving", rename)

    def _known_as(self, context: TargetContext[Any], recorded: str) -> StepTables[Any]:
        """Return the tables of a step, whose row in the ledger may still have the name of another database."""
        dialect, step = self.dialect(), context.step_id
        named = self.table.found_in(self.database.database_name())
        former = f"{self._former(recorded)}.{named.name}"
        own = MySQLName(self.options.metadata_schema, "ledger")
        ledger = StepLedger(dialect, own, f"{named.schema}.{named.name}", context.incarnation, step, former)
        return replace(self._tables(context, starting=True), ledger=ledger)

    def _former(self, recorded: str) -> str:
        """Return the database of a recorded table. Raises `ConfigurationError` if it is another table."""
        database, _, table = recorded.removeprefix("mysql:").partition("/")
        if table == str(self.table):
            return self.table.schema or database
        schema, _, name = table.rpartition(".")
        check_same_name(self.table.name, name, "MySQLSink")
        return schema or database

    def requires(self) -> Sequence[str]:
        return ("a server that keeps committed transactions (innodb_flush_log_at_trx_commit is 1)", *self._retained())

    def check_connection(self) -> Sequence[str]:
        database, schema = self.database, self.options.metadata_schema

        def check(session: MySQLSession) -> Sequence[str]:
            version, user, flush, loads = session.execute(
                "SELECT VERSION(), CURRENT_USER(), @@innodb_flush_log_at_trx_commit, @@local_infile"
            ).fetchone()
            tasks_own = "attempts" if self.options.by_epochs else "parts"
            own: list[SqlName] = [MySQLName(schema, name) for name in ("ledger", tasks_own)]
            own += [MySQLName(schema, "refused")] if self.dead_letters else []
            self._found = self._found or self.find(session)
            tombstones = self._tombstones_of(self._found)
            own += [] if tombstones is None else [tombstones.table]
            self._check_table(session)
            names = [table.name for table in self._named(session)]
            return [
                f"{database.name()} responds: {version}, user {user}",
                *(text for name in names for text in check_rights(self.options, session, name, own)),
                "tasks load rows with LOAD DATA LOCAL" if loads else "local_infile is OFF: tasks load rows with INSERT",
                f"innodb_flush_log_at_trx_commit is {flush}"
                + ("" if int(flush) in (1, 3) else ": a crash of the server or its host loses acknowledged epochs"),
            ]

        with database.translated_errors(f"checking the privileges on {self.table}"):
            # Without retries, to report problems at once.
            return database.run_once(check, looks=True)


class MySQLEpochDelivery(MySQLDelivery, StagedEpochs):
    """Writes each epoch in one transaction, so readers see either all or none of it."""


class MySQLManyDelivery(ManyEpochs, MySQLEpochDelivery):
    """Writes each epoch in one transaction into the tables that its rows name."""


class MySQLPartDelivery(PartDelivery, MySQLDelivery):
    """Writes a part's rows of an epoch exactly once, see `PartDelivery`."""

    options: MySQLOptions
