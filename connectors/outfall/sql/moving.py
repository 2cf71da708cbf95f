"""Moves those rows of an epoch that the table accepts, and finds the others.

A statement reports that one of its rows was rejected, but not which one, nor whether there are others. They are found
by bisection. Each attempt runs in a savepoint, so a failed one is undone without the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from outfall.sql.database import Session
from outfall.sql.dialect import Dialect, Refusal, isolate
from outfall.sql.keyed import PositionedRows


class SwappedRowsError(Exception):
    """Rows exchange values of a unique constraint, each of which is rejected as long as the other has its value.

    `place` is the address of one of them.
    """

    def __init__(self, place: str, refusal: Refusal) -> None:
        super().__init__(place)
        self.place = place
        self.refusal = refusal


class SortingMove:
    """Moves rows by bisection with savepoints, which finds the rejected rows and moves all others.

    Of several rows with one key, an upsert uses the last; if that is rejected, the one before it. The transaction of
    the session has locked staging.
    """

    def __init__(self, session: Session, dialect: Dialect, rows: PositionedRows) -> None:
        self.changed = 0
        """The number of changed rows of the table."""
        self.refused: dict[str, Refusal] = {}
        """The rejected rows, by address."""
        self._session = session
        self._dialect = dialect
        self._rows = rows

    def first(self) -> tuple[str, Refusal] | None:
        """Move rows until one is rejected; return its address and the reason."""
        found = next(isolate(0, self._rows.count, self._attempt), None)
        return None if found is None else (self._rows.place(found[0]), found[1])

    def run(self) -> Iterator[Refusal]:
        """Move all accepted rows. Yields each rejection when it is found; `refused` has the final ones."""
        for position, refusal in isolate(0, self._rows.count, self._attempt):
            self.refused[self._rows.place(position)] = refusal
            yield refusal
        for place in list(self.refused):
            yield from self._fall_back(place)
        self._try_again()
        self._exchange()

    def _fall_back(self, place: str) -> Iterator[Refusal]:
        """Move the row that a rejected one had replaced."""
        while (found := self._rows.replaced(place)) is not None:
            refusal = self._attempt_one(found)
            if refusal is None:
                return
            self.refused[found] = refusal
            yield refusal
            place = found

    def _try_again(self) -> None:
        """Retry rows that refer to other rows of the epoch by a foreign key."""
        progress = True
        while progress:
            progress = False
            for place, refusal in list(self.refused.items()):
                if place in self.refused and refusal.may_be_accepted_later and self._attempt_one(place) is None:
                    self._accept(place)
                    progress = True

    def _accept(self, place: str) -> None:
        """Take a row and those that it replaces from the rejected ones: an older row must not be tried after it."""
        accepted: str | None = place
        while accepted is not None:
            self.refused.pop(accepted, None)
            accepted = self._rows.replaced(accepted)

    def _exchange(self) -> None:
        """Move rows that exchange values with one another. Raises `SwappedRowsError` if the server cannot."""
        older = {self._rows.replaced(place) for place in self.refused}
        places = [
            place for place, refusal in self.refused.items() if refusal.may_be_accepted_later and place not in older
        ]
        if len(places) < 2:
            return
        if self._together(places):
            return
        valid = self._valid_together(places)
        if valid and not self._together(valid):
            raise SwappedRowsError(valid[0], self.refused[valid[0]])

    def _together(self, places: Sequence[str]) -> bool:
        for move in self._rows.move_together(places):
            if self._move(move) is None:
                for place in places:
                    self._accept(place)
                return True
        return False

    def _valid_together(self, places: Sequence[str]) -> Sequence[str]:
        """Return those rows that the table would accept if it did not have the former rows of all of them."""
        changed, valid, made = self.changed, list[str](), False

        def make_room() -> int:
            nonlocal made
            made = self._rows.make_room(places)
            return 0

        with self._session.savepoint(undo=True):
            if self._move(make_room) is None and made:
                valid = [place for place in places if self._attempt_one(place) is None]
        self.changed = changed
        return valid

    def _attempt(self, low: int, high: int) -> Refusal | None:
        return self._move(lambda: self._rows.move(low, high))

    def _attempt_one(self, place: str) -> Refusal | None:
        return self._move(lambda: self._rows.move_one(place))

    def _move(self, move: Callable[[], int]) -> Refusal | None:
        try:
            with self._session.savepoint():
                changed = move()
        except self._dialect.database.errors as error:
            if "rows" not in self._dialect.faults(error):
                raise
            return self._dialect.refusal(error)
        self.changed += changed
        return None
