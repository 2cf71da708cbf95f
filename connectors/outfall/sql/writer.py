"""One attempt: loads its rows into staging in one transaction."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Protocol

import pyarrow as pa

from outfall.capabilities import WriterInitContext
from outfall.dead_letter import NOT_CONVERTIBLE, DeadLetter
from outfall.errors import TerminalError, ValueRefusedError
from outfall.formats.row_text import row_texts
from outfall.row_logging import RowLog
from outfall.sinks import StatelessSinkPartition
from outfall.sql.changes import ChangeCheck, Problem, keeping, only_keys_of_removals
from outfall.sql.database import ExpectedTables, Session
from outfall.sql.dead_letters import batch_row_name, row_log, table_of, too_many
from outfall.sql.dialect import Dialect, Load, Refusal, StagedRows, StagedTable
from outfall.sql.names import Found, SqlName
from outfall.sql.routing import Router
from outfall.sql.staging import new_stage
from outfall.sql.target import StepTables
from outfall.trace_points import reached
from outfall.values import rows_to_batch


class _Attempt:
    """The rows of a task in one staging table."""

    def __init__(self, tables: StepTables[Any], schema: pa.Schema, stage: int, load: Load) -> None:
        self.tables = tables
        self.schema = schema
        self.stage = stage
        self.load = load
        self.rows: Counter[str] = Counter()
        """The number of rows by the name of their table, if a column names it."""
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


@dataclass
class _Unrouted:
    """The rejected rows for which there is no staging table."""

    session: Any
    rows: int = 0
    dead_letters: list[DeadLetter] = field(default_factory=list)


class StagingWriter(StatelessSinkPartition[Any]):
    """Loads rows into staging. Until `prepare_commit`, no row outlives the connection.

    If a column names the tables, the rows of each layout go to a staging table, all in one transaction.
    """

    def __init__(self, tables: StepTables[Any], context: WriterInitContext) -> None:
        self._tables = tables
        self._context = context
        self._schema: pa.Schema | None = None
        self._attempts: dict[Hashable, _Attempt] = {}
        self._sending: _Attempt | None = None
        """The one that has got rows last."""
        self._lent = ExitStack()
        self._routed: tuple[Router, _Unrouted] | None = None
        """What routes rows, once there are some, if a column names the tables."""

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
            if self._tables.are_many:
                self._route(batch)
            else:
                self._send(self._attempt(None, self._tables, batch.schema), batch)

    def prepare_commit(self) -> list[StagedRows]:
        """Commit the rows to staging, and return them as committables: one for each staging table."""
        if not self._attempts and not (self._routed and self._routed[1].dead_letters):
            return []
        with self._tables.translated_errors("staging rows for"):
            self._pause()
            attempts = list(self._attempts.values())
            staged = [self._registered(attempt) for attempt in attempts]
            letters = sum(len(attempt.load.dead_letters) for attempt in attempts)
            if self._routed is not None and (unrouted := self._routed[1]).dead_letters:
                staged.append(self._registered_unrouted(unrouted))
                letters += len(unrouted.dead_letters)
            reached("sql: staging")
            if self._routed is not None:
                self._routed[1].session.finish("COMMIT")
            else:
                attempts[0].load.commit()
            reached("sql: staged")
        if letters:
            self._context.metrics.add("dead_letters", letters)
        return staged

    def close(self) -> None:
        # First the connection: a running COPY is of no use to it.
        self._lent.close()
        for attempt in self._attempts.values():
            attempt.load.close()

    def _add_to_transaction(self, session: Any, staged: StagedRows) -> None:
        """Do nothing: the committer publishes the rows."""

    def _registered(self, attempt: _Attempt) -> StagedRows:
        """Register an attempt and its dead letters; return its committable."""
        staged, load = attempt.staged(), attempt.load
        if self._routed is not None:
            tables = _by_table(attempt.rows, self._routed[0])
            keys = attempt.tables.options.key_columns if self._tables.options.keys_differ else ()
            staged = staged.model_copy(update={"owner": self._owner(), "keys": keys, "tables": tables})
        self._register(load.session, staged, load.dead_letters, attempt.tables)
        self._add_to_transaction(load.session, staged)
        return staged

    def _registered_unrouted(self, unrouted: _Unrouted) -> StagedRows:
        letters = len(unrouted.dead_letters)
        staged = StagedRows(stage=new_stage(), rows=0, columns=(), letters=letters, owner=self._owner())
        self._register(unrouted.session, staged, unrouted.dead_letters, self._tables)
        return staged

    def _register(
        self, session: Any, staged: StagedRows, dead_letters: Sequence[DeadLetter], tables: StepTables[Any]
    ) -> None:
        tables.staging.register(session, self._context, staged)
        if tables.dead_letters is not None:
            tables.dead_letters.stage(session, staged.stage, dead_letters)

    def _owner(self) -> tuple[str, str]:
        return self._context.step_id, self._context.incarnation

    # --- many tables

    def _route(self, batch: pa.RecordBatch) -> None:
        """Send rows to the staging tables for theirs."""
        if self._routed is None:
            database = self._tables.database
            session = database.repeated("staging rows for", lambda: self._lent.enter_context(database.task()))
            self._routed = Router(self._tables, session, batch.schema), _Unrouted(session)
        router, unrouted = self._routed
        if not router.knows(batch):
            # No statement can be executed while a COPY runs.
            self._pause()
        accepted = self._without_refused(unrouted, self._tables, batch, router.problems(batch), _CANNOT_BE_ROUTED)
        unrouted.rows += accepted.num_rows
        if not accepted.num_rows:
            return
        for routed in router.split(accepted):
            attempt = self._attempt(routed.route.layout, routed.route.tables, routed.batch.schema)
            aside = len(attempt.load.dead_letters)
            self._send(attempt, routed.batch)
            attempt.rows.update(routed.rows)
            for letter in attempt.load.dead_letters[aside:]:
                attempt.rows[json.loads(letter.row)[self._tables.options.table_column]] -= 1

    # --- one staging table

    def _attempt(self, layout: Hashable, tables: StepTables[Any], schema: pa.Schema) -> _Attempt:
        """Return the attempt for a layout; the first call for it creates it."""
        if layout not in self._attempts:
            session = None if self._routed is None else self._routed[1].session
            if session is not None:
                self._pause()
                self._make(tables, session)
            stage = new_stage()
            # No row is sent yet, so a server that restarts is waited for. Later, only the task can be repeated.
            load = tables.database.repeated(
                "staging rows for",
                lambda: tables.dialect.load(
                    tables.staging.table, tables.target, schema, stage, self._context, *([session] if session else [])
                ),
            )
            self._attempts[layout] = _Attempt(tables, schema, stage, load)
        return self._attempts[layout]

    def _make(self, tables: StepTables[Any], session: Any) -> None:
        """Create a staging table that is missing, if the sink may."""
        if tables.options.create_staging == "if_missing" and tables.staging.missing_ddl(session):
            tables.make(ExpectedTables((tables.staging.table.name,), tables.staging.missing_ddl))
            session.forget()

    def _send(self, attempt: _Attempt, batch: pa.RecordBatch) -> None:
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
_CANNOT_BE_ROUTED = "{row} cannot be written to the table {table}"


def _by_table(rows: Mapping[str, int], router: Router) -> tuple[StagedTable, ...]:
    spelled: dict[Found, list[str]] = {}
    for name, count in rows.items():
        if count:
            spelled.setdefault(router.found(name), []).append(name)
    return tuple(
        StagedTable(found=found, spelled=tuple(names), rows=sum(rows[name] for name in names))
        for found, names in spelled.items()
    )


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
