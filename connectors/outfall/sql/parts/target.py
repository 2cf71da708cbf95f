"""The table that tasks write, in one transaction of the driver; and the parts that it has."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pyarrow as pa

from outfall.capabilities import CommitterInitContext, TargetContext
from outfall.errors import PartsChangedError
from outfall.part_ledger.checks import PartContext, PartRow, check_states
from outfall.possession.possession import Change, FoundRecord
from outfall.sql.database import ExpectedTables
from outfall.sql.dialect import compose
from outfall.sql.ledger import LedgerRow
from outfall.sql.parts.ledger import PartLedger, part_ledger_ddl
from outfall.sql.parts.writer import PartState
from outfall.sql.tables import StepTables
from outfall.sql.target import SqlTarget
from outfall.target_record import TargetRecord


class DirectTarget(SqlTarget):
    """A table whose tasks publish. `on_existing="overwrite"` deletes rows before the first task.

    The tasks cannot do so, because none of their transactions is known to be the first one.
    """

    @contextmanager
    def opening(self) -> Iterator[None]:
        # Of two concurrent drivers of this query only one is the first: another one would delete rows of its tasks.
        if self.overwrites:
            name = hashlib.sha256(f"{self._ledger.key['incarnation']} {self.where}".encode()).hexdigest()
            self._session.execute(compose(self._dialect.words.first, ledger=self._ledger.name), {"name": name})
        yield

    def delete_existing(self, context: TargetContext[Any]) -> None:
        self._table.delete_rows(self._session)


class PartTarget(DirectTarget):
    """One step's table and parts in one transaction. Used on the driver."""

    stages = False

    def __init__(
        self,
        tables: StepTables[Any],
        schema: pa.Schema | None,
        session: Any,
        parts: Sequence[str],
    ) -> None:
        super().__init__(tables, schema, session)
        self._parts = parts
        self._part_ledger = PartLedger(tables.dialect, tables.ledger)

    def records(
        self, found: FoundRecord[LedgerRow], context: TargetContext[Any] | CommitterInitContext
    ) -> Sequence[TargetRecord]:
        # If a driver died between seal and record, the epoch that begins now is closed but must be written again.
        record = found.stored.record
        return [replace(record, epoch=None) if record.epoch == context.epoch else record]

    def check_data(self, found: FoundRecord[LedgerRow] | None, context: TargetContext[PartState]) -> None:
        super().check_data(found, context)
        if found is None or not self._has_parts():
            return
        rows = self._part_ledger.read(self._session)
        self._refuse_new(rows, context)
        offsets = {part: state.next_offset for part, state in context.states.items()}
        opened = found.stored.generation >= context.last_generation
        place = PartContext(self.where, context.step_id, context.epoch)
        check_states(place, context.completed, rows, offsets, opened=opened)

    def starts(self, context: TargetContext[PartState]) -> Mapping[str, PartState]:
        """Return the start states of new parts: after their rows in the table, if the rows have part and number."""
        new = [part for part in self._parts if part not in context.states]
        ends = self._ends() if new else {}
        return {part: PartState(next_offset=ends.get(part) or 0) for part in new}

    def create(self, context: TargetContext[Any]) -> None:
        super().create(context)
        self._part_ledger.forget(self._session)

    def open(self, context: TargetContext[PartState], change: Change[LedgerRow]) -> LedgerRow | None:
        after = super().open(context, change)
        self._part_ledger.fence(self._session)
        found = self._part_ledger.read(self._session)
        # Again, because a task of an older driver may have published since the check.
        self._refuse_new(found, context)
        new = {part: state.next_offset for part, state in context.states.items() if part not in found}
        if new:
            self._part_ledger.begin(self._session, new)
        return after

    def _refuse_new(self, found: Mapping[str, PartRow], context: TargetContext[PartState]) -> None:
        """Reject new parts while an epoch is partly in the table, which would duplicate its rows in other parts."""
        completed = -1 if context.completed is None else context.completed
        unfinished = [row.epoch for row in found.values() if row.epoch is not None and row.epoch > completed]
        new = [part for part in self._parts if part not in found]
        if new and unfinished:
            raise PartsChangedError(
                f"{len(new)} parts were added while epoch {unfinished[0]} is partly in {self.where}",
                step=context.step_id,
                epoch=context.epoch,
                part=new[0],
                why="its rows were routed to the former parts",
                do="run the query with the former parts until the epoch is completed, then add parts",
            )

    def _published_by_others(self) -> int | None:
        # Parts are in the table before their epoch is closed, so a job that was killed in between has written rows.
        found = super()._published_by_others()
        return self._part_ledger.published_by_others(self._session) if found is None and self._has_parts() else found

    def _has_written(self, found: LedgerRow) -> bool:
        if super()._has_written(found) or not self._has_parts():
            return super()._has_written(found)
        return any(row.epoch is not None for row in self._part_ledger.read(self._session).values())

    def _has_parts(self) -> bool:
        return bool(self._dialect.exists(self._session, self._part_ledger.table))

    def own_tables(self) -> list[ExpectedTables]:
        schema, parts, words = self._tables.options.metadata_schema, self._part_ledger.table, self._dialect.words
        ddl = part_ledger_ddl(words, schema)
        made = ExpectedTables((schema,), lambda found: [] if self._dialect.exists(found, parts) else ddl)
        return [*super().own_tables(), made]

    def _ends(self) -> Mapping[str, int]:
        options = self._tables.dialect.options
        if options.offset_keys == "ledger" or options.existing.others == "delete":
            return {}
        if not self._exists():
            return {}
        part, offset = map(self._dialect.quote, (options.part_column, options.part_offset_column))
        query = compose("SELECT {0}, max({1}) + 1 FROM {2} GROUP BY {0}", part, offset, self._tables.target.sql)
        found = self._session.execute(query).fetchall()
        # A column of type char pads the names.
        return {str(name).rstrip(): int(end) for name, end in found if name is not None}
