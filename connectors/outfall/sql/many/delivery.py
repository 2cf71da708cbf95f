"""The base of the deliveries by epochs whose rows name their tables, and the driver's first contact with these.

That is before the first epoch with rows for a table is recorded. It is repeated harmlessly: nothing is written but
missing tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from outfall.capabilities import CommittableMessage, TargetContext
from outfall.errors import TargetError
from outfall.sql.database import ExpectedTables
from outfall.sql.delivery import Owner, StagedEpochs, StepContext
from outfall.sql.dialect import Dialect, StagedRows
from outfall.sql.ledger import MANY, StepLedger
from outfall.sql.many.listed import ListedTables
from outfall.sql.many.tables import ManyTables, recorded_once
from outfall.sql.many.writer import RoutingWriter
from outfall.sql.names import Found, staging_prefix
from outfall.sql.options import SqlOptions
from outfall.sql.staging import StagingOfMany, layout_of
from outfall.sql.table import Table
from outfall.sql.tables import EpochTable, StepTables
from outfall.sql.target import SqlTarget


class ManyTarget(SqlTarget):
    """The tables that rows of a step name. Tasks check them, and create what is missing."""

    stages = False

    def check_existing(self, context: TargetContext[Any]) -> None:
        """Do nothing: each table is checked when the first epoch has rows for it."""

    def rows_need(self) -> list[Any]:
        return []

    def _check_relation(self) -> None:
        """Do nothing."""

    def _exists(self) -> bool:
        return True


class ManyEpochs(StagedEpochs):
    """Writes each epoch in one transaction into the tables that its rows name.

    Readers see it in all of them or in none.
    """

    takes_many = True
    _target_class = ManyTarget

    def __init__(self, options: SqlOptions) -> None:
        super().__init__(options)
        self._met = MetTables()
        """The tables that rows have named, and that were checked."""

    @property
    def described(self) -> str:
        return self.options.described

    def build(self, step_id: str, worker_index: int, worker_count: int) -> RoutingWriter:
        return RoutingWriter(self._tables(self._writer()), self._writer())

    def recovery_location(self) -> str | None:
        # Which tables rows may name changes, and must not change where the log is.
        return None

    def row_schema(self) -> pa.Schema | None:
        return None

    def add_pre_commit_topology(
        self, results: Sequence[CommittableMessage[StagedRows]]
    ) -> Sequence[CommittableMessage[StagedRows]]:
        """Settle what is to be known of tables before the epoch is recorded; return results with each table once."""
        self._check_dead_letters(results)
        attempts = recorded_once([message.value for message in results])
        owner = next((attempt.owner for attempt in attempts if attempt.owner is not None), None)
        if owner is not None:
            self._met.meet(self._tables(Owner(*owner)), attempts)
        return [replace(message, value=value) for message, value in zip(results, attempts, strict=True)]

    def _tables(self, context: StepContext, options: Any = None, *, starting: bool = False) -> ManyTables[Any]:
        return ManyTables(**vars(super()._tables(context, options, starting=starting)))

    def _ledger(self, dialect: Dialect, context: StepContext, found: Found) -> StepLedger:
        own = self.table.sibling(self.options.metadata_schema, "ledger")
        return StepLedger(dialect, own, MANY, context.incarnation, context.step_id)

    def _staging(self, step_id: str, found: Found) -> StagingOfMany:
        options = self.options
        begins = staging_prefix(options.metadata_schema, self.table, step_id, options.own_columns()[1:])
        return StagingOfMany(self.dialect(), begins, self.table)

    def _tombstones_of(self, found: Found) -> None:
        return None

    def _check_columns(self, session: Any, schema: pa.Schema) -> None:
        Table(self.dialect(), self.table).check_routing(schema)
        super()._check_columns(session, schema)

    def _named(self, session: Any) -> Sequence[Table]:
        """Return the existing tables of which `allowed_tables` has the whole name."""
        dialect, options = self.dialect(), self.options
        entries = [entry for entry in options.allowed_tables if "*" not in entry]
        names = [dialect.parse(entry) for entry in entries]
        found = dialect.find_all(session, names) if names else []
        names = [name.resolved(each) for name, each in zip(names, found, strict=True)]
        dialect.read_ahead(session, names)
        of, tables = ListedTables(dialect, (self._found or self.find(session))[0]), []
        for entry, name, at in zip(entries, names, found, strict=True):
            if dialect.columns(session, name):
                own = options.of_table(entry, of.keys(session, name, at), of.columns(name, at))
                tables.append(Table(dialect.with_options(own), name))
        return tables

    def _own_tables(self, session: Any, step_id: str, found: Found) -> Sequence[Any]:
        self._found = self._found or found
        step, own = self._tables(Owner(step_id, "")), list[Any]()
        for table in self._named(session):
            layout, at = layout_of(table.columns(session)), table.name.found or (None, table.name.name)
            tables = step.of_table(at, table.spelled, layout=layout, keys=table.keys)
            own += [tables.staging, tables.tombstones]
        return [self.dead_letters, *own]


class MetTables:
    """The tables that rows of a query have named, and that its driver has checked."""

    def __init__(self) -> None:
        self._found: set[Found] = set()
        self._most = 0
        """The most tables of an epoch so far."""

    def meet(self, tables: ManyTables[Any], attempts: Sequence[StagedRows]) -> None:
        """Check the tables of an epoch that are new, and create what they need.

        Raises `TargetError` if the sink cannot find the rows of a key in one, if one loses rows, if it holds rows that
        `on_existing` does not allow or may not delete, or if the server cannot lock so many in one transaction.
        """
        every = [(table, table.only.found) for table in tables.of_epoch(attempts) if table.only is not None]
        new = [table for table, found in every if found not in self._found]
        more = [table for table, _ in every] if len(every) > self._most else []
        if not new and not more:
            return

        def check(session: Any) -> list[EpochTable]:
            return _check(session, tables, new, more)

        if lacking := tables.run("checking", check, looks=True):
            for table in lacking:
                _make_tombstones(table.tables)
            tables.run("checking", check, looks=True)
        self._found.update(found for _, found in every)
        self._most = max(self._most, len(every))


def _check(
    session: Any, tables: ManyTables[Any], new: Sequence[EpochTable], more: Sequence[EpochTable]
) -> list[EpochTable]:
    """Check new tables, and whether more than before can be locked together.

    Returns those whose tombstones must be created before all is checked.
    """
    dialect = tables.dialect
    tombstones = [table.tables.tombstones.table for table in new if table.tables.tombstones is not None]
    dialect.read_ahead(session, [*(table.tables.target for table in more or new), *tombstones])
    keys = [table.tables.options.key_columns for table in new]
    dialect.read_checked(session, [table.tables.target for table in new], keys)
    for table in new:
        table.tables.dialect.check_relation(session, table.tables.target)
        table.tables.dialect.check_keys(session, table.tables.target, table.attempts[0].columns)
    if lacking := [table for table in new if _lacks_tombstones(session, table)]:
        return lacking
    if more:
        dialect.check_together(session, [table.move() for table in more])
    named = {table.in_ledger: table.tables for table in new}
    known = tables.ledger.known_tables(session, list(named))
    unknown = [own for name, own in named.items() if name not in known]
    others = bool(unknown) and tables.ledger.others_have_published(session)
    for own in unknown:
        SqlTarget(own, None, session).check_rows(own.step_id, others=others)
    _check_overwrite(session, tables, unknown)
    return []


def _check_overwrite(session: Any, tables: ManyTables[Any], unknown: Sequence[StepTables[Any]]) -> None:
    """Reject new tables of which `on_existing="overwrite"` may delete rows of earlier epochs together with theirs."""
    if not unknown or tables.options.existing.others != "delete":
        return
    row = tables.ledger.read(session)
    if row is None or row.epoch is None:
        return  # All rows are deleted before the first ones are written.
    for own in unknown:
        held = Table(own.dialect, own.target).holds_rows(session)
        why = own.dialect.deletes_elsewhere(session, own.target) if held else None
        if why is not None:
            raise TargetError(
                f"{own.target} holds rows, and to delete them may delete rows of other tables, written by this query",
                step=own.step_id,
                why=f"on_existing is 'overwrite', an earlier epoch had no row for the table, and {why}",
                do='set on_existing="resume", which keeps what this table and those that rows name later hold',
            )


def _lacks_tombstones(session: Any, table: EpochTable) -> bool:
    tombstones = table.tables.tombstones
    return tombstones is not None and bool(tombstones.missing_ddl(session))


def _make_tombstones(tables: StepTables[Any]) -> None:
    tombstones = tables.tombstones
    if tombstones is None:
        return
    if tables.options.create_staging == "never":
        raise TargetError(
            f"{tombstones.table} is missing or does not match the table",
            step=tables.step_id,
            why="create_staging is 'never'",
            do=f"have a DBA run the output of {tables.dialect.sink}.ddl()",
        )
    tables.make(ExpectedTables((tables.options.metadata_schema, tombstones.table.name), tombstones.missing_ddl))
