"""The delivery by epochs: tasks stage rows, and the driver publishes them one epoch at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from psycopg import sql

from outfall.capabilities import (
    CleanUpContext,
    CommittableMessage,
    CommitterInitContext,
    SupportsCommitter,
    SupportsPreCommitTopology,
    TargetContext,
)
from outfall.postgres.connection.database import PostgresConnection
from outfall.postgres.delivery import PostgresDelivery
from outfall.postgres.ledger import ledger_ddl, token_ddl
from outfall.postgres.staging.publish import PostgresCommitter
from outfall.postgres.staging.staging_table import StagedRows, new_stage
from outfall.postgres.staging.staging_writer import StagingWriter
from outfall.postgres.target import PostgresTarget
from outfall.serde import ModelSerializer
from outfall.sinks import DynamicSink


class StagedDelivery(PostgresDelivery, DynamicSink[Any], SupportsCommitter[StagedRows]):
    """The base of deliveries whose tasks copy rows to a staging table, with its clean-up."""

    def committable_serializer(self) -> ModelSerializer[StagedRows]:
        return ModelSerializer(StagedRows)

    def clean_up(self, context: CleanUpContext) -> int:
        tables = self._tables(context)
        if context.final:
            tables.run("ending the ledger of", tables.ledger.end)
        count = tables.run(
            "cleaning up staging of", lambda connection: tables.staging.forget_older(connection, context)
        )
        tables.run("clearing staging of", tables.staging.clear)
        if tables.letters is not None:
            tables.run("clearing dead letters of", tables.letters.clear)
        return count

    def find_leftovers(self, context: CleanUpContext) -> Sequence[str]:
        tables = self._tables(context, starting=True)
        return tables.run(
            "reading staging of", lambda connection: tables.staging.older(connection, context), starting=True
        )

    def _support_ddl(self, connection: PostgresConnection, step_id: str) -> list[sql.Composed]:
        schema = self.options.metadata_schema
        statements = (
            ledger_ddl(schema) + token_ddl(schema) + self._staging(step_id, self.found_in()).missing_ddl(connection)
        )
        return statements + ([] if self.letters is None else self.letters.missing_ddl(connection))


class EpochDelivery(StagedDelivery, SupportsPreCommitTopology[StagedRows, StagedRows]):
    """Writes each epoch in one transaction, so readers see either all or none of it."""

    def build(self, step_id: str, worker_index: int, worker_count: int) -> StagingWriter:
        return StagingWriter(self._tables(self._writer()), self._writer())

    def create_committer(self, context: CommitterInitContext) -> PostgresCommitter:
        return PostgresCommitter(self._tables(context), context)

    def add_pre_commit_topology(
        self, results: Sequence[CommittableMessage[StagedRows]]
    ) -> Sequence[CommittableMessage[StagedRows]]:
        self._check_letters(results)
        if results or self.options.existing.others != "delete":
            return results
        # A first epoch without rows, for which Spark may run no task, empties the table too.
        return [CommittableMessage(StagedRows(stage=new_stage(), rows=0, columns=()), epoch=0, worker_index=0)]

    def write_result_serializer(self) -> ModelSerializer[StagedRows]:
        return self.committable_serializer()

    def _check_letters(self, results: Sequence[CommittableMessage[StagedRows]]) -> None:
        """Check the limit of dead letters before the epoch is recorded, so a repaired table can accept the rows."""
        letters = self.letters
        waiting = {message.value.stage: message.value.letters for message in results}
        if letters is None or sum(waiting.values()) <= letters.most:
            return
        self.database.run(
            "counting the dead letters for",
            lambda connection: letters.check_bound(connection, waiting, epoch=results[0].epoch, step=None),
        )

    def _target(self, connection: PostgresConnection, context: TargetContext[Any]) -> PostgresTarget:
        return PostgresTarget(self._tables(context, self._table_options), self._written, connection)
