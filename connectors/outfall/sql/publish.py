"""Publishes an epoch: one transaction moves its rows from staging into the table, and updates the ledger.

The dialect moves all rows with one statement. If it rejects some, `moving` moves the others, and the rejected ones
become dead letters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from outfall.capabilities import CommitRequest, Committer, CommitterInitContext
from outfall.errors import CommitRefusedError, FencedError, LostCommittableError, OutfallError, TargetError
from outfall.row_logging import RowLog
from outfall.sql.changes import MOVED
from outfall.sql.database import ExpectedTables, Session
from outfall.sql.dead_letters import DeadLetterTable, row_log, too_many
from outfall.sql.dialect import Refusal, StagedRows
from outfall.sql.keyed import Move
from outfall.sql.ledger import LedgerRow
from outfall.sql.moving import SortingMove, SwappedRowsError
from outfall.sql.table import Table, dropped
from outfall.sql.target import StepTables
from outfall.sql.tombstones import Tombstones
from outfall.trace_points import reached

_MOST_OUT_OF_ORDER = 1000
"""Rows that may wait for others of their epoch without dead letters."""

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


@dataclass(frozen=True)
class _Moved:
    """The result of moving the rows of an epoch."""

    changed: int
    dead_letters: int = 0
    """The number of rows that publishing rejected. Tasks count those that staging rejected."""
    skipped: int = 0
    """The number of rows that a trigger or a rule skipped, as far as the server reports it."""
    stale: int = 0
    """The number of changes that were older than what was applied before, or the same."""


class EpochCommitter(StagedCommitter):
    """Moves the rows of winning attempts from staging into the table, and records the epoch, in one transaction.

    If two drivers publish the same epoch, the lock of the ledger row serializes them, and the second one finds the
    epoch.
    """

    def __init__(self, tables: StepTables[Any], context: CommitterInitContext) -> None:
        super().__init__(tables, context)
        self._table = tables.target
        self._options = tables.options
        self._dead_letters = tables.dead_letters
        self._tombstones = tables.tombstones
        self._moved: _Moved | None = None
        self._tries = 0

    def commit(self, requests: Sequence[Request]) -> None:
        self._prepare_tables(requests)
        try:
            self._tables.database.run_raw(
                "publishing to",
                lambda session: self._publish(session, requests),
                foreseen=[self._ledger.reading()],
                looks=self._options.by_key,
            )
        except _RowsLostError:
            self._signal_lost(requests)
        except _RefusedRowError as error:
            refusal = self._refused(error.name, error.why, error.do)
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
            elif "table" in faults and self._is_dropped(requests):
                raise dropped(self._table, self._context.step_id) from error
            else:
                doing = f"publishing to {self._table}"
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
            return {} if row.holds(self._context.epoch) else self._find_lost(session, requests)

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
            lost = self._find_lost(session, requests)
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
        own_tables = [table for table in (self._dead_letters, self._tombstones) if table is not None]
        if not own_tables:
            return

        def missing(session: Session) -> list[DeadLetterTable | Tombstones]:
            self._row(session, requests)
            if self._dead_letters is not None:
                self._dead_letters.check(session, self._table)
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

    def _publish(self, session: Session, requests: Sequence[Request]) -> None:
        context = self._context
        self._tries += 1
        row = self._row(session, requests, lock=True)
        if self._is_published(row, requests):
            return
        if row.revoked >= context.generation:
            raise _RevokedError
        reached("sql: publishing")
        self._make_way(session, row)
        self._moved = self._move(session, requests)
        if self._tombstones is not None:
            self._tombstones.forget(session, sum(request.committable.rows for request in requests))
        self._ledger.published(session, context, self._moved.changed)
        self._staging.forget(session, _stages(requests))
        for request in requests:
            request.signal_committed()

    def _make_way(self, session: Session, row: LedgerRow) -> None:
        """Delete existing rows in the first epoch with `on_existing="overwrite"`."""
        if row.epoch is None and self._options.existing.others == "delete":
            Table(self._dialect, self._table).delete_rows(session)
            if self._tombstones is not None:
                self._tombstones.clear(session)

    def _move(self, session: Session, requests: Sequence[Request]) -> _Moved:
        move = self._moving(requests)
        move.hold(session)
        if any(self._staging.unfit(session, attempts_of(requests)).values()):
            raise _RowsLostError
        reached("sql: moving")
        staged = {request.committable.stage: request.committable.letters for request in requests}
        if self._dead_letters is None:
            self._check_no_dead_letters(sum(staged.values()))
            problem, places = move.inapplicable(session, 1)
            for place in places:
                raise _RefusedRowError(self.row_name(session, move, place), problem.reason, problem.do)
            moved = self._move_accepted(session, move)
            for place in self._moved_keys(session, move, 1):
                raise _RefusedRowError(self.row_name(session, move, place), MOVED.reason, MOVED.do)
            self._check_all_there(session, move, moved)
            return _Moved(moved, skipped=self._skipped(move, moved), stale=move.stale)
        waiting = sum(staged.values())
        self._dead_letters.check_bound(session, staged, epoch=self._context.epoch, step=self._context.step_id)
        if waiting and self._dead_letters.publish(session, list(staged)) != waiting:
            raise _RowsLostError
        aside = self._set_ties_aside(session, move, self._dead_letters, waiting)
        changed: int | None = None
        try:
            with session.savepoint():
                # A constraint that fails at COMMIT would name no row.
                changed = move.whole(session, at_once=True)
        except self._dialect.database.errors as error:
            faults = self._dialect.faults(error)
            # If the table no longer fits any staged row, no row is a dead letter.
            if "rows" not in faults or ("mismatch" in faults and self._find_lost(session, requests)):
                raise
        if changed is None:  # not within the handler, whose error would appear in every traceback, with the row
            return self._move_sorting(session, move, self._dead_letters, waiting, aside)
        aside += self._set_moved_aside(session, move, self._dead_letters, waiting + aside)
        self._check_all_there(session, move, changed)
        return _Moved(changed, aside, self._skipped(move, changed), move.stale)

    def _move_accepted(self, session: Session, move: Move) -> int:
        """Move all rows, in an order in which the table accepts them if it does not accept them at once."""
        try:
            with session.savepoint():
                return move.whole(session)
        except self._dialect.database.errors as error:
            ordered = "rows" in self._dialect.faults(error) and self._dialect.refusal(error).may_be_accepted_later
            if not (ordered and self._options.by_key):
                raise
            refused = error
        sorting = SortingMove(session, self._dialect, move.positioned_rows(session))
        for _ in self._sorted(session, move, sorting):
            if len(sorting.refused) > _MOST_OUT_OF_ORDER:
                break
        if sorting.refused:
            raise refused
        return sorting.changed

    def _sorted(self, session: Session, move: Move, sorting: SortingMove) -> Iterator[Refusal]:
        """Move all accepted rows. Yields each rejection."""
        try:
            yield from sorting.run()
        except SwappedRowsError as error:
            name, log = self.row_name(session, move, error.place), RowLog(self._options.log_rows)
            raise _RefusedRowError(
                name,
                f"it exchanges values with another row of the epoch under a unique constraint, which the server checks"
                f" row by row: {error.refusal.summary(log)}",
                "make the constraint deferrable, such as ALTER TABLE … DROP CONSTRAINT c, ADD CONSTRAINT c UNIQUE (…)"
                " DEFERRABLE INITIALLY DEFERRED, or the index non-unique; then start the query again, which publishes"
                " the recorded epoch",
            ) from None

    def _set_ties_aside(self, session: Session, move: Move, dead_letters: DeadLetterTable, already: int) -> int:
        """Write changes that nothing orders, or whose values are not known, as dead letters; return their number.

        Without them, older changes of their keys are the newest, and may be tied too.
        """
        count = 0
        while (found := move.inapplicable(session, dead_letters.most - already - count + 1))[1]:
            problem, places = found
            refusal = self._dialect.stored_refusal(problem.reason, None, None)
            if already + count + len(places) > dead_letters.most:
                raise self._too_many(session, move, places[-1], refusal)
            self._check_all_there(session, move, None)
            for place in places:
                row = move.row_text(session, place)
                dead_letters.add(session, row, refusal, step=self._context.step_id, epoch=self._context.epoch)
            move.leave_out(session, places)
            count += len(places)
        return count

    def _moved_keys(self, session: Session, move: Move, most: int) -> Sequence[str]:
        return move.moved_keys(session, most) if self._options.sequence_kind == "kafka" else ()

    def _set_moved_aside(self, session: Session, move: Move, dead_letters: DeadLetterTable, already: int) -> int:
        """Write changes of keys that have moved to another partition as dead letters; return their number.

        They changed nothing, because they seem older than what is applied.
        """
        refusal = self._dialect.stored_refusal(MOVED.reason, None, None)
        places = self._moved_keys(session, move, dead_letters.most - already + 1)
        if already + len(places) > dead_letters.most:
            raise self._too_many(session, move, places[-1], refusal)
        for place in places:
            row = move.row_text(session, place)
            dead_letters.add(session, row, refusal, step=self._context.step_id, epoch=self._context.epoch)
        return len(places)

    def _move_sorting(
        self, session: Session, move: Move, dead_letters: DeadLetterTable, waiting: int, aside: int
    ) -> _Moved:
        """Move the accepted rows, and write the rejected ones as dead letters.

        There are dead letters already: from tasks (`waiting`), and from before the move (`aside`).
        """
        self._check_all_there(session, move, None)
        sorting = SortingMove(session, self._dialect, move.positioned_rows(session))
        for refusal in self._sorted(session, move, sorting):
            if waiting + aside + len(sorting.refused) > dead_letters.most:
                raise self._too_many(session, move, list(sorting.refused)[-1], refusal)
        for place, refusal in sorting.refused.items():
            row = move.row_text(session, place)
            dead_letters.add(session, row, refusal, step=self._context.step_id, epoch=self._context.epoch)
        aside += self._set_moved_aside(session, move, dead_letters, waiting + aside + len(sorting.refused))
        reached("sql: set aside")
        refused = len(sorting.refused)
        return _Moved(sorting.changed, aside + refused, self._skipped(move, sorting.changed + refused), move.stale)

    def _too_many(self, session: Session, move: Move, place: str, refusal: Refusal) -> OutfallError:
        name, log = self.row_name(session, move, place), row_log(session, self._dialect)
        most, context = self._options.max_dead_letters, self._context
        return too_many(most, name, refusal, log, step=context.step_id, epoch=context.epoch)

    def _skipped(self, move: Move, settled: int) -> int:
        """Return how many rows of an append a trigger or a rule of the table has skipped."""
        return max(sum(move.expected.values()) - settled, 0) if self._options.write_mode == "append" else 0

    def _check_no_dead_letters(self, count: int) -> None:
        if count:
            raise CommitRefusedError(
                f"{count} rows of this epoch are dead letters, but dead_letter_table is no longer set",
                step=self._context.step_id,
                epoch=self._context.epoch,
                do="set dead_letter_table again, at least until this epoch is published",
            )

    def _check_all_there(self, session: Session, move: Move, changed: int | None) -> None:
        # For appends, the row count shows that no row was lost, unless triggers or rules of the table skip rows.
        known = self._options.write_mode == "append" and changed == sum(move.expected.values())
        if not known and self._staging.counts(session, move.expected) != move.expected:
            raise _RowsLostError

    def _refusal(self, requests: Sequence[Request], error: Exception) -> OutfallError:
        name, refusal = self._named(requests) or ("rows of this epoch", self._dialect.refusal(error))
        # The epoch is recorded: its rows no longer come from the source.
        do = "change the table so that it takes the row, or set dead_letter_table, and start the query again"
        return self._refused(name, refusal.summary(RowLog(self._options.log_rows)), do)

    def _refused(self, name: str, why: str, do: str) -> OutfallError:
        step, epoch = self._context.step_id, self._context.epoch
        nothing = f"{do}; nothing of the epoch is in the table"
        return CommitRefusedError(
            f"the table {self._table} rejects {name}", step=step, epoch=epoch, why=why, do=nothing
        )

    def _named(self, requests: Sequence[Request]) -> tuple[str, Refusal] | None:
        """Find a rejected row; return `None` if none is rejected now."""

        def find(session: Session, move: Move) -> tuple[str, Refusal] | None:
            found = SortingMove(session, self._dialect, move.positioned_rows(session)).first()
            return None if found is None else (self.row_name(session, move, found[0]), found[1])

        return self.move_again(requests, find)

    def row_name(self, session: Session, move: Move, place: str) -> str:
        """Return a description of a staged row, as `log_rows` permits."""
        found = session.execute(move.row_text(session, place)).fetchone()
        # A server may have no text for a row that is too large.
        return row_log(session, self._dialect).name("a row", (found and found[0]) or "")

    def _is_dropped(self, requests: Sequence[Request]) -> bool:
        """Return whether the table is missing, although rows of this query were in it."""

        def find(session: Session) -> bool:
            return self._row(session, requests).epoch is not None and not self._dialect.columns(session, self._table)

        return self._tables.run("checking", find)

    def move_again(self, requests: Sequence[Request], look: Callable[[Any, Move], T]) -> T | None:
        """Prepare the move again, without a commit; return what `look` finds; `None` if it fails."""

        def again(session: Session) -> T:
            self._make_way(session, self._row(session, requests))
            return look(session, self._moving(requests))

        try:
            return self._tables.database.trial(again)
        except (self._dialect.database.errors, OutfallError):
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

    def _moving(self, requests: Sequence[Request]) -> Move:
        tombstones = None if self._tombstones is None else self._tombstones.table
        return Move(self._dialect, self._table, self._staging.table, attempts_of(requests), tombstones)

    def _revoke(self, session: Session, requests: Sequence[Request]) -> None:
        context = self._context
        row = self._row(session, requests, lock=True)
        if row.holds(context.epoch):
            raise LostCommittableError(
                f"epoch {context.epoch} is already in {self._table} and cannot be revoked",
                step=context.step_id,
                epoch=context.epoch,
                do="start the query again, which then finds the epoch in the ledger",
            )
        self._ledger.revoke(session, context.generation)
        self._staging.forget(session, _stages(requests))

    def _find_lost(self, session: Session, requests: Sequence[Request]) -> Mapping[int, str]:
        return self._staging.find_lost(session, attempts_of(requests), self._dead_letters)

    def _fenced(self) -> FencedError:
        context = self._context
        return FencedError(
            f"the ledger of {self._table} rejects rows of generation {context.generation}",
            step=context.step_id,
            epoch=context.epoch,
            why="a newer driver found that some of them were lost, and writes the epoch again",
            do="nothing, if the newer driver is the intended one",
        )


class _RowsLostError(Exception):
    """Staging has fewer rows than were recorded, so the transaction must not commit."""


class _RefusedRowError(Exception):
    """A row can be neither applied nor set aside. `name` describes it."""

    def __init__(self, name: str, why: str, do: str) -> None:
        super().__init__(name)
        self.name = name
        self.why = why
        self.do = do


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
