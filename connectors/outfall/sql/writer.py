"""One attempt: loads its rows into staging in one transaction."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Protocol

import pyarrow as pa

from outfall.capabilities import WriterInitContext
from outfall.dead_letter import NOT_CONVERTIBLE, DeadLetter
from outfall.errors import TerminalError, ValueRefusedError
from outfall.formats.row_text import row_texts
from outfall.row_logging import RowLog
from outfall.sinks import StatelessSinkPartition
from outfall.sql.changes import ChangeCheck, Problem, keeping, only_keys_of_removals
from outfall.sql.database import Session
from outfall.sql.dead_letters import batch_row_name, row_log, table_of, too_many
from outfall.sql.dialect import Dialect, Load, Refusal, StagedRows
from outfall.sql.names import SqlName
from outfall.sql.staging import new_stage
from outfall.sql.tables import StepTables
from outfall.trace_points import reached
from outfall.values import rows_to_batch


class StagingAttempt:
    """The rows of a task in one staging table."""

    def __init__(self, tables: StepTables[Any], schema: pa.Schema, stage: int, load: Load) -> None:
        self.tables = tables
        self.schema = schema
        self.stage = stage
        self.load = load
        self.check = ChangeCheck(tables.options) if tables.options.write_mode == "changes" else None

    def staged(self) -> StagedRows:
        """Return the committable."""
        load, table, not_stored = self.load, self.tables.staging.table, self.tables.options.not_stored
        return StagedRows(
            stage=self.stage,
            rows=load.rows,
            columns=tuple(name for name in self.schema.names if name not in not_stored),
            letters=len(load.dead_letters),
            staging=(table.schema or "", table.name),
        )


class StagingWriter(StatelessSinkPartition[Any]):
    """Loads rows into staging. Until `prepare_commit`, no row outlives the connection."""

    def __init__(self, tables: StepTables[Any], context: WriterInitContext) -> None:
        self._tables = tables
        self._context = context
        self._schema: pa.Schema | None = None
        self._attempts: dict[Hashable, StagingAttempt] = {}
        self._sending: StagingAttempt | None = None
        """The one that has got rows last."""

    def write_batch(self, values: list[Any]) -> None:
        self.write_record_batch(rows_to_batch(values))

    def write_record_batch(self, batch: pa.RecordBatch) -> None:
        """Send the rows of a batch."""
        if batch.num_rows == 0:
            return
        with self._tables.translated_errors("staging rows for"):
            if self._schema is not None:
                check_same_columns(self._schema, batch.schema)
            self._schema = batch.schema
            self._write(batch)

    def prepare_commit(self) -> list[StagedRows]:
        """Commit the rows to staging, and return them as committables: one for each staging table."""
        if self._schema is None:
            return []
        with self._tables.translated_errors("staging rows for"):
            self._pause()
            staged = self._registered()
            reached("sql: staging")
            self._commit()
            reached("sql: staged")
        if letters := sum(each.letters for each in staged):
            self._context.metrics.add("dead_letters", letters)
        return staged

    def close(self) -> None:
        for attempt in self._attempts.values():
            attempt.load.close()

    def _write(self, batch: pa.RecordBatch) -> None:
        """Send the rows of a batch that has some."""
        self._send(self._attempt(None, self._tables, batch.schema), batch)

    def _registered(self) -> list[StagedRows]:
        """Register the attempts with their dead letters, and return their committables."""
        found = []
        for layout, attempt in self._attempts.items():
            staged, load = self._staged(layout, attempt), attempt.load
            self._register(load.session, staged, load.dead_letters, attempt.tables)
            self._add_to_transaction(load.session, staged)
            found.append(staged)
        return found

    def _staged(self, layout: Hashable, attempt: StagingAttempt) -> StagedRows:
        """Return the committable of the attempt for a layout."""
        return attempt.staged()

    def _commit(self) -> None:
        for attempt in self._attempts.values():
            attempt.load.commit()

    def _add_to_transaction(self, session: Any, staged: StagedRows) -> None:
        """Do nothing: the committer publishes the rows."""

    def _register(
        self, session: Any, staged: StagedRows, dead_letters: Sequence[DeadLetter], tables: StepTables[Any]
    ) -> None:
        tables.staging.register(session, self._context, staged)
        if tables.dead_letters is not None:
            tables.dead_letters.stage(session, staged.stage, dead_letters)

    def _attempt(self, layout: Hashable, tables: StepTables[Any], schema: pa.Schema) -> StagingAttempt:
        """Return the attempt for a layout; the first call for it creates it."""
        if layout not in self._attempts:
            stage = new_stage()
            # No row is sent yet, so a server that restarts is waited for. Later, only the task can be repeated.
            load = tables.database.repeated("staging rows for", lambda: self._load(tables, schema, stage))
            self._attempts[layout] = StagingAttempt(tables, schema, stage, load)
        return self._attempts[layout]

    def _load(self, tables: StepTables[Any], schema: pa.Schema, stage: int) -> Load:
        dialect: Dialect = tables.dialect
        return dialect.load(tables.staging.table, tables.target, schema, stage, self._context)

    def _send(self, attempt: StagingAttempt, batch: pa.RecordBatch) -> None:
        if self._sending is not attempt:
            self._pause()
        self._sending = attempt
        load, check, tables = attempt.load, attempt.check, attempt.tables
        problems = load.problems(batch) if check is None else check.problems(batch)
        accepted = self._without_refused(load, tables, batch, problems, _REJECTED if check is None else _NO_CHANGE)
        if check is not None and accepted.num_rows:
            accepted = keeping(accepted, tables.options)
        accepted = only_keys_of_removals(accepted, tables.options, load.required)
        self._context.metrics.add("bytes", load.write(accepted) if accepted.num_rows else 0)

    def _pause(self) -> None:
        """Wait until all sent rows are in staging."""
        if self._sending is not None:
            self._context.metrics.add("bytes", self._sending.load.finish())
            self._sending = None

    def _without_refused(
        self,
        load: Aside,
        tables: StepTables[Any],
        batch: pa.RecordBatch,
        problems: Mapping[int, Problem],
        what: str,
    ) -> pa.RecordBatch:
        """Return the rows that can be applied, and set the others aside.

        Raises `ValueRefusedError`, which says `what` of the first of them, if there are no dead letters.
        """
        if not problems:
            return batch
        dialect, options = tables.dialect, tables.options
        for row, problem in problems.items():
            if tables.dead_letters is None:
                name = batch_row_name(batch, row, RowLog(options.log_rows, options.key_columns), load.rows + row)
                text = what.format(table=table_of(options, batch, row), row=name)
                raise ValueRefusedError(text, why=problem.reason, do=problem.do)
            refusal = dialect.stored_refusal(problem.reason, None, None)
            load.dead_letters.append(set_aside(load, batch, row, refusal, dialect, self._context))
        return batch.take(pa.array([row for row in range(batch.num_rows) if row not in problems], pa.int64()))


_REJECTED = "the table {table} rejects {row}"
_NO_CHANGE = "{row} is not a change of {table}"


def check_same_columns(former: pa.Schema, schema: pa.Schema) -> None:
    """Reject a batch with other columns than those before it. Raises `ValueRefusedError`, which names both."""
    if not schema.equals(former):
        raise ValueRefusedError(
            f"the columns change from {former} to {schema}",
            why="all rows of an epoch must have the same columns",
            do="give all rows the same columns",
        )


class Aside(Protocol):
    """What rejected rows are collected for: the rows of one attempt, as in `Load`."""

    session: Any
    rows: int
    dead_letters: list[DeadLetter]


def set_aside(
    load: Aside, batch: pa.RecordBatch, row: int, refusal: Refusal, dialect: Dialect, context: WriterInitContext
) -> DeadLetter:
    """Return the dead letter of a row that staging rejected.

    Raises `ValueRefusedError` if `max_dead_letters` does not allow another one.
    """
    text = row_texts(batch.slice(row, 1))[0]
    if len(load.dead_letters) == dialect.options.max_dead_letters and load.session is not None:
        log = row_log(load.session, dialect)
        raise too_many(dialect.options.max_dead_letters, batch_row_name(batch, row, log, load.rows + row), refusal, log)
    return DeadLetter(
        text,
        refusal.reason,
        context.step_id,
        context.epoch,
        part=f"writer {context.worker_index}",
        code=refusal.code or NOT_CONVERTIBLE,
        excerpt=refusal.detail,
    )


def staging_columns(session: Session, dialect: Dialect, staging: SqlName, schema: pa.Schema) -> list[Any]:
    """Return the columns of staging for rows with a schema: first the sink's, then theirs.

    Raises `TerminalError` if staging is missing or lacks a column.
    """
    not_stored = dialect.options.not_stored
    own = [name for name in dialect.options.own_columns() if name not in not_stored.values()]
    wanted = [*own, *(not_stored.get(name, name) for name in schema.names)]
    found = {column.name: column for column in dialect.columns(session, staging)}
    missing = [name for name in wanted if name not in found]
    if missing:
        raise TerminalError(
            f"the staging table {staging} has no column {missing[0]!r}"
            if found
            else f"the staging table {staging} does not exist",
            why="the table changed, or staging was dropped, after this epoch began",
            do=f"start the query again; with create_staging='never', run the output of {dialect.sink}.ddl()",
        )
    return [found[name] for name in wanted]
