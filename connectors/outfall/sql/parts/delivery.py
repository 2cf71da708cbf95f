"""`parts=N`: rows are routed by key to parts, each of which numbers its rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from outfall.capabilities import (
    PartSeal,
    RowIdentity,
    SealContext,
    SupportsSeal,
    SupportsStateSerializer,
    TargetContext,
)
from outfall.part_ledger.checks import PartContext, check_sealed, check_step
from outfall.serde import ModelSerializer
from outfall.sinks import FixedPartitionedSink
from outfall.sql.delivery import SqlDelivery
from outfall.sql.parts.ledger import PartLedger, part_ledger_ddl
from outfall.sql.parts.options import PartOptions
from outfall.sql.parts.rows import PartRows
from outfall.sql.parts.target import PartTarget
from outfall.sql.parts.writer import ALTERNATIVE, PartState, PartTasks, PartWriter
from outfall.sql.statements import ledger_ddl
from outfall.sql.target import SqlTarget
from outfall.trace_points import reached


class PartDelivery(
    SqlDelivery, FixedPartitionedSink[Any, PartState], SupportsSeal[PartState], SupportsStateSerializer[PartState]
):
    """Writes a part's rows of an epoch exactly once, by their count and hash in the ledger. Failed attempts leave none.

    A task writes its rows directly into the table in one transaction with a ledger row for each of its
    parts: epoch, count and hash. A replay finds the epoch in the ledger. The step's generation rejects tasks of older
    drivers: their transactions read it under a lock for which a newer driver waits. A stale task of the same generation
    finds its epoch, or writes rows that no other attempt has written.
    """

    options: PartOptions

    def __init__(self, options: PartOptions) -> None:
        super().__init__(options)
        self._tasks = PartTasks()

    def kind(self) -> str:
        return f"{super().kind()}/parts"

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

    def row_schema(self) -> pa.Schema | None:
        # With a payload, rows have other columns than the table.
        return super().row_schema() if self.options.payload_column is None else None

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
        ledger = PartLedger(tables.dialect, tables.ledger)
        place = PartContext(str(self.table), context.step_id, context.epoch, ALTERNATIVE)
        offsets = {part.part: part.state.next_offset for part in parts}

        def seal(session: Any) -> None:
            step = tables.ledger.read(session, lock=True)
            check_step(place.target, step.record if step else None, context)
            rows = check_sealed(place, ledger.read(session), offsets)
            reached("sql: sealing")
            ledger.fence(session)
            if step is not None and not step.holds(context.epoch):
                tables.ledger.published(session, context, rows)

        tables.run("sealing", seal)

    @property
    def _table_options(self) -> PartOptions:
        return self.options.model_copy(update=PartRows(self.options).keys())

    def _written_schema(self, session: Any, schema: pa.Schema) -> pa.Schema:
        return PartRows.into(self.dialect(), self.dialect().columns(session, self._resolved)).schema(schema)

    def _target(self, session: Any, context: TargetContext[Any]) -> SqlTarget:
        return PartTarget(self._tables(context, self._table_options), self._written, session, self.list_parts())

    def _support_ddl(self, session: Any, step_id: str) -> list[str]:
        words, schema = self.dialect().words, self.options.metadata_schema
        return ledger_ddl(words, schema) + part_ledger_ddl(words, schema)
