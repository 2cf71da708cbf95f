"""The table of a sink with parts, as the recovery data knows it: checked, opened and sealed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from psycopg import sql

from outfall.capabilities import SealContext, TargetContext
from outfall.errors import PartsChangedError
from outfall.postgres.columns import read_columns
from outfall.postgres.connection import Connection, Database
from outfall.postgres.copy_support import check_copied_into
from outfall.postgres.ddl import Wanted
from outfall.postgres.ledger import Ledger, LedgerRow
from outfall.postgres.names import TableName
from outfall.postgres.offset_part import PartState
from outfall.postgres.offset_target import OffsetTarget
from outfall.postgres.part_checks import Place, check_sealed, check_states, check_step
from outfall.postgres.part_ledger import PartLedger, PartRow, part_ledger_ddl
from outfall.target_record import TargetRecord
from outfall.trace_points import reached


class PartTarget(OffsetTarget):
    """One step's table and parts in one epoch. Used on the driver."""

    def __init__(
        self,
        database: Database,
        table: TableName,
        parts: Sequence[str],
        ledger: Ledger,
        context: TargetContext[PartState],
    ) -> None:
        super().__init__(database, table, None, None, ledger, context)
        self._parts = parts
        self._part_ledger = PartLedger(ledger)

    def check(self) -> None:
        """Refuse a table or parts that are not what the recovery data says, and change nothing.

        Raises:
            TargetNotEmptyError, TargetLostError, TargetAheadError, TargetError, PartsChangedError, ConfigurationError.
        """
        super().check()
        self._database.run("looking at", lambda connection: check_copied_into(connection, self._name), starting=True)
        context = self._context
        with self._database.connection() as connection:
            step = self._ledger.read(connection) if self._has_ledger(connection) else None
            if step is None or not read_columns(connection, self._part_ledger.table):
                return
            found = self._part_ledger.read(connection)
        self._refuse_new(found)
        place = Place(str(self._name), context.step_id, context.epoch)
        offsets = {part: state.next_offset for part, state in context.states.items()}
        opened = step.generation >= context.last_generation
        check_states(place, context.completed, found, offsets, opened=opened)

    def bases(self) -> Mapping[str, PartState]:
        """Return where parts begin that have no state: after what the table holds of them, if its rows say so."""
        new = [part for part in self._parts if part not in self._context.states]
        if not new:
            return {}
        with self._database.connection() as connection:
            starts = self._ends(connection)
        return {part: PartState(next_offset=starts.get(part) or 0) for part in new}

    def _begin(self, connection: Connection) -> None:
        super()._begin(connection)
        found = self._part_ledger.read(connection)
        # Again: a task of an older driver may have published after this one looked.
        self._refuse_new(found)
        new = {part: state.next_offset for part, state in self._context.states.items() if part not in found}
        if new:
            self._part_ledger.begin(connection, new)

    def _refuse_new(self, found: Mapping[str, PartRow]) -> None:
        """Refuse new parts while an epoch is in the table in part: its rows would go to other parts, and be doubled."""
        completed = -1 if self._context.completed is None else self._context.completed
        unfinished = [row.epoch for row in found.values() if row.epoch is not None and row.epoch > completed]
        new = [part for part in self._parts if part not in found]
        if new and unfinished:
            raise PartsChangedError(
                f"there are {len(new)} new parts, and epoch {unfinished[0]} is in {self._name} in part",
                step=self._context.step_id,
                epoch=self._context.epoch,
                part=new[0],
                why="its rows were routed to the former parts",
                do="run the query with the former parts until the epoch is completed, then change them",
            )

    def _others(self, connection: Connection) -> int | None:
        # Parts are in the table before their epoch is closed: a job that was killed in between has written too.
        if (found := super()._others(connection)) is not None or not read_columns(connection, self._part_ledger.table):
            return found
        return self._part_ledger.published_by_others(connection)

    def _has_written(self, connection: Connection, found: LedgerRow) -> bool:
        if super()._has_written(connection, found):
            return True
        if not read_columns(connection, self._part_ledger.table):
            return False
        return any(row.epoch is not None for row in self._part_ledger.read(connection).values())

    def _beside(self) -> list[Wanted]:
        schema, parts = self._database.options.metadata_schema, self._part_ledger.table
        made = Wanted((schema,), lambda found: [] if read_columns(found, parts) else part_ledger_ddl(schema))
        return [*super()._beside(), made]

    def _check_row(self, found: LedgerRow) -> None:
        # A driver that died between seal and record has closed the epoch that begins now: it is written again.
        closed = found.epoch
        super()._check_row(replace(found, epoch=None if closed == self._context.epoch else closed))

    def _ends(self, connection: Connection) -> Mapping[str, int]:
        options = self._database.options
        if options.offset_keys == "ledger" or options.on_existing == "overwrite":
            return {}
        if not read_columns(connection, self._name):
            return {}
        query = sql.SQL("SELECT {part}::text, max({offset}) + 1 FROM {table} GROUP BY 1").format(
            part=sql.Identifier(options.part_column),
            offset=sql.Identifier(options.part_offset_column),
            table=self._name.identifier(),
        )
        return dict(connection.execute(query).fetchall())


def seal_parts(
    database: Database, table: TableName, ledger: Ledger, context: SealContext, offsets: Mapping[str, int]
) -> None:
    """Close an epoch of all parts against every writer, once they are what their states say. Idempotent.

    Raises:
        FencedError, ReplayDiffersError, TargetLostError: see `check_sealed`.
    """
    parts = PartLedger(ledger)
    place = Place(str(table), context.step_id, context.epoch)

    def seal(connection: Connection) -> None:
        step = check_step(str(table), ledger.read(connection, lock=True), context)
        rows = check_sealed(place, parts.read(connection), offsets)
        reached("postgres: sealing")
        if not step.holds(context.epoch):
            sealed = TargetRecord(context.generation, context.token, context.epoch)
            ledger.published(connection, step, sealed, rows=rows)

    database.run("sealing", seal)
