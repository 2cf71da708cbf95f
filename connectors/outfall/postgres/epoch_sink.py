"""`delivery="epoch"`: rows are staged by the tasks, and published by the driver an epoch at a time."""

from __future__ import annotations

from typing import Any

from outfall.capabilities import CommitterInitContext, SupportsCommitter
from outfall.postgres.commit import PostgresCommitter
from outfall.postgres.part import StagingPart
from outfall.postgres.staged_sink import StagedSink
from outfall.postgres.staging import StagedRows
from outfall.serde import ModelSerializer
from outfall.sinks import DynamicSink


class EpochSink(StagedSink, DynamicSink[Any], SupportsCommitter[StagedRows]):
    """`PostgresSink(dsn, table)`: see there."""

    def build(self, step_id: str, worker_index: int, worker_count: int) -> StagingPart:
        return StagingPart(self.database, self._staging(step_id), self.letters, self._writer())

    def create_committer(self, context: CommitterInitContext) -> PostgresCommitter:
        staging = self._staging(context.step_id)
        return PostgresCommitter(self.database, self.table, staging, self.letters, context)

    def committable_serializer(self) -> ModelSerializer[StagedRows]:
        return ModelSerializer(StagedRows)
