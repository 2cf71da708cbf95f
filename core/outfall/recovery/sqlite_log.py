"""A log in a SQLite database: the number is the primary key."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager

from outfall.errors import RecordError
from outfall.recovery import failures, names
from outfall.recovery.log import EntryExistsError, LogEntry, RecoveryLog
from outfall.recovery.sqlite_database import Database
from outfall.recovery.sqlite_failures import explained
from outfall.trace_points import reached

_WAL_BYTES = 4 * 1024 * 1024
"""What the WAL may hold before a sweep moves it over."""


class SqliteLog(RecoveryLog):
    """Opens its database on first use, and makes it on the first write."""

    def __init__(self, path: str, step_id: str, deadline: float) -> None:
        """Say where; nothing is made or read."""
        self._path = path
        self._step_id = step_id
        self._deadline = deadline
        self._open: Database | None = None

    def read(self, *, last: int | None = None) -> list[LogEntry]:
        if last is not None and last < 0:
            raise ValueError(f"last must not be negative, not {last}")
        with self._reading("reading the recovery log") as database:
            if database is None:
                return []
            query = "SELECT number, data FROM entries ORDER BY number DESC LIMIT ?"
            rows = database.connection.execute(query, (-1 if last is None else last,)).fetchall()
            database.sync()
            return [LogEntry(number, bytes(data)) for number, data in reversed(rows)]

    def numbers(self) -> list[int]:
        with self._reading("listing the recovery log") as database:
            return [] if database is None else _numbers(database)

    def append(self, data: bytes, *, after: int) -> int:
        number = after + 1
        with self._writing(f"appending recovery entry {number}") as database:
            self._require_newest(database, after)
            reached("log: newest checked")
            database.mark_behind()
            with database.transaction() as connection:
                self._require_newest(database, after)
                connection.execute("INSERT INTO entries VALUES (?, ?)", (number, data))
                reached("log: entry inserted")
        return number

    def sweep(self, *, keep: Collection[int], states: Collection[str], generation: int) -> None:
        with self._reading("sweeping the recovery log") as database:
            if database is None:
                return
            gone = [(number,) for number in _numbers(database) if number < max(keep, default=0) and number not in keep]
            old = database.connection.execute("SELECT name FROM states WHERE generation < ?", (generation,)).fetchall()
            spent = [(name,) for (name,) in old if name not in states]
            if gone or spent:
                database.mark_behind()
                with database.transaction() as connection:
                    connection.executemany("DELETE FROM entries WHERE number = ?", gone)
                    connection.executemany("DELETE FROM states WHERE name = ?", spent)
                    reached("log: entry swept")
            database.checkpoint(above=_WAL_BYTES)

    def write_state(self, name: str, data: bytes, *, generation: int) -> str:
        stored = names.state_name(name, generation)
        with self._writing(f"writing the state {name!r}") as database:
            database.mark_behind()
            with database.transaction() as connection:
                connection.execute("INSERT INTO states VALUES (?, ?, ?)", (stored, generation, data))
        reached("log: state durable")
        return stored

    def read_state(self, name: str) -> bytes:
        names.check_state_name(name)
        with self._reading(f"reading the state {name!r}") as database:
            query = "SELECT data FROM states WHERE name = ?"
            row = None if database is None else database.connection.execute(query, (name,)).fetchone()
        if row is None:
            raise RecordError(
                f"the state {name!r} is not in {self._path!r}",
                step=self._step_id,
                why="a record names it, and no sweep removes what is recorded",
                do="restore the database from a copy",
            )
        return bytes(row[0])

    def restore(self, entries: Sequence[LogEntry], states: Mapping[str, bytes]) -> None:
        with self._writing("copying a recovery log") as database:
            database.mark_behind()
            with database.transaction() as connection:
                known = [(name, names.state_generation(name), data) for name, data in states.items()]
                connection.executemany("INSERT OR REPLACE INTO states VALUES (?, ?, ?)", known)
                rows = [(entry.number, entry.data) for entry in entries]
                connection.executemany("INSERT OR REPLACE INTO entries VALUES (?, ?)", rows)

    def erase(self) -> None:
        with self._reading("erasing the recovery log") as database:
            if database is None:
                return
            database.mark_behind()
            with database.transaction() as connection:
                connection.execute("DELETE FROM entries")
                connection.execute("DELETE FROM states")

    def close(self) -> None:
        if self._open is not None:
            database, self._open = self._open, None
            with self._explained("closing the recovery log"):
                database.close()

    @contextmanager
    def _explained(self, doing: str) -> Iterator[None]:
        with (
            explained(doing, self._step_id, self._path, self._deadline),
            failures.explained(doing, self._step_id, self._path),
        ):
            yield

    @contextmanager
    def _reading(self, doing: str) -> Iterator[Database | None]:
        """The database, `None` when nobody has made it."""
        with self._explained(doing):
            if self._open is None and not os.path.exists(self._path):
                yield None
            else:
                yield self._database()

    @contextmanager
    def _writing(self, doing: str) -> Iterator[Database]:
        with self._explained(doing):
            yield self._database()

    def _database(self) -> Database:
        if self._open is None:
            self._open = Database(self._path, self._step_id, self._deadline)
        self._open.require_same_file()
        return self._open

    def _require_newest(self, database: Database, after: int) -> None:
        (newest,) = database.connection.execute("SELECT coalesce(max(number), 0) FROM entries").fetchone()
        if newest > after:
            raise EntryExistsError(after + 1)
        if newest < after:
            raise RecordError(
                f"recovery entry {after} is gone from {self._path!r}, where the newest is now {newest}",
                step=self._step_id,
                why="the database was emptied or replaced while the query ran",
                do="restore the database from a copy, or start the query with a new checkpoint",
            )


def _numbers(database: Database) -> list[int]:
    return [number for (number,) in database.connection.execute("SELECT number FROM entries ORDER BY number")]
