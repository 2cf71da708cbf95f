"""`parts=N`: rows are routed by key to parts, each of which numbers its rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from outfall.capabilities import (
    CommitterInitContext,
    PartSeal,
    RowIdentity,
    SealContext,
    SupportsSeal,
    SupportsStateSerializer,
    TargetContext,
)
from outfall.errors import PartsChangedError
from outfall.part_ledger.checks import PartContext, PartRow, check_sealed, check_states, check_step
from outfall.possession.possession import Change, FoundRecord
from outfall.postgres.catalogue.columns import exists, read_columns
from outfall.postgres.connection.database import PostgresConnection
from outfall.postgres.delivery import OffsetTarget, PostgresDelivery
from outfall.postgres.dialect import PostgresDialect
from outfall.postgres.names import quote
from outfall.postgres.offsets.ledger import PartLedger, part_ledger_ddl
from outfall.postgres.offsets.part_writer import ALTERNATIVE, PartRows, PartState, PartTasks, PartWriter
from outfall.postgres.options import PostgresOptions
from outfall.serde import ModelSerializer
from outfall.sinks import FixedPartitionedSink
from outfall.sql.database import ExpectedTables
from outfall.sql.dialect import compose
from outfall.sql.ledger import LedgerRow
from outfall.sql.statements import ledger_ddl
from outfall.sql.target import StepTables
from outfall.target_record import TargetRecord
from outfall.trace_points import reached


class PartDelivery(
    PostgresDelivery, FixedPartitionedSink[Any, PartState], SupportsSeal[PartState], SupportsStateSerializer[PartState]
):
    """Writes a part's rows of an epoch exactly once, by their count and hash in the ledger. Failed attempts leave none.

    A task writes its rows directly into the table with one COPY, in one transaction with a ledger row for each of its
    parts: epoch, count and hash. A replay finds the epoch in the ledger. The step's generation rejects tasks of older
    drivers: their transactions read it under a lock for which a newer driver waits. A stale task of the same generation
    finds its epoch, or writes rows that no other attempt has written.
    """

    def __init__(self, options: PostgresOptions) -> None:
        super().__init__(options)
        self._tasks = PartTasks()

    def kind(self) -> str:
        return "postgres/parts"

    def row_identity(self) -> RowIdentity | None:
        numbers = PartRows(self.options).keys().get("key_columns")
        return RowIdentity("append by part", numbers) if numbers else None

    def requires(self) -> Sequence[str]:
        return (
            *super().requires(),
            "a source that replays the same rows of an epoch",
            "the same key= after a restart",
        )

    def needs_same_rows(self) -> bool:
        return True

    def list_parts(self) -> list[str]:
        return [str(index) for index in range(self.options.parts or 0)]

    def build_part(self, step_id: str, for_part: str, resume_state: PartState | None) -> PartWriter:
        state = resume_state or PartState(next_offset=0)
        writer = self._writer()
        return PartWriter(self._tasks, self._tables(writer), state, writer)

    def state_serializer(self) -> ModelSerializer[PartState]:
        return ModelSerializer(PartState)

    def seal(self, context: SealContext, parts: Sequence[PartSeal[PartState]]) -> None:
        """Compare each part with its state, and close the epoch to all writers. Idempotent.

        Raises `FencedError`, see `check_step`; `ReplayDiffersError`, see `check_sealed`; `TargetLostError`, see both.
        """
        tables = self._tables(context)
        ledger = PartLedger(tables.ledger)
        place = PartContext(str(self.table), context.step_id, context.epoch, ALTERNATIVE)
        offsets = {part.part: part.state.next_offset for part in parts}

        def seal(connection: PostgresConnection) -> None:
            step = tables.ledger.read(connection, lock=True)
            check_step(place.target, step.record if step else None, context)
            rows = check_sealed(place, ledger.read(connection), offsets)
            reached("sql: sealing")
            if step is not None and not step.holds(context.epoch):
                tables.ledger.published(connection, context, rows)

        tables.run("sealing", seal)

    @property
    def _table_options(self) -> PostgresOptions:
        return self.options.model_copy(update=PartRows(self.options).keys())

    def _written_schema(self, connection: PostgresConnection, schema: pa.Schema) -> pa.Schema:
        return PartRows.into(self.options, read_columns(connection, self._resolved)).schema(schema)

    def _target(self, connection: PostgresConnection, context: TargetContext[Any]) -> PartTarget:
        tables = self._tables(context, self._table_options)
        return PartTarget(tables, self._written, connection, self.list_parts())

    def _support_ddl(self, connection: PostgresConnection, step_id: str) -> list[str]:
        schema = self.options.metadata_schema
        return ledger_ddl(self.dialect().words, schema) + part_ledger_ddl(schema)


class PartTarget(OffsetTarget):
    """One step's table and parts in one transaction. Used on the driver."""

    stages = False

    def __init__(
        self,
        tables: StepTables[PostgresDialect],
        schema: pa.Schema | None,
        connection: PostgresConnection,
        parts: Sequence[str],
    ) -> None:
        super().__init__(tables, schema, connection)
        self._parts = parts
        self._part_ledger = PartLedger(tables.ledger)

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

    def open(self, context: TargetContext[PartState], change: Change[LedgerRow]) -> LedgerRow | None:
        after = super().open(context, change)
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
            return found.epoch is not None
        return any(row.epoch is not None for row in self._part_ledger.read(self._session).values())

    def _has_parts(self) -> bool:
        return exists(self._session, self._part_ledger.table)

    def own_tables(self) -> list[ExpectedTables]:
        schema, parts = self._tables.options.metadata_schema, self._part_ledger.table
        made = ExpectedTables((schema,), lambda found: [] if exists(found, parts) else part_ledger_ddl(schema))
        return [*super().own_tables(), made]

    def _ends(self) -> Mapping[str, int]:
        options = self._tables.dialect.options
        if options.offset_keys == "ledger" or options.existing.others == "delete":
            return {}
        if not self._exists():
            return {}
        part, offset = quote(options.part_column), quote(options.part_offset_column)
        table = self._tables.target.sql
        query = compose("SELECT {}::text, max({}) + 1 FROM {} GROUP BY 1", part, offset, table)
        return dict(self._session.execute(query).fetchall())
