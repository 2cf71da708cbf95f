"""Publishes an epoch: one transaction moves its rows from staging into the table, and updates the ledger.

The dialect moves all rows with one statement, those of many tables with few round trips. If it rejects some,
`table_move` moves the rows of one table after another.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from outfall.capabilities import CommitRequest, Committer, CommitterInitContext
from outfall.errors import CommitRefusedError, FencedError, LostCommittableError, OutfallError, TargetError
from outfall.row_logging import RowLog
from outfall.sql.database import ExpectedTables, Session
from outfall.sql.dead_letters import DeadLetterTable
from outfall.sql.dialect import Refusal, StagedRows
from outfall.sql.keyed import Move
from outfall.sql.ledger import LedgerRow
from outfall.sql.moving import SortingMove
from outfall.sql.names import SqlName
from outfall.sql.table import Table, dropped, dropped_early
from outfall.sql.table_move import MovedRows, RejectedRowError, RowsLostError, TableMove, staged_row_name
from outfall.sql.tables import EpochTable, StepTables
from outfall.sql.tombstones import Tombstones
from outfall.trace_points import reached

Request = CommitRequest[StagedRows]
T = TypeVar("T")


class StagedCommitter(Committer[StagedRows]):
    """The base of committers of staged attempts, with the step's ledger row and staging."""

    strict = True

    def __init__(self, tables: StepTables[Any], context: CommitterInitContext) -> None:
        self._tables = tables
        self._dialect = tables.dialect
        self._staging = tables.staging
        self._ledger = tables.ledger
        self._context = context

    def _row(self, session: Session, requests: Sequence[Request], *, lock: bool = False) -> LedgerRow:
        return self._ledger.read_published(session, self._context, attempts_of(requests), lock=lock)

    def _is_published(self, row: LedgerRow, requests: Sequence[Request]) -> bool:
        """Return whether the epoch is in the table. If it is, signal that to all requests."""
        if not row.holds(self._context.epoch):
            return False
        for request in requests:
            request.signal_already_committed()
        return True


