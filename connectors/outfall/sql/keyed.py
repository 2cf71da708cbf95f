"""The move of an epoch's rows from staging into the table: all at once, or those that the table accepts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from outfall.sql.changes import KEPT, KEY_CHANGED, MOVED, UNKNOWN, Problem, is_creation, tied
from outfall.sql.dialect import Dialect, StagedRows, StagedTable, compose
from outfall.sql.names import SqlName
from outfall.sql.options import ROW, STAGE
from outfall.sql.session import AT_ONCE, Statement
from outfall.sql.statements import Statements
from outfall.sql.words import Selection


@dataclass(frozen=True)
class _Survey:
    """What the changes of an epoch are: the numbers of keys to write and to remove, and of rows that may be tied."""

    writes: int
    removals: int
    alike: int
    now: object
    """The time of the server."""
    keeping: int
    """The number of updates that keep a value."""
    moves: int
    """The number of rows that come from another partition than the next newer one of their key, by their sequences."""


class Move:
    """Moves the rows of attempts, at least one, from staging into the table. Runs in the caller's transaction.

    Publications of changes to one table, those with `tombstones`, wait for one another: a statement does not see the
    tombstones of a transaction that commits while it runs.
    """

    stale = 0
    """The number of changes that changed nothing, because a newer one of their key, or the same one, was applied
    before. Known once the rows, or their places, are moved."""

    def __init__(
        self,
        dialect: Dialect,
        table: SqlName,
        staging: SqlName,
        attempts: Sequence[StagedRows],
        tombstones: SqlName | None = None,
        only: StagedTable | None = None,
    ) -> None:
        self.expected = {staged.stage: staged.rows for staged in attempts}
        self.count = sum(self.expected.values()) if only is None else only.rows
        """The number of rows to move."""
        # On Spark, all attempts have the columns of one DataFrame; elsewhere, they may differ.
        self.columns = tuple(dict.fromkeys(name for staged in attempts for name in staged.columns))
        self.table = table
        self.staging = staging
        self.dialect = dialect
        self._tombstones = tombstones
        self._only = only
        self._statements: Statements | None = None
        self._surveyed: _Survey | None = None
        self._set_aside: dict[str, int] = {}
        """The attempts of the rows that `inapplicable` has returned."""
        self._each_applied = False
        """Whether the newest change of each key was applied."""
        self._kept: Sequence[str] = ()
        """The columns that updates keep."""

    @property
    def is_one_of_many(self) -> bool:
        """Whether the transaction moves rows of other tables too."""
        return self._only is not None

    @property
    def all(self) -> Selection:
        """All rows of the attempts for the table."""
        return self.of_table(self.dialect.words.all(list(self.expected)))

    def of_table(self, rows: Selection) -> Selection:
        """Return those of a selection that are for the table."""
        return rows if self._only is None else self.dialect.words.of_table(rows, self._only.spelled)

    def statements(self, session: Any) -> Statements:
        """Return the statements that move rows."""
        dialect, made = self.dialect, self._statements
        conflicts = dialect.conflicts(session, self.table, self.columns)
        if made is None or made.conflicts != conflicts:
            names = (self.table, self.staging, self.columns, self._tombstones)
            made = self._statements = Statements(dialect.words, dialect.options, *names, conflicts)
        return made

    def hold(self, session: Any) -> None:
        """Lock the tables as moving rows does, so that no other session alters them before."""
        self.wait_for_others(session)
        session.hold(self.holding(session))

    def wait_for_others(self, session: Any) -> None:
        """Wait for other publications of changes to the table."""
        if self._tombstones is not None:
            ledger = self._tombstones.sibling(self.dialect.options.metadata_schema, "ledger")
            given = {"table": str(self._tombstones), "name": self._tombstones.name}
            session.execute(compose(self.dialect.words.lock, ledger=ledger.sql), given)

    def holding(self, session: Any) -> list[Statement]:
        """Return the statements that lock the tables."""
        # By plans of the same statements, because LOCK and SELECT need other privileges.
        plans = self.dialect.words.held(self.statements(session)) if self.columns else []
        return [(f"EXPLAIN {each}", ()) for each in plans]

    def at_once(self, session: Any) -> list[Statement] | None:
        """Return the statements that move all rows; `None` if each depends on the result of the one before it."""
        if self._tombstones is not None:
            return None
        rows = self.all
        return [(statement, rows.given) for statement in self.statements(session).moving(rows)]

    def whole(self, session: Any, *, at_once: bool = False) -> int:
        """Move all rows; return the number of changed rows of the table.

        With `at_once`, constraints that the COMMIT would check are checked here.
        """
        if at_once and (first := self.dialect.words.at_once) is not None:
            session.execute(first)
        if not self.columns:
            return 0
        statements, rows = self.statements(session), self.all
        if self._tombstones is None:
            return self.apply(session, statements, rows)
        survey, given = self._survey(session), self._given(session, rows)
        bury, remove, write = statements.moving(rows)
        tombstones = self._changed(session, bury, given) if survey.removals else 0
        # Not by the number of tombstones, which is only what the server says.
        removed = self._changed(session, remove, given) if survey.removals else 0
        written = self._changed(session, write, given) if survey.writes else 0
        self.stale = survey.writes + survey.removals - tombstones - written
        self._each_applied = not self.stale
        return removed + written

    def apply(self, session: Any, statements: Statements, rows: Selection) -> int:
        """Move some rows; return the number of changed rows of the table."""
        moving, given = statements.moving(rows), self._given(session, rows)
        if self._tombstones is not None:
            session.execute(moving.pop(0), given)
        return sum(self._changed(session, each, given) for each in moving)

    def positioned_rows(self, session: Any) -> PositionedRows:
        """Return the rows by position, for moving those that the table accepts."""
        if self._tombstones is not None:
            self._survey(session)
        return self.dialect.positioned_rows(session, self)

    def row_text(self, session: Any, place: str) -> str:
        """Return a query for the JSON text of one staged row, encoded by the server."""
        shown = {name: name for name in self.columns} | self.dialect.options.not_stored
        return self.dialect.row_text(session, self.staging, shown, place)

    def inapplicable(self, session: Any, most: int) -> tuple[Problem, Sequence[str]]:
        """Return the addresses of changes that cannot be applied, most of them the newest of their key, and why.

        At most so many, with one reason. They must be left out before the others are moved. Some have the sequence of
        another one and differ from it, some keep a value that is not known, or a newer one of their key may keep
        another value than theirs.
        """
        nothing: tuple[Problem, Sequence[str]] = (tied(self.dialect.options), [])
        if self._tombstones is None or not self.columns:
            return nothing
        survey, statements = self._survey(session), self.statements(session)
        for column in self._kept:
            query = statements.unknown(self.all, column)
            given = {**self.all.given, "most": most, "kept": _between(column)}
            found = session.execute(query, given).fetchall()
            created = [row for row in found if is_creation(row[2])]
            if some := created or found:
                self._set_aside |= {place: stage for place, stage, _ in some}
                return KEY_CHANGED if created else UNKNOWN, [place for place, _, _ in some]
        if self._kept and self.dialect.options.sequence_kind == "kafka":
            # Such a row may have replaced the value of the table that a newer one of its key keeps.
            query = statements.moved(self.all, stored=True)
            if places := self._found(session, query, {**self.all.given, "most": most}):
                return MOVED, places
        if not survey.alike:
            return nothing
        return nothing[0], self._found(session, statements.tied(self.all), {**self.all.given, "most": most})

    def _found(self, session: Any, query: str, given: Mapping[str, Any]) -> Sequence[str]:
        found = dict(session.execute(query, given).fetchall())
        self._set_aside |= found
        return list(found)

    def moved_keys(self, session: Any, most: int) -> Sequence[str]:
        """Return the addresses of rows that are older than one of their key from another partition of the topic.

        At most so many. The others were moved before. Needs the sequences of `sequence_kind="kafka"`.
        """
        if self._tombstones is None or not self.columns:
            return []
        if self._each_applied and not self._survey(session).moves:
            # All rows of a key come from the partition of the one that was applied.
            return []
        query = self.statements(session).moved(self.all)
        found = session.execute(query, {**self.all.given, "most": most}).fetchall()
        return [place for place, _ in found]

    def leave_out(self, session: Any, places: Sequence[str]) -> None:
        """Leave out the rows at some addresses, which `inapplicable` has returned."""
        for first in range(0, len(places), AT_ONCE):
            rows = self.dialect.words.at(places[first : first + AT_ONCE])
            session.execute(compose("DELETE FROM {} WHERE {}", self.staging.sql, rows.condition), rows.given)
        for place in places:
            self.expected[self._set_aside[place]] -= 1
            self.count -= 1
        self._surveyed = None

    def _changed(self, session: Any, statement: str, given: Mapping[str, Any]) -> int:
        return self.dialect.rows_changed(session, statement, session.execute(statement, given))

    def _given(self, session: Any, rows: Selection) -> Mapping[str, Any]:
        return rows.given if self._tombstones is None else {**rows.given, "now": self._survey(session).now}

    def _survey(self, session: Any) -> _Survey:
        if self._surveyed is None:
            query = self.statements(session).survey(self.all)
            found = session.execute(query, {**self.all.given, "mark": KEPT}).fetchone()
            self._surveyed = _Survey(*found)
            if self._surveyed.keeping:
                self._keep(session)
        return self._surveyed

    def _keep(self, session: Any) -> None:
        """Give updates the values that they keep. Before rows have positions, since an update may move them."""
        statements, rows = self.statements(session), self.all
        query = statements.operations_that_keep(rows)
        found = session.execute(query, {**rows.given, "mark": KEPT}).fetchall()
        names = {name for (operation,) in found for name in operation.split(KEPT)[1:]}
        self._kept = [name for name in self.columns if name in names]
        for column in self._kept:
            session.execute(statements.keep(rows, column), {**rows.given, "kept": _between(column)})


def _between(column: str) -> str:
    return f"{KEPT}{column}{KEPT}"


class PositionedRows(ABC):
    """The rows that are moved first, by position from 0. Valid in the transaction that created it.

    Of several rows with one key, an upsert moves the last one first, as the key's column compares them.
    """

    count: int
    """The number of positions. Some may have no row."""

    def __init__(self, session: Any, move: Move) -> None:
        self._session = session
        self._move = move
        self._statements = move.statements(session)

    def move(self, low: int, high: int) -> int:
        """Move the rows from a position to another (exclusive); return how many rows of the table were changed."""
        return self._move.apply(self._session, self._statements, self._between(low, high))

    def move_one(self, place: str) -> int:
        """Move the row at an address."""
        return self._move.apply(self._session, self._statements, self._at(place))

    @abstractmethod
    def _between(self, low: int, high: int) -> Selection:
        """Return the rows from a position to another (exclusive)."""

    def _at(self, place: str) -> Selection:
        """Return the row at an address."""
        return self._move.dialect.words.at([place])

    @abstractmethod
    def place(self, position: int) -> str:
        """Return the address at a position."""

    def replaced(self, place: str) -> str | None:
        """Return the address of the row that this one replaces; `None` if there is none."""
        return None

    def move_together(self, places: Sequence[str]) -> Iterator[Callable[[], int]]:
        """Yield ways to move rows that are rejected one by one, because they exchange values of a unique constraint.

        Each is tried in a savepoint, and raises the driver's error if the table rejects a row.
        """
        return iter(())

    def make_room(self, places: Sequence[str]) -> bool:
        """Remove the rows of the table that have the keys of these rows, to see what the table accepts without them.

        Returns whether it did: rows cannot exchange values in a table without a second unique index.
        """
        return False


_RANKS = "_outfall_ranks"
"""A temporary table, which a session keeps: to drop it would end the transaction of some databases."""


class RowsByOrder(PositionedRows):
    """All rows in the order in which they are written, from a temporary table of their addresses, which are numbers.

    A previous row of a key was written earlier, and stays if the next one is rejected.
    """

    def __init__(self, session: Any, move: Move, order: str | None) -> None:
        """Rank the rows by a column, if there is one, and by attempt and row."""
        super().__init__(session, move)
        words = move.dialect.words
        self._address = [f"address_{number}" for number in range(len(words.address))]
        fields = ", ".join(f"{name} BIGINT" for name in self._address)
        create = "CREATE TEMPORARY TABLE IF NOT EXISTS {} (place BIGINT PRIMARY KEY, {})"
        session.execute(compose(create, _RANKS, fields))
        session.execute(compose("DELETE FROM {}", _RANKS))
        statement = compose(
            "INSERT INTO {} SELECT ROW_NUMBER() OVER (ORDER BY {}) - 1, {} FROM {} WHERE {}",
            _RANKS, words.listed([*filter(None, [order]), STAGE, ROW]), ", ".join(words.address), move.staging.sql,
            move.all.condition,
        )  # fmt: skip
        session.execute(statement, move.all.given)
        self.count = int(session.execute(compose("SELECT COUNT(*) FROM {}", _RANKS)).fetchone()[0])

    def _between(self, low: int, high: int) -> Selection:
        columns, address = ", ".join(self._address), ", ".join(self._move.dialect.words.address)
        some = compose("SELECT {} FROM {} WHERE place >= {} AND place < {}", columns, _RANKS, low, high)
        return Selection(f"({address}) IN ({some})")

    def place(self, position: int) -> str:
        text = self._move.dialect.words.place.format(*self._address)
        query = compose("SELECT {} FROM {} WHERE place = {}", text, _RANKS, position)
        return str(self._session.execute(query).fetchone()[0])
