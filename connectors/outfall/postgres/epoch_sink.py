"""`delivery="epoch"`: rows are staged by the tasks, and published by the driver an epoch at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from outfall.capabilities import (
    CommittableMessage,
    CommitterInitContext,
    SupportsCommitter,
    SupportsPreCommitTopology,
)
from outfall.postgres.commit import PostgresCommitter
from outfall.postgres.failures import explained
from outfall.postgres.staged_sink import StagedSink
from outfall.postgres.staging import StagedRows, new_stage
from outfall.postgres.staging_writer import StagingPart
from outfall.serde import ModelSerializer
from outfall.sinks import DynamicSink


class EpochSink(
    StagedSink, DynamicSink[Any], SupportsCommitter[StagedRows], SupportsPreCommitTopology[StagedRows, StagedRows]
):
    """`PostgresSink(dsn, table)`: see there."""

    def build(self, step_id: str, worker_index: int, worker_count: int) -> StagingPart:
        return StagingPart(self.database, self._staging(step_id), self.letters, self._writer())

    def create_committer(self, context: CommitterInitContext) -> PostgresCommitter:
        staging = self._staging(context.step_id)
        return PostgresCommitter(self.database, self.table, staging, self.letters, self._ledger(context), context)

    def add_pre_commit_topology(
        self, results: Sequence[CommittableMessage[StagedRows]]
    ) -> Sequence[CommittableMessage[StagedRows]]:
        self._check_letters(results)
        if results or self.options.on_existing != "overwrite":
            return results
        # An epoch without rows, for which Spark may run no task at all, empties the table like any other first one.
        return [CommittableMessage(StagedRows(stage=new_stage(), rows=0, columns=()), epoch=0, worker_index=0)]

    def _check_letters(self, results: Sequence[CommittableMessage[StagedRows]]) -> None:
        """Refuse what is too much before it is recorded: a table that is mended then takes the rows after all."""
        letters = self.letters
        waiting = {message.value.stage: message.value.letters for message in results}
        if letters is None or sum(waiting.values()) <= letters.most:
            return
        with explained(self.database, f"counting the dead letters for {self.table}"):
            self.database.run(
                "counting the dead letters for",
                lambda connection: letters.check_bound(connection, waiting, epoch=results[0].epoch, step=None),
            )

    def write_result_serializer(self) -> ModelSerializer[StagedRows]:
        return self.committable_serializer()

    def committable_serializer(self) -> ModelSerializer[StagedRows]:
        return ModelSerializer(StagedRows)
