"""`delivery="offset", parts=N`: rows are routed by key to parts, each of which counts its rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
from psycopg import sql

from outfall.capabilities import (
    PartSeal,
    SealContext,
    SupportsSeal,
    SupportsStateSerializer,
    SweepContext,
    TargetContext,
)
from outfall.postgres.columns import read_columns
from outfall.postgres.connection import Connection, Database
from outfall.postgres.failures import explained
from outfall.postgres.ledger import ledger_ddl, token_ddl
from outfall.postgres.offset_part import OffsetPart, PartState
from outfall.postgres.options import PostgresOptions
from outfall.postgres.part_ledger import part_ledger_ddl
from outfall.postgres.part_rows import PartRows
from outfall.postgres.part_target import PartTarget, seal_parts
from outfall.postgres.partition_writer import PartTasks
from outfall.postgres.sink import PostgresSink
from outfall.serde import ModelSerializer
from outfall.sinks import FixedPartitionedSink


class PartSink(
    PostgresSink,
    FixedPartitionedSink[Any, PartState],
    SupportsSeal[PartState],
    SupportsStateSerializer[PartState],
):
    """`PostgresSink(dsn, table, delivery="offset", parts=N)`: see there.

    A task's rows go straight into the table by one COPY, in one transaction with a row of the ledger for each of its
    parts: epoch, count and hash. Whoever brings the epoch again finds it there. An older driver's task is refused by
    the step's generation, which its transaction reads under a lock that the newer driver waits for; one of the same
    generation finds its epoch there, or writes what nobody else has written yet.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._tasks = PartTasks()

    def kind(self) -> str:
        return "postgres/parts"

    def requires(self) -> Sequence[str]:
        return (
            *super().requires(),
            "a source that brings the same rows of an epoch again",
            "the same key= after a restart",
        )

    def needs_same_rows(self) -> bool:
        return True

    def list_parts(self) -> list[str]:
        return [str(index) for index in range(self.options.parts or 0)]

    def build_part(self, step_id: str, for_part: str, resume_state: PartState | None) -> OffsetPart:
        state = resume_state or PartState(next_offset=0)
        writer = self._writer()
        return OffsetPart(self._tasks, self.database, self.table, self._ledger(writer), state, writer)

    def state_serializer(self) -> ModelSerializer[PartState]:
        return ModelSerializer(PartState)

    def _check_schema(self, connection: Connection, schema: pa.Schema) -> None:
        self.schema = PartRows.into(self.options, read_columns(connection, self.table)).schema(schema)
        super()._check_schema(connection, self.schema)

    def check_target(self, context: TargetContext[PartState]) -> Mapping[str, PartState]:
        super().check_target(context)
        with explained(self.database, f"looking at {self.table}", context.step_id):
            return self._target(context).bases()

    def seal(self, context: SealContext, parts: Sequence[PartSeal[PartState]]) -> None:
        offsets = {part.part: part.state.next_offset for part in parts}
        with explained(self.database, f"sealing {self.table}", context.step_id):
            seal_parts(self.database, self.table, self._ledger(context), context, offsets)

    def sweep(self, context: SweepContext) -> int:
        """Do nothing: lost attempts leave nothing."""
        return 0

    def find_leftovers(self, context: SweepContext) -> Sequence[str]:
        return ()

    @property
    def _table_options(self) -> PostgresOptions:
        return self.options.model_copy(update=PartRows(self.options).keys())

    def _target(self, context: TargetContext[Any]) -> PartTarget:
        ledger = self._ledger(context, starting=True)
        return PartTarget(Database(self._table_options), self.table, self.list_parts(), ledger, context)

    def _support_ddl(self, connection: Connection, step_id: str) -> list[sql.Composed]:
        schema = self.options.metadata_schema
        return ledger_ddl(schema) + token_ddl(schema) + part_ledger_ddl(schema)