class EpochCommitter(StagedCommitter):
    """Moves the rows of winning attempts from staging into their tables, and records the epoch, in one transaction.

    If two drivers publish the same epoch, the lock of the ledger row serializes them, and the second one finds the
    epoch.
    """

    def __init__(self, tables: StepTables[Any], context: CommitterInitContext) -> None:
        super().__init__(tables, context)
        self._options = tables.options
        self._dead_letters = tables.dead_letters
        self._moved: MovedRows | None = None
        self._moving: EpochTable | None = None
        """The table into which rows are moved one table after another, or were when an error was raised."""
        self._tries = 0

    def commit(self, requests: Sequence[Request]) -> None:
        self._prepare_tables(requests)
        tables = self._tables.of_epoch(attempts_of(requests))
        for table in tables:
            if table.only is not None:
                self._context.metrics.table(table.in_ledger, table.rows)
        try:
            self._tables.database.run_raw(
                "publishing to",
                lambda session: self._publish(session, requests, tables),
                foreseen=[self._ledger.reading()],
                looks=self._tables.looks,
            )
        except RowsLostError:
            self._signal_lost(requests)
        except RejectedRowError as error:
            refusal = self._refused(error.table, error.name, error.why, error.do)
            for request in requests:
                request.signal_failed_with_known_reason(refusal)
        except _RevokedError:
            if not self._signal_lost(requests):
                raise self._fenced() from None
        except self._dialect.database.errors as error:
            faults = self._dialect.faults(error)
            if "mismatch" in faults and self._signal_lost(requests):
                return
            if "rows" in faults:
                refusal = self._refusal(requests, error)
                for request in requests:
                    request.signal_failed_with_known_reason(refusal)
            elif known := self.explain(requests, error):
                raise known from error
            elif "table" in faults and (missing := self._dropped(requests, tables)) is not None:
                raise missing from error
            else:
                doing = f"publishing to {self._ledger.table}"
                raise self._tables.database.translated(doing, error, self._context.step_id) from error
        else:
            self._count()

    def explain(self, requests: Sequence[Request], error: Exception) -> OutfallError | None:
        """Return the error for one of the driver's that only a database of this kind has; `None` for others."""
        return None

    def find_lost(self, requests: Sequence[Request]) -> None:
        def find(session: Session) -> Mapping[int, str]:
            row = self._row(session, requests)
            # Another driver may have published them in the meantime, and cleared staging.
            return {} if row.holds(self._context.epoch) else self._tables.find_lost(session, attempts_of(requests))

        _signal(requests, self._tables.run("reading staging of", find))

    def nothing_published(self, requests: Sequence[Request]) -> bool:
        row = self._tables.run("reading the ledger of", lambda session: self._row(session, requests, lock=True))
        return not row.holds(self._context.epoch)

    def revoke(self, requests: Sequence[Request]) -> None:
        self._tables.run("revoking rows of", lambda session: self._revoke(session, requests))
        reached("sql: revoked")

    def _signal_lost(self, requests: Sequence[Request]) -> bool:
        """Find lost attempts of an epoch that is being published. Then all other attempts of it are lost too.

        Runs under the ledger's lock, so that a stale driver cannot publish rows that this one reports as lost. Returns
        whether an attempt is lost, or the epoch is published.
        """

        def find(session: Session) -> Mapping[int, str] | None:
            row = self._row(session, requests, lock=True)
            if self._is_published(row, requests):
                return None
            lost = self._tables.find_lost(session, attempts_of(requests))
            if lost:
                self._ledger.revoke(session, self._context.generation)
                self._staging.forget(session, _stages(requests))
            return lost

        lost = self._tables.run("reading staging of", find)
        if lost is None:
            return True
        if lost:
            with_them = f"discarded with another attempt of its epoch: {next(iter(lost.values()))}"
            _signal(requests, {stage: lost.get(stage, with_them) for stage in _stages(requests)})
        return bool(lost)

    def _prepare_tables(self, requests: Sequence[Request]) -> None:
        """Create the tables for dead letters and for tombstones.

        A recorded epoch is finished before the target is opened, and the option may have been set after it was
        recorded.
        """
        own_tables = [table for table in (self._dead_letters, self._tables.tombstones) if table is not None]
        if not own_tables:
            return

        def missing(session: Session) -> list[DeadLetterTable | Tombstones]:
            self._row(session, requests)
            if self._dead_letters is not None:
                self._dead_letters.check(session, self._tables.target)
            return [table for table in own_tables if table.missing_ddl(session)]

        for table in self._tables.run("checking the sink's tables of", missing):
            if self._options.create_staging == "never":
                dead_letters = f"for dead letters is missing: {table.table} or {self._options.metadata_schema}.refused"
                other = f"for tombstones is missing or outdated: {table.table}"
                raise TargetError(
                    f"a table {dead_letters if table is self._dead_letters else other}",
                    step=self._context.step_id,
                    epoch=self._context.epoch,
                    why="create_staging is 'never'",
                    do=f"have a DBA run the output of {self._dialect.sink}.ddl()",
                )
            self._tables.make(ExpectedTables((self._options.metadata_schema, table.table.name), table.missing_ddl))

    def _publish(self, session: Session, requests: Sequence[Request], tables: Sequence[EpochTable]) -> None:
        context = self._context
        self._tries += 1
        row = self._row(session, requests, lock=True)
        if self._is_published(row, requests):
            return
        if row.revoked >= context.generation:
            raise _RevokedError
        reached("sql: publishing")
        new = self._tables.new(session, row, tables)
        self._make_way(session, new)
        self._moved = self._move(session, requests, tables)
        for table in tables:
            if table.tables.tombstones is not None:
                table.tables.tombstones.forget(session, table.rows)
        self._tables.record(session, context, new)
        self._ledger.published(session, context, self._moved.changed)
        self._staging.forget(session, _stages(requests))
        for request in requests:
            request.signal_committed()

    def _make_way(self, session: Session, new: Sequence[EpochTable]) -> None:
        """Delete existing rows in the first epoch of a table with `on_existing="overwrite"`."""
        if self._options.existing.others != "delete":
            return
        for table in new:
            Table(table.tables.dialect, table.tables.target).delete_rows(session)
            if table.tables.tombstones is not None:
                table.tables.tombstones.clear(session)

    def _move(self, session: Session, requests: Sequence[Request], tables: Sequence[EpochTable]) -> MovedRows:
        moves = [self.move_of(table) for table in tables]
        self._tables.hold(session, moves)
        if self._tables.unfit(session, tables):
            raise RowsLostError
        reached("sql: moving")
        staged = {request.committable.stage: request.committable.letters for request in requests}
        waiting = sum(staged.values())
        if self._dead_letters is None:
            self._check_no_dead_letters(waiting)
        else:
            self._dead_letters.check_bound(session, staged, epoch=self._context.epoch, step=self._context.step_id)
            if waiting and self._dead_letters.publish(session, list(staged)) != waiting:
                raise RowsLostError
        if self._tables.lacks_rows(session, tables):
            raise RowsLostError
        moved = self._move_together(session, moves)
        if moved is None:
            moved = MovedRows(0)
            for table, move in zip(tables, moves, strict=True):
                self._moving = table
                there = waiting + moved.dead_letters
                moved += TableMove(session, table, move, self._dead_letters, there, self._context).run()
        if self._tables.lacks_rows(session, tables, moved.changed + moved.dead_letters):
            raise RowsLostError
        return moved

    def _move_together(self, session: Session, moves: Sequence[Move]) -> MovedRows | None:
        """Move the rows of many tables with few round trips; return `None` if that moves none."""
        if len(moves) < 2:
            return None
        statements = [move.at_once(session) for move in moves]
        if None in statements:
            return None
        listed = [statement for some in statements for statement in some or ()]
        try:
            with session.savepoint():
                if self._dead_letters is not None and (first := self._dialect.words.at_once) is not None:
                    session.execute(first)
                changed = sum(self._dialect.all_changed(session, listed))
        except self._dialect.database.errors as error:
            if "rows" not in self._dialect.faults(error):
                raise
            # One table after another, which finds the row.
            return None
        rows = sum(move.count for move in moves)
        skipped = max(rows - changed, 0) if self._options.write_mode == "append" else 0
        return MovedRows(changed, skipped=skipped)

    def _check_no_dead_letters(self, count: int) -> None:
        if count:
            raise CommitRefusedError(
                f"{count} rows of this epoch are dead letters, but dead_letter_table is no longer set",
                step=self._context.step_id,
                epoch=self._context.epoch,
                do="set dead_letter_table again, at least until this epoch is published",
            )

    def _refusal(self, requests: Sequence[Request], error: Exception) -> OutfallError:
        table, name, refusal = self._find_refused(requests) or (
            None,
            "rows of this epoch",
            self._dialect.refusal(error),
        )
        # The epoch is recorded: its rows no longer come from the source.
        do = "change the table so that it takes the row, or set dead_letter_table, and start the query again"
        return self._refused(table, name, refusal.summary(RowLog(self._options.log_rows)), do)

    def _refused(self, table: SqlName | None, name: str, why: str, do: str) -> OutfallError:
        step, epoch = self._context.step_id, self._context.epoch
        nothing = f"{do}; nothing of the epoch is in {self._tables.where}"
        return CommitRefusedError(
            f"the table {table or self._ledger.table} rejects {name}", step=step, epoch=epoch, why=why, do=nothing
        )

    def _find_refused(self, requests: Sequence[Request]) -> tuple[SqlName, str, Refusal] | None:
        """Find a rejected row; return its table, its name and the reason; `None` if none is rejected now."""

        def find(session: Session, move: Move) -> tuple[SqlName, str, Refusal] | None:
            found = SortingMove(session, move.dialect, move.positioned_rows(session)).first()
            return None if found is None else (move.table, staged_row_name(session, move, found[0]), found[1])

        return self.move_again(requests, find)

    def _dropped(self, requests: Sequence[Request], tables: Sequence[EpochTable]) -> OutfallError | None:
        """Return the error of a table that is missing; `None` if none is."""
        step, epoch = self._context.step_id, self._context.epoch

        def find(session: Session) -> OutfallError | None:
            new = self._tables.new(session, self._row(session, requests), tables)
            for table in tables:
                name = table.tables.target
                if not self._dialect.columns(session, name):
                    return (
                        dropped_early(name, step, epoch)
                        if table in new
                        else dropped(name, step, one_of_many=bool(table.only))
                    )
            return None

        return self._tables.run("checking", find)

    def move_of(self, table: EpochTable) -> Move:
        """Return the move of the rows for a table."""
        return table.move()

    def move_again(self, requests: Sequence[Request], look: Callable[[Any, Move], T | None]) -> T | None:
        """Prepare the move into a table again, without a commit; return what `look` finds; `None` if it fails.

        Of many tables, those are tried first whose rows were moved when the error was raised.
        """
        every = self._tables.of_epoch(attempts_of(requests))
        first = [table for table in every if self._moving is not None and table.only == self._moving.only]
        for table in [*first, *(each for each in every if each not in first)]:

            def again(session: Session, table: EpochTable = table) -> T | None:
                new = self._tables.new(session, self._row(session, requests), [table])
                self._make_way(session, new)
                return look(session, self.move_of(table))

            try:
                found = self._tables.database.trial(again)
            except (self._dialect.database.errors, OutfallError):
                continue
            if found is not None:
                return found
        return None

    def _count(self) -> None:
        """Count the committed rows once, regardless of retries."""
        if self._tries > 1:
            self._context.metrics.add("retries", self._tries - 1)
        if self._moved is not None:
            self._context.metrics.add("rows_changed", self._moved.changed)
            if self._moved.dead_letters:
                self._context.metrics.add("dead_letters", self._moved.dead_letters)
            if self._moved.skipped:
                self._context.metrics.add("rows_skipped", self._moved.skipped)
            if self._moved.stale:
                self._context.metrics.add("changes_stale", self._moved.stale)

    def _revoke(self, session: Session, requests: Sequence[Request]) -> None:
        context = self._context
        row = self._row(session, requests, lock=True)
        if row.holds(context.epoch):
            raise LostCommittableError(
                f"epoch {context.epoch} is already in {self._ledger.table} and cannot be revoked",
                step=context.step_id,
                epoch=context.epoch,
                do="start the query again, which then finds the epoch in the ledger",
            )
        self._ledger.revoke(session, context.generation)
        self._staging.forget(session, _stages(requests))

    def _fenced(self) -> FencedError:
        context = self._context
        return FencedError(
            f"the ledger of {self._ledger.table} rejects rows of generation {context.generation}",
            step=context.step_id,
            epoch=context.epoch,
            why="a newer driver found that some of them were lost, and writes the epoch again",
            do="nothing, if the newer driver is the intended one",
        )


class _RevokedError(Exception):
    """The generation can no longer publish, because some of its rows were lost."""


def attempts_of(requests: Sequence[Request]) -> list[StagedRows]:
    """Return the attempts to commit."""
    return [request.committable for request in requests]


def _signal(requests: Sequence[Request], lost: Mapping[int, str]) -> None:
    for request in requests:
        if request.committable.stage in lost:
            request.signal_lost(lost[request.committable.stage])


def _stages(requests: Sequence[Request]) -> list[int]:
    return [request.committable.stage for request in requests]
