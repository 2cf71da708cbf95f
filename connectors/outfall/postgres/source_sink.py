"""`delivery="offset", offset_columns=…`: rows carry the numbers that their source gave them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from outfall.capabilities import TargetContext
from outfall.postgres.connection import Connection, Database
from outfall.postgres.offset_target import OffsetTarget
from outfall.postgres.options import PostgresOptions
from outfall.postgres.source_part import SourcePart
from outfall.postgres.staged_sink import StagedSink
from outfall.postgres.unique_index import check_unique
from outfall.sinks import DynamicSink


class SourceSink(StagedSink, DynamicSink[Any]):
    """`PostgresSink(dsn, table, delivery="offset", offset_columns=[…])`: see there.

    Nobody needs to be fenced. A row is named by its offsets, and the unique index lets each name in once. An attempt
    that wakes late, of whatever generation and epoch, can only bring rows of names that its source gave it; what is in
    the table under such a name is that row, since the source gives a name to one row only. So it inserts what its
    successor has not inserted yet, and would have, or nothing.
    """

    def kind(self) -> str:
        return "postgres/source-offsets"

    def requires(self) -> Sequence[str]:
        names = ", ".join(self.options.offset_columns)
        return (
            *super().requires(),
            f"a source that brings all rows of an epoch again, and whose offsets ({names}) always name the same row",
            "no one who deletes rows that the query may still bring again",
        )

    def build(self, step_id: str, worker_index: int, worker_count: int) -> SourcePart:
        return SourcePart(self.database, self._staging(step_id), self.table, self._writer())

    def _check_schema(self, connection: Connection, schema: pa.Schema) -> None:
        super()._check_schema(connection, schema)
        why = "nothing else tells a row that comes again from a new one"
        check_unique(connection, self.table, self.options.offset_columns, why=why)

    @property
    def _table_options(self) -> PostgresOptions:
        return self.options.model_copy(update={"key_columns": self.options.offset_columns})

    def _target(self, context: TargetContext[Any]) -> OffsetTarget:
        staging = self._staging(context.step_id, starting=True)
        return OffsetTarget(Database(self._table_options), self.table, staging, None, context)
