"""What sinks have in common whose tasks copy rows into a staging table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from psycopg import sql

from outfall.capabilities import SweepContext, TargetContext
from outfall.postgres.connection import Connection
from outfall.postgres.failures import explained
from outfall.postgres.names import staging_name
from outfall.postgres.sink import PostgresSink
from outfall.postgres.staging import Staging, own_columns
from outfall.postgres.table import Table
from outfall.postgres.target import Target


class StagedSink(PostgresSink):
    """Knows the staging table of a step, and clears it."""

    def sweep(self, context: SweepContext) -> int:
        staging = self._staging(context.step_id)
        with explained(self.database, f"sweeping {staging.table}", context.step_id):
            if context.final:
                self.database.run("ending the ledger of", self._ledger(context).end)
            count = self.database.run(
                "sweeping staging of", lambda connection: staging.forget_older(connection, context)
            )
            self.database.run("clearing staging of", staging.clear)
            if self.letters is not None:
                self.database.run("clearing dead letters of", self.letters.clear)
        return count

    def find_leftovers(self, context: SweepContext) -> Sequence[str]:
        staging = self._staging(context.step_id, starting=True)
        with explained(self.database, f"looking into {staging.table}", context.step_id):
            return self.database.run(
                "looking into staging of", lambda connection: staging.older(connection, context), starting=True
            )

    def _staging(self, step_id: str, *, starting: bool = False) -> Staging:
        schema = self.options.metadata_schema
        extra = [name for name, _ in own_columns(self.options)[1:]]
        return Staging(
            schema, staging_name(schema, self.table.found_in(self._found_in(starting=starting)), step_id, extra)
        )

    def _target(self, context: TargetContext[Any]) -> Target:
        staging = self._staging(context.step_id, starting=True)
        return Target(self.database, self.table, staging, self.letters, self._ledger(context, starting=True), context)

    def _support_ddl(self, connection: Connection, step_id: str) -> list[sql.Composed]:
        statements = Table(self.options, self.table).support_ddl(connection, self._staging(step_id).table)
        return statements + ([] if self.letters is None else self.letters.missing_ddl(connection))
