"""`delivery="offset", offset_columns=…`: rows carry the numbers that their source gave them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from outfall.capabilities import (
    CommitRequest,
    Committer,
    CommitterInitContext,
    SupportsCommitter,
    TargetContext,
)
from outfall.postgres.connection import Connection, Database
from outfall.postgres.epoch_ledger import EpochLedger
from outfall.postgres.failures import explained
from outfall.postgres.names import TableName
from outfall.postgres.offset_target import SourceTarget
from outfall.postgres.options import PostgresOptions
from outfall.postgres.source_part import SourcePart
from outfall.postgres.staged_sink import StagedSink
from outfall.postgres.staging import StagedRows, Staging
from outfall.postgres.unique_index import check_unique
from outfall.serde import ModelSerializer
from outfall.sinks import DynamicSink
from outfall.trace_points import reached


class SourceSink(StagedSink, DynamicSink[Any], SupportsCommitter[StagedRows]):
    """`PostgresSink(dsn, table, delivery="offset", offset_columns=[…])`: see there.

    Nobody needs to be fenced. A row is named by its offsets, and the unique index lets each name in once. An attempt
    that wakes late, of whatever generation and epoch, can only bring rows of names that its source gave it; what is in
    the table under such a name is that row, since the source gives a name to one row only. So it inserts what its
    successor has not inserted yet, and would have, or nothing.

    The rows are in the table before anything is committed. What the driver commits is that they are: it finds each
    attempt registered, and writes the epoch into the ledger. A server that loses transactions loses the last ones, so
    that none of a task can go while that one stays.
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

    def create_committer(self, context: CommitterInitContext) -> SourceCommitter:
        ledger = EpochLedger(self._ledger(context), self.table, context)
        return SourceCommitter(self.database, self.table, self._staging(context.step_id), ledger, context)

    def committable_serializer(self) -> ModelSerializer[StagedRows]:
        return ModelSerializer(StagedRows)

    def _check_schema(self, connection: Connection, schema: pa.Schema) -> None:
        super()._check_schema(connection, schema)
        why = "nothing else tells a row that comes again from a new one"
        check_unique(connection, self.table, self.options.offset_columns, why=why)

    @property
    def _table_options(self) -> PostgresOptions:
        return self.options.model_copy(update={"key_columns": self.options.offset_columns})

    def _target(self, context: TargetContext[Any]) -> SourceTarget:
        staging = self._staging(context.step_id, starting=True)
        ledger = self._ledger(context, starting=True)
        return SourceTarget(Database(self._table_options), self.table, staging, None, ledger, context)


class SourceCommitter(Committer[StagedRows]):
    """Writes into the ledger that an epoch's rows are in the table, if they still are."""

    strict = True

    def __init__(
        self,
        database: Database,
        table: TableName,
        staging: Staging,
        ledger: EpochLedger,
        context: CommitterInitContext,
    ) -> None:
        self._database = database
        self._table = table
        self._staging = staging
        self._ledger = ledger
        self._context = context

    def commit(self, requests: Sequence[CommitRequest[StagedRows]]) -> None:
        def settle(connection: Connection) -> None:
            attempts = [request.committable for request in requests]
            row = self._ledger.read(connection, attempts, lock=True)
            if row.holds(self._context.epoch):
                for request in requests:
                    request.signal_already_committed()
                return
            if self._signal_lost(connection, requests):
                return
            reached("postgres: publishing")
            self._ledger.published(connection, row, sum(staged.rows for staged in attempts))
            self._staging.forget(connection, [staged.stage for staged in attempts])
            for request in requests:
                request.signal_committed()

        self._run("settling rows of", settle)

    def find_lost(self, requests: Sequence[CommitRequest[StagedRows]]) -> None:
        def find(connection: Connection) -> None:
            row = self._ledger.read(connection, [request.committable for request in requests])
            if not row.holds(self._context.epoch):
                self._signal_lost(connection, requests)

        self._run("looking for rows of", find)

    def nothing_published(self, requests: Sequence[CommitRequest[StagedRows]]) -> bool:
        """Rows that are there may be written again: they find themselves there."""
        return True

    def revoke(self, requests: Sequence[CommitRequest[StagedRows]]) -> None:
        stages = [request.committable.stage for request in requests]
        self._run("giving up rows of", lambda connection: self._staging.forget(connection, stages))

    def _signal_lost(self, connection: Connection, requests: Sequence[CommitRequest[StagedRows]]) -> bool:
        there = self._staging.registered(connection, [request.committable.stage for request in requests])
        lost = [request for request in requests if request.committable.stage not in there]
        for request in lost:
            staged = request.committable
            request.signal_lost(
                f"the server lost attempt {staged.stage} with its {staged.rows} rows, although it had confirmed them"
            )
        # Who writes the epoch anew is not to find those registered that are given up with them.
        for request in requests if lost else ():
            if request not in lost:
                request.signal_lost("given up with another attempt of its epoch")
        return bool(lost)

    def _run(self, doing: str, work: Callable[[Connection], None]) -> None:
        with explained(self._database, f"{doing} {self._table}", self._context.step_id):
            self._database.run(doing, work)
