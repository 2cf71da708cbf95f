"""Which recorded rows can no longer be published: staging has them no more, or is no longer made for them or the table.

A table that was altered since then never takes them. It may take those that a query writes anew which was changed to
match. A table that is gone is no such case: its other rows are gone with it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from outfall.postgres.columns import TableColumn, read_columns
from outfall.postgres.connection import Connection
from outfall.postgres.dead_letters import DeadLetters
from outfall.postgres.names import TableName
from outfall.postgres.options import PostgresOptions
from outfall.postgres.staging import StagedRows, Staging, own_columns


class LostRows:
    """Compares what is recorded of attempts with what is there. Every call runs in the caller's transaction.

    Args:
        options: how rows are written.
        table: the target.
        staging: where this sink stages rows.
        letters: where their dead letters go.
    """

    def __init__(
        self, options: PostgresOptions, table: TableName, staging: Staging, letters: DeadLetters | None
    ) -> None:
        self._options = options
        self._table = table
        self._staging = staging
        self._letters = letters

    def find(self, connection: Connection, attempts: Sequence[StagedRows]) -> Mapping[int, str]:
        """Return the numbers of attempts whose rows are lost, and why."""
        staged = {column.name: column.type for column in read_columns(connection, self._staging.table)}
        wanted = {column.name: column for column in read_columns(connection, self._table)}
        reasons = {attempt.stage: self._unfit(attempt, staged, wanted) for attempt in attempts}
        fitting = [attempt for attempt in attempts if reasons[attempt.stage] is None]
        if fitting:
            reasons |= self._miscounted(connection, fitting)
        return {stage: reason for stage, reason in reasons.items() if reason is not None}

    def _unfit(self, attempt: StagedRows, staged: Mapping[str, str], wanted: Mapping[str, TableColumn]) -> str | None:
        table = self._staging.table
        if attempt.staging not in (None, (table.schema, table.name)):
            former = ".".join(attempt.staging or ())
            return f"attempt {attempt.stage} was staged in {former}, and by the sink's options of now that is {table}"
        if not staged:
            return f"the staging table {table} is gone, and the {attempt.rows} rows of attempt {attempt.stage} with it"
        own = [name for name, _ in own_columns(self._options)]
        missing = [name for name in (*own, *attempt.columns) if name not in staged]
        if missing:
            return f"{table} has no column {missing[0]!r} any more, which attempt {attempt.stage} was staged with"
        return self._misfit(attempt, staged, wanted)

    def _misfit(self, attempt: StagedRows, staged: Mapping[str, str], wanted: Mapping[str, TableColumn]) -> str | None:
        """Say why the table of now, if there is one, or the options of now cannot take what is in staging."""
        if not attempt.columns:
            return None
        options = self._options
        deletes = options.write_mode == "delete"
        for name in attempt.columns if not deletes else options.key_columns:
            column = wanted.get(name)
            if wanted and (column is None or not (column.writable or deletes)):
                return f"attempt {attempt.stage} was staged with column {name!r}, and {self._table} takes none by now"
            if column is not None and name in staged and staged[name] != column.type:
                return f"column {name!r} is {staged[name]} in {self._staging.table} and {column.type} in {self._table}"
        named = [name for name in options.columns_named() if name not in (*attempt.columns, options.delete_marker)]
        needed = [] if deletes else [name for name, column in wanted.items() if column.needed]
        given = [*named, *(name for name in needed if name not in attempt.columns)]
        if given:
            return f"attempt {attempt.stage} was staged without column {given[0]!r}, which is needed by now"
        return None

    def _miscounted(self, connection: Connection, attempts: Sequence[StagedRows]) -> Mapping[int, str]:
        stages = [attempt.stage for attempt in attempts]
        rows = self._staging.counts(connection, stages)
        waiting = {} if self._letters is None else self._letters.counts(connection, stages)
        return {
            attempt.stage: f"{self._staging.table} holds {rows[attempt.stage]} of the {attempt.rows} rows of attempt"
            f" {attempt.stage}, and {waiting.get(attempt.stage, attempt.letters)} of its {attempt.letters} dead letters"
            " are there: the server empties both when it crashes"
            for attempt in attempts
            if (rows[attempt.stage], waiting.get(attempt.stage, attempt.letters)) != (attempt.rows, attempt.letters)
        }
