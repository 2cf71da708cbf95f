"""A connection that waits for the server rarely: statements that are sent together, and a catalogue that is read once.

```
later      a statement whose result nobody needs: it is sent with the next one, or with COMMIT
begin      a transaction, its settings, what is known to be asked first, and whether the catalogue is still the same
look       a query of the catalogue: its result stays with the connection, and is used while the catalogue is the same
hold       statements that take locks, and whether the catalogue is still the same under them
```

Statements that are sent together are one text. The server stops at the first that fails, so none is executed after it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, ClassVar, Self

Statement = tuple[Any, Any]
"""A statement and its parameters."""

_MOST = 200
"""Results of the catalogue that a connection keeps beside those that its last transaction has used."""

AT_ONCE = 500
"""Rows or tables of one statement."""

_IN_ONE_TRIP = 200
"""Statements of one text, of those that may be many."""
_LONGEST = 1 << 18
"""Characters of such a text, unless one statement has more. The server parses a text as a whole before it begins."""


@dataclass
class Fetched:
    """The result of a statement that was sent with others, as in the DB-API."""

    rowcount: int
    rows: list[tuple[Any, ...]]
    at: int = 0

    @classmethod
    def of(cls, cursor: Any) -> Self:
        """Return the result of a cursor of the DB-API."""
        return cls(cursor.rowcount, [] if cursor.description is None else list(cursor.fetchall()))

    def fetchone(self) -> tuple[Any, ...] | None:
        """Return the next row; `None` after the last."""
        self.at += 1
        return self.rows[self.at - 1] if self.at <= len(self.rows) else None

    def fetchall(self) -> list[tuple[Any, ...]]:
        """Return the rows that are left."""
        first, self.at = self.at, len(self.rows)
        return self.rows[first:]


@dataclass
class Looked:
    """What the catalogue says of a table."""

    statement: Statement
    rows: list[tuple[Any, ...]]
    table: Hashable


def in_trips(statements: Sequence[Statement]) -> list[list[Statement]]:
    """Return statements in their order, those together that are sent together."""
    trips: list[list[Statement]] = []
    length = 0
    for statement in statements:
        length += len(statement[0])
        if not trips or length > _LONGEST or len(trips[-1]) == _IN_ONE_TRIP:
            trips.append([])
            length = len(statement[0])
        trips[-1].append(statement)
    return trips


class BatchingSession:
    """What the connections of all databases share. A driver's connection derives from it, before its own class."""

    errors: ClassVar[type[Exception]]
    """The base of the driver's errors."""
    has_versions: ClassVar[bool] = False
    """Whether the server has a version of each table. Otherwise, what is known of it is read again."""

    def __init__(self, *given: Any, **more: Any) -> None:
        """Pass everything to the driver's class."""
        self._queued: list[Statement] = []
        self._foreseen: list[tuple[Statement, Fetched]] = []
        self._points = 0
        self._looked: dict[tuple[str, str], Looked] = {}
        self._used: set[tuple[str, str]] = set()
        """Those of `_looked` that this transaction has used."""
        self._same = False
        """Whether `_looked` is what this transaction would read."""
        super().__init__(*given, **more)

    def together(self, statements: Sequence[Statement]) -> list[Fetched]:
        """Execute statements in one round trip; none of them after one that fails. Raises the driver's error."""
        return [self.alone(*each) for each in statements]

    def alone(self, statement: Any, given: Any) -> Fetched:
        """Execute one statement, for a database that takes no more at once."""
        raise NotImplementedError

    def stream(self, query: Any, /) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of a query. Its % are doubled."""
        yield from self.execute(query).fetchall()

    def execute(self, statement: Any, given: Any = (), /) -> Any:
        """Execute a statement with parameters, after those of `later`; its other % are doubled."""
        if (known := self.known(statement, given)) is not None:
            return known
        return self.together([*self._taken(), (statement, given)])[-1]

    def each(self, statements: Sequence[Statement]) -> list[Fetched]:
        """Execute statements in few round trips, after those of `later`, and return their results."""
        found: list[Fetched] = []
        for some in in_trips(statements):
            queued = self._taken()
            found += self.together([*queued, *some])[len(queued) :]
        return found

    # --- transactions

    def begin(
        self, settings: Sequence[Statement], foreseen: Sequence[Statement] = (), *, looks: bool = False
    ) -> list[Fetched]:
        """Begin a transaction by its first statements, and return their results.

        `foreseen` are the first queries that `execute` will be given. They are sent at once if the connection has read
        the catalogue before, so that their tables are likely to exist. With `looks`, so is the question whether the
        catalogue is the same.
        """
        self._queued, self._foreseen, self._points, self._same = [], [], 0, False
        ahead = list(foreseen) if self._looked else []
        self._keep_used()
        again = self._again() if looks else []
        try:
            results = self.together([*settings, *again, *ahead])
        except self.errors:
            if not ahead or not self._alive():
                raise
            # Whoever asks it gets the error.
            self.together([("ROLLBACK", ())])
            return self.begin(settings, looks=looks)
        first = len(settings)
        if again:
            self._compare(results[first : first + len(again)])
        self._same = looks
        self._foreseen = list(zip(ahead, results[first + len(again) :], strict=True))
        return results[:first]

    def finish(self, word: str) -> None:
        """End the transaction with COMMIT, after the statements of `later`, or with ROLLBACK, without them."""
        queued, self._foreseen, self._same = self._taken(), [], False
        self.together([*(queued if word == "COMMIT" else []), (word, ())])

    def later(self, statement: Any, given: Any = ()) -> None:
        """Execute a statement before the next one, or before COMMIT, which then raise its error."""
        self._queued.append((statement, given))

    @contextmanager
    def savepoint(self, *, undo: bool = False) -> Iterator[None]:
        """Undo the changes of a block if it raises; with `undo` in any case."""
        self._points += 1
        point: Statement = (f"SAVEPOINT outfall_{self._points}", ())
        self._queued.append(point)
        try:
            yield
        except Exception:
            # A deadlock may have rolled back the transaction, with the savepoint; the error itself says so.
            with suppress(self.errors):
                if self._undo(point):
                    # Otherwise the next one would be within it, as deep as there are rejected rows.
                    self.later(f"RELEASE {point[0]}")
            raise
        sent = all(each is not point for each in self._queued)
        if undo:
            self._undo(point)
        self._queued = [each for each in self._queued if each is not point]
        if sent:
            self.later(f"RELEASE {point[0]}")

    def _undo(self, point: Statement) -> bool:
        """Undo what was executed since a savepoint, and forget what was not sent; return whether it was sent."""
        places = [at for at, each in enumerate(self._queued) if each is point]
        del self._queued[places[0] if places else 0 :]
        if not places:
            self.together([(f"ROLLBACK TO {point[0]}", ())])
        return not places

    def known(self, statement: Any, given: Any) -> Fetched | None:
        """Return the result of a query that `begin` has sent, once; `None` for others."""
        for at, (each, result) in enumerate(self._foreseen):
            if each == (statement, given):
                del self._foreseen[at]
                return result
        return None

    def flush(self) -> None:
        """Execute the statements of `later`."""
        if queued := self._taken():
            self.together(queued)

    def _taken(self) -> list[Statement]:
        queued, self._queued = self._queued, []
        return queued

    def is_busy(self) -> bool:
        """Return whether the connection is closed, or in a transaction, in which alone the catalogue is trusted."""
        return False

    def _alive(self) -> bool:
        """Return whether the connection is still open, after an error."""
        return True

    # --- the catalogue

    def look(self, query: str, given: Any, table: Hashable) -> list[tuple[Any, ...]]:
        """Return the rows of a query of the catalogue about a table, which the connection may know already."""
        if not self._same:
            self._ask()
        key = (query, repr(given))
        if key not in self._looked:
            (found,) = self._look([(query, given)], [table])
            self._looked[key] = Looked((query, given), found.fetchall(), table)
        self._used.add(key)
        return self._looked[key].rows

    def look_ahead(
        self,
        query: str,
        given: Callable[[Sequence[Any]], Any],
        tables: Sequence[Hashable],
        several: Callable[[Sequence[Any]], Statement] | None = None,
    ) -> None:
        """Ask a query of the catalogue about several tables at once. `look` then knows its rows about each of them.

        `given` are its parameters for some tables, and the first column of its rows is the one that they are about.
        `several` is another query for them, with such rows; tables without rows are then asked about one by one.
        """
        if not self._same:
            self._ask()
        keys = {table: (query, repr(given([table]))) for table in tables}
        missing = [table for table, key in keys.items() if key not in self._looked]
        for first in range(0, len(missing), AT_ONCE):
            some = missing[first : first + AT_ONCE]
            found: dict[Hashable, list[tuple[Any, ...]]] = {table: [] for table in some}
            asked = (query, given(some)) if several is None else several(some)
            for row in self._look([asked], some)[0].fetchall():
                # A server that compares names without regard to case may return others, too.
                found.get(row[0], []).append(row)
            for table, rows in found.items():
                if rows or several is None:
                    self._looked[keys[table]] = Looked((query, given([table])), rows, table)

    def look_each(self, queries: Sequence[Statement], tables: Sequence[Hashable]) -> None:
        """Ask queries of the catalogue, one about each table, with few round trips. `look` then knows their rows."""
        if not self._same:
            self._ask()
        asked = {(query, repr(given)): table for (query, given), table in zip(queries, tables, strict=True)}
        missing = [(query, given) for query, given in queries if (query, repr(given)) not in self._looked]
        for some in in_trips(missing):
            about = [asked[query, repr(given)] for query, given in some]
            for statement, table, found in zip(some, about, self._look(some, about), strict=True):
                self._looked[statement[0], repr(statement[1])] = Looked(statement, found.fetchall(), table)

    def hold(self, statements: Sequence[Statement]) -> None:
        """Execute statements that lock tables, and then find out whether the catalogue is still the same."""
        *first, last = in_trips(statements) or [[]]
        for some in first:
            self.each(some)
        self._queued += last
        self._ask()

    def forget(self) -> None:
        """Forget the catalogue, because this session changes it."""
        self._looked.clear()

    def _keep_used(self) -> None:
        """Forget what the last transaction has not used, so that the rest costs no transaction anything."""
        if len(self._looked) > _MOST:
            kept = self._used if self.has_versions else set()
            self._looked = {key: looked for key, looked in self._looked.items() if key in kept}
        self._used = set()

    def _ask(self) -> None:
        again, queued = self._again(), self._taken()
        if queued or again:
            self._compare(self.together([*queued, *again])[len(queued) :])
        # Without a transaction, nothing says when the next query is asked.
        self._same = self.is_busy()

    def _look(self, queries: Sequence[Statement], tables: Sequence[Hashable]) -> list[Fetched]:
        return self.together([*self._taken(), *queries])[-len(queries) :]

    def _again(self) -> list[Statement]:
        """Return the queries that find out whether the catalogue is still the same; none if nothing is known of it.

        Where the server has no version of a table, what is known of it is read again.
        """
        return [looked.statement for looked in self._looked.values()]

    def _compare(self, results: Sequence[Fetched]) -> None:
        """Forget what has changed, by the results of `_again`."""
        for looked, result in zip(self._looked.values(), results, strict=True):
            looked.rows = result.fetchall()
