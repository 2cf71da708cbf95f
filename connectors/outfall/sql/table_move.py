"""Moves the rows of an epoch into one table. Those that it rejects become dead letters, or the error of the epoch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from outfall.capabilities import CommitterInitContext
from outfall.errors import OutfallError
from outfall.row_logging import RowLog
from outfall.sql.changes import MOVED, Problem
from outfall.sql.dead_letters import DeadLetterTable, row_log, too_many
from outfall.sql.dialect import Refusal
from outfall.sql.keyed import Move
from outfall.sql.moving import SortingMove, SwappedRowsError
from outfall.sql.names import SqlName
from outfall.sql.tables import EpochTable
from outfall.trace_points import reached

_MOST_OUT_OF_ORDER = 1000
"""Rows that may wait for others of their epoch without dead letters."""


@dataclass(frozen=True)
class MovedRows:
    """The result of moving rows of an epoch."""

    changed: int
    dead_letters: int = 0
    """The number of rows that publishing rejected. Tasks count those that staging rejected."""
    skipped: int = 0
    """The number of rows that a trigger or a rule skipped, as far as the server reports it."""
    stale: int = 0
    """The number of changes that were older than what was applied before, or the same."""

    def __add__(self, other: MovedRows) -> MovedRows:
        return MovedRows(
            self.changed + other.changed,
            self.dead_letters + other.dead_letters,
            self.skipped + other.skipped,
            self.stale + other.stale,
        )


class RowsLostError(Exception):
    """Staging has fewer rows than were recorded, so the transaction must not commit."""


class RejectedRowError(Exception):
    """A row of a table can be neither applied nor set aside. `name` describes it."""

    def __init__(self, table: SqlName, name: str, why: str, do: str) -> None:
        super().__init__(name)
        self.table = table
        self.name = name
        self.why = why
        self.do = do


class TableMove:
    """Moves the rows of a table with a session, in the transaction of the epoch.

    `dead_letters` takes the rejected rows; there are already so many of the epoch.
    """

    def __init__(
        self,
        session: Any,
        table: EpochTable,
        move: Move,
        dead_letters: DeadLetterTable | None,
        already: int,
        context: CommitterInitContext,
    ) -> None:
        self._session = session
        self._table = table
        self._move = move
        self._dead_letters = dead_letters
        self._already = already
        self._context = context
        self._options = table.tables.options
        self._dialect = table.tables.dialect
        self._aside = 0
        """The number of rejected rows."""

    def run(self) -> MovedRows:
        """Move the rows. Raises `RejectedRowError`, `RowsLostError` and the errors of the driver."""
        move = self._move
        if self._dead_letters is None:
            self._refuse(*move.inapplicable(self._session, 1))
            changed = self._in_accepted_order()
            self._refuse(MOVED, self._moved_keys(1))
            self._check_all_there(changed)
            return self._moved(changed)
        self._set_ties_aside(self._dead_letters)
        together: int | None = None
        try:
            with self._session.savepoint():
                # A constraint that fails at COMMIT would name no row.
                together = move.whole(self._session, at_once=True)
        except self._dialect.database.errors as error:
            faults = self._dialect.faults(error)
            # If the table no longer fits any staged row, no row is a dead letter.
            if "rows" not in faults or ("mismatch" in faults and self._lost()):
                raise
        if together is None:  # not within the handler, whose error would appear in every traceback, with the row
            return self._in_sorted_order(self._dead_letters)
        self._set_moved_aside(self._dead_letters)
        self._check_all_there(together)
        return self._moved(together)

    def _moved(self, changed: int, settled: int | None = None) -> MovedRows:
        """Return the result. A trigger or a rule of the table skips the rows of an append that are not settled."""
        settled = changed if settled is None else settled
        skipped = max(self._move.count - settled, 0) if self._options.write_mode == "append" else 0
        return MovedRows(changed, self._aside, skipped, self._move.stale)

    def _lost(self) -> bool:
        return bool(self._table.tables.staging.find_lost(self._session, self._table.attempts, self._dead_letters))

    def _refuse(self, problem: Problem, places: Sequence[str]) -> None:
        for place in places:
            name = staged_row_name(self._session, self._move, place)
            raise RejectedRowError(self._table.tables.target, name, problem.reason, problem.do)

    def _in_accepted_order(self) -> int:
        """Move all rows, in an order in which the table accepts them if it does not accept them at once."""
        try:
            with self._session.savepoint():
                return self._move.whole(self._session)
        except self._dialect.database.errors as error:
            ordered = "rows" in self._dialect.faults(error) and self._dialect.refusal(error).may_be_accepted_later
            if not (ordered and self._options.by_key):
                raise
            refused = error
        sorting = self._sorting()
        for _ in self._sorted(sorting):
            if len(sorting.refused) > _MOST_OUT_OF_ORDER:
                break
        if sorting.refused:
            raise refused
        return sorting.changed

    def _in_sorted_order(self, dead_letters: DeadLetterTable) -> MovedRows:
        """Move the accepted rows, and write the rejected ones as dead letters."""
        self._check_all_there(None)
        sorting = self._sorting()
        for refusal in self._sorted(sorting):
            if self._waiting + len(sorting.refused) > dead_letters.most:
                raise self._too_many(list(sorting.refused)[-1], refusal)
        for place, refusal in sorting.refused.items():
            self._set_aside(dead_letters, place, refusal)
        self._set_moved_aside(dead_letters)
        reached("sql: set aside")
        return self._moved(sorting.changed, sorting.changed + len(sorting.refused))

    def _sorting(self) -> SortingMove:
        move = self._move
        return SortingMove(self._session, move.dialect, move.positioned_rows(self._session))

    def _sorted(self, sorting: SortingMove) -> Iterator[Refusal]:
        """Move all accepted rows. Yields each rejection."""
        try:
            yield from sorting.run()
        except SwappedRowsError as error:
            name = staged_row_name(self._session, self._move, error.place)
            log = RowLog(self._options.log_rows)
            raise RejectedRowError(
                self._move.table,
                name,
                f"it exchanges values with another row of the epoch under a unique constraint, which the server checks"
                f" row by row: {error.refusal.summary(log)}",
                "make the constraint deferrable, such as ALTER TABLE … DROP CONSTRAINT c, ADD CONSTRAINT c UNIQUE (…)"
                " DEFERRABLE INITIALLY DEFERRED, or the index non-unique; then start the query again, which publishes"
                " the recorded epoch",
            ) from None

    def _check_all_there(self, changed: int | None) -> None:
        move = self._move
        if move.is_one_of_many:
            return  # all tables together
        # For appends, the row count shows that no row was lost, unless triggers or rules of the table skip rows.
        known = self._options.write_mode == "append" and changed == sum(move.expected.values())
        if not known and self._table.tables.staging.counts(self._session, move.expected) != move.expected:
            raise RowsLostError

    # --- dead letters

    @property
    def _waiting(self) -> int:
        return self._already + self._aside

    def _set_aside(self, dead_letters: DeadLetterTable, place: str, refusal: Refusal) -> None:
        row, context = self._move.row_text(self._session, place), self._context
        dead_letters.add(self._session, row, refusal, step=context.step_id, epoch=context.epoch)
        self._aside += 1

    def _set_ties_aside(self, dead_letters: DeadLetterTable) -> None:
        """Write changes that nothing orders, or whose values are not known, as dead letters.

        Without them, older changes of their keys are the newest, and may be tied too.
        """
        move = self._move
        while (found := move.inapplicable(self._session, dead_letters.most - self._waiting + 1))[1]:
            problem, places = found
            refusal = self._dialect.stored_refusal(problem.of_letter, None, None)
            if self._waiting + len(places) > dead_letters.most:
                raise self._too_many(places[-1], refusal)
            self._check_all_there(None)
            for place in places:
                self._set_aside(dead_letters, place, refusal)
            move.leave_out(self._session, places)

    def _moved_keys(self, most: int) -> Sequence[str]:
        return self._move.moved_keys(self._session, most) if self._options.sequence_kind == "kafka" else ()

    def _set_moved_aside(self, dead_letters: DeadLetterTable) -> None:
        """Write changes of keys that have moved to another partition as dead letters.

        They changed nothing, because they seem older than what is applied.
        """
        refusal = self._dialect.stored_refusal(MOVED.reason, None, None)
        places = self._moved_keys(dead_letters.most - self._waiting + 1)
        if self._waiting + len(places) > dead_letters.most:
            raise self._too_many(places[-1], refusal)
        for place in places:
            self._set_aside(dead_letters, place, refusal)

    def _too_many(self, place: str, refusal: Refusal) -> OutfallError:
        name, log = staged_row_name(self._session, self._move, place), row_log(self._session, self._dialect)
        most, context = self._options.max_dead_letters, self._context
        return too_many(most, name, refusal, log, step=context.step_id, epoch=context.epoch)


def staged_row_name(session: Any, move: Move, place: str) -> str:
    """Return a description of a staged row, as `log_rows` permits."""
    found = session.execute(move.row_text(session, place)).fetchone()
    # A server may have no text for a row that is too large.
    return row_log(session, move.dialect).name("a row", (found and found[0]) or "")
