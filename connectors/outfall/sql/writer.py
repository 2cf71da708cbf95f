"""One attempt: loads its rows into staging in one transaction."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from outfall.capabilities import WriterInitContext
from outfall.dead_letter import NOT_CONVERTIBLE, DeadLetter
from outfall.errors import TerminalError, ValueRefusedError
from outfall.formats.row_text import row_texts
from outfall.row_logging import RowLog
from outfall.sinks import StatelessSinkPartition
from outfall.sql.changes import ChangeCheck, Problem, keeping, only_keys_of_removals
from outfall.sql.database import Session
from outfall.sql.dead_letters import batch_row_name, row_log, too_many
from outfall.sql.dialect import Dialect, Load, Refusal, SqlName, StagedRows
from outfall.sql.staging import new_stage
from outfall.sql.target import StepTables
from outfall.trace_points import reached
from outfall.values import rows_to_batch


class StagingWriter(StatelessSinkPartition[Any]):
    """Loads rows into the staging table. Until `prepare_commit`, no row outlives the connection."""

    def __init__(self, tables: StepTables[Any], context: WriterInitContext) -> None:
        self._tables = tables
        self._staging = tables.staging
        self._context = context
        self._stage = new_stage()
        self._load: Load | None = None
        self._schema: pa.Schema | None = None
        options = tables.options
        self._check = ChangeCheck(options) if options.write_mode == "changes" else None

    def write_batch(self, values: list[Any]) -> None:
        self.write_record_batch(rows_to_batch(values))

    def write_record_batch(self, batch: pa.RecordBatch) -> None:
        """Send the rows of a batch."""
        if batch.num_rows == 0:
            return
        with self._tables.translated_errors("staging rows for"):
            load = self._open(batch.schema)
            accepted = self._without_refused(load, batch)
            if self._check is not None and accepted.num_rows:
                accepted = keeping(accepted, self._tables.options)
            accepted = only_keys_of_removals(accepted, self._tables.options, load.required)
            size = load.write(accepted) if accepted.num_rows else 0
        self._context.metrics.add("bytes", size)

    def prepare_commit(self) -> list[StagedRows]:
        """Commit the rows to staging, and return them as a committable."""
        load, schema = self._load, self._schema
        session = None if load is None else load.session
        if load is None or session is None or schema is None:
            return []
        with self._tables.translated_errors("staging rows for"):
            self._context.metrics.add("bytes", load.finish())
            table = self._staging.table
            staged = StagedRows(
                stage=self._stage,
                rows=load.rows,
                columns=tuple(name for name in schema.names if name not in self._tables.options.not_stored),
                letters=len(load.dead_letters),
                staging=(table.schema or "", table.name),
            )
            self._staging.register(session, self._context, staged)
            if self._tables.dead_letters is not None:
                self._tables.dead_letters.stage(session, self._stage, load.dead_letters)
            self._add_to_transaction(session, staged)
            reached("sql: staging")
            load.commit()
            reached("sql: staged")
        if load.dead_letters:
            self._context.metrics.add("dead_letters", len(load.dead_letters))
        return [staged]

    def close(self) -> None:
        if self._load is not None:
            self._load.close()

    def _add_to_transaction(self, session: Any, staged: StagedRows) -> None:
        """Do nothing: the committer publishes the rows."""

    def _without_refused(self, load: Load, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows that can be applied, and set the others aside.

        Raises `ValueRefusedError`, which names the first of them, if there are no dead letters.
        """
        problems = load.problems(batch) if self._check is None else self._check.problems(batch)
        if not problems:
            return batch
        dialect = self._tables.dialect
        for row, problem in problems.items():
            if self._tables.dead_letters is None:
                self._refuse(load, batch, row, problem)
            refusal = dialect.stored_refusal(problem.reason, None, None)
            load.dead_letters.append(set_aside(load, batch, row, refusal, dialect, self._context))
        return batch.take(pa.array([row for row in range(batch.num_rows) if row not in problems], pa.int64()))

    def _refuse(self, load: Load, batch: pa.RecordBatch, row: int, problem: Problem) -> None:
        options = self._tables.options
        log = RowLog(options.log_rows, options.key_columns)
        name = batch_row_name(batch, row, log, load.rows + row)
        what = (
            f"the table {options.table} rejects {name}"
            if self._check is None
            else f"{name} is not a change of {options.table}"
        )
        raise ValueRefusedError(what, why=problem.reason, do=problem.do)

    def _open(self, schema: pa.Schema) -> Load:
        if self._load is not None:
            check_same_columns(self._schema, schema)
            return self._load
        self._schema = schema
        tables = self._tables
        # No row is sent yet, so a server that restarts is waited for. Later, only the task can be repeated.
        self._load = tables.database.repeated(
            "staging rows for",
            lambda: tables.dialect.load(self._staging.table, tables.target, schema, self._stage, self._context),
        )
        return self._load


def check_same_columns(former: pa.Schema, schema: pa.Schema) -> None:
    """Reject a batch with other columns than those before it. Raises `ValueRefusedError`, which names both."""
    if not schema.equals(former):
        raise ValueRefusedError(
            f"the columns change from {former} to {schema}",
            why="all rows of an epoch must have the same columns",
            do="give all rows the same columns",
        )


def set_aside(
    load: Load, batch: pa.RecordBatch, row: int, refusal: Refusal, dialect: Dialect, context: WriterInitContext
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
