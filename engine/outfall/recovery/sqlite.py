"""Recovery data in SQLite databases on a disk of the driver."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from outfall.errors import ConfigurationError
from outfall.filesystems import make_durably, read_regular
from outfall.location import LOCAL, Location, Purpose
from outfall.recovery.local_log import LARGEST, replace_file
from outfall.recovery.location import translated_errors
from outfall.recovery.log import (
    LogEntry,
    RecoveryConfig,
    RecoveryLog,
    check_state_name,
    check_step_id,
    heartbeat_generation,
    is_step_id,
    missing_state,
    require_newest,
    state_generation,
    state_name,
)
from outfall.trace_points import reached

if TYPE_CHECKING:
    from outfall.recovery.sqlite_database import SqliteDatabase

SCHEME = "sqlite"
_SUFFIX = ".sqlite"
_WAL_BYTES = 4 * 1024 * 1024
"""Size of the WAL above which a clean-up runs a checkpoint."""

_DIRECTORY = Purpose(
    "directory of SQLite databases",
    {},
    "SQLite requires a disk of the driver's own",
    "pass the absolute path of a directory on a durable local disk of the driver",
)


@dataclass(frozen=True)
class SqliteRecoveryConfig(RecoveryConfig):
    """One database per step, `<db_dir>/<step_id>.sqlite`, for drivers with a durable local disk.

    WAL mode, `synchronous=FULL`: an appended entry survives a crash of the host. The directory must not be on a network
    filesystem, whose locks and shared memory SQLite does not trust (https://www.sqlite.org/wal.html). Only the driver
    opens a database. States travel with the ticket and the task results, so all states of a step together are limited
    to 64 MiB. Larger states require a store that tasks reach.

    Args:
        db_dir: An absolute path, created on the first append.
        deadline: Seconds to wait for a database that another process has locked.

    Raises:
        ConfigurationError: The path is relative or another kind of URL, or the deadline is not positive.
    """

    db_dir: str
    deadline: float = 30.0

    reaches_tasks: ClassVar[bool] = False

    def __post_init__(self) -> None:
        location = Location.parse(os.fspath(self.db_dir), _DIRECTORY)
        if location.scheme != LOCAL:
            raise ConfigurationError(f"{self.db_dir!r} is not a directory", do=_DIRECTORY.use_instead)
        object.__setattr__(self, "db_dir", location.path)
        if self.deadline <= 0:
            raise ConfigurationError(f"deadline is {self.deadline}", do="pass a positive number of seconds")

    def open(self, step_id: str) -> RecoveryLog:
        """Open the log of one step. Creates nothing before the first append.

        Raises:
            ConfigurationError: The step id is not valid.
        """
        return SqliteLog(f"{self.db_dir}/{check_step_id(step_id)}{_SUFFIX}", step_id, self.deadline)

    def open_read_only(self, step_id: str) -> RecoveryLog:
        return SqliteLog(f"{self.db_dir}/{check_step_id(step_id)}{_SUFFIX}", step_id, self.deadline, read_only=True)

    def steps(self) -> Sequence[str]:
        with translated_errors("listing the steps", None, self.db_dir):
            found = [os.path.splitext(name) for name in _listed(self.db_dir)]
        return sorted(stem for stem, end in found if end == _SUFFIX and is_step_id(stem))

    def url(self) -> str:
        return f"{SCHEME}://{self.db_dir}"


def _listed(directory: str) -> list[str]:
    try:
        return os.listdir(directory)
    except FileNotFoundError:
        return []


class SqliteLog(RecoveryLog):
    """Stores entries with their number as primary key. Opens the database on first use, creates it on first write."""

    def __init__(self, path: str, step_id: str, deadline: float, *, read_only: bool = False) -> None:
        """Set the path. Creates and reads nothing."""
        self._read_only = read_only
        self._path = path
        self._heartbeats = f"{path}-heartbeats"
        self._step_id = step_id
        self._deadline = deadline
        self._open: SqliteDatabase | None = None

    def read(self, *, last: int | None = None, known: Mapping[int, bytes] | None = None) -> list[LogEntry]:
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

    def clean_up(self, *, keep: Collection[int], states: Collection[str], generation: int) -> None:
        with self._reading("cleaning up the recovery log") as database:
            if database is None:
                return
            superseded = [
                (number,) for number in _numbers(database) if number < max(keep, default=0) and number not in keep
            ]
            old = database.connection.execute("SELECT name FROM states WHERE generation < ?", (generation,)).fetchall()
            spent = [(name,) for (name,) in old if name not in states]
            if superseded or spent:
                database.mark_behind()
                with database.transaction() as connection:
                    connection.executemany("DELETE FROM entries WHERE number = ?", superseded)
                    connection.executemany("DELETE FROM states WHERE name = ?", spent)
                    reached("log: entry cleaned up")
            database.checkpoint(above=_WAL_BYTES)
            self._clean_up_heartbeats(generation)

    def write_state(self, name: str, data: bytes, *, generation: int) -> str:
        stored = state_name(name, generation)
        with self._writing(f"writing the state {name!r}") as database:
            database.mark_behind()
            with database.transaction() as connection:
                connection.execute("INSERT INTO states VALUES (?, ?, ?)", (stored, generation, data))
        reached("log: state durable")
        return stored

    def read_state(self, name: str) -> bytes:
        check_state_name(name)
        with self._reading(f"reading the state {name!r}") as database:
            query = "SELECT data FROM states WHERE name = ?"
            row = None if database is None else database.connection.execute(query, (name,)).fetchone()
        if row is None:
            raise missing_state(name, where=repr(self._path), step_id=self._step_id)
        return bytes(row[0])

    # Heartbeats are files next to the database, because their readers must not lock or migrate it.

    def set_heartbeat(self, name: str, data: bytes | None) -> None:
        path = os.path.join(self._heartbeats, name)
        with self._translated_errors("writing a heartbeat"):
            if data is not None:
                make_durably(self._heartbeats)
                replace_file(path, data)
            elif os.path.exists(path):
                os.unlink(path)

    def heartbeats(self) -> list[bytes]:
        with self._translated_errors("reading heartbeats"):
            found = []
            for name in _listed(self._heartbeats):
                # One file may be removed meanwhile; the others must still be returned.
                with suppress(FileNotFoundError):
                    if name.endswith(".heartbeat"):
                        found.append(read_regular(str(Path(self._heartbeats, name)), LARGEST))
            return found

    def _clean_up_heartbeats(self, generation: float) -> None:
        for name in _listed(self._heartbeats):
            if (heartbeat_generation(name) or generation) < generation:
                Path(self._heartbeats, name).unlink(missing_ok=True)

    def restore(self, entries: Sequence[LogEntry], states: Mapping[str, bytes]) -> None:
        with self._writing("copying a recovery log") as database:
            database.mark_behind()
            with database.transaction() as connection:
                known = [(name, state_generation(name), data) for name, data in states.items()]
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
            self._clean_up_heartbeats(inf)

    def close(self) -> None:
        if self._open is not None:
            database, self._open = self._open, None
            with self._translated_errors("closing the recovery log"):
                database.close()

    @contextmanager
    def _translated_errors(self, doing: str) -> Iterator[None]:
        # Imported here because some builds of Python have no SQLite.
        from outfall.recovery.sqlite_database import translated_errors

        with translated_errors(doing, self._step_id, self._path, self._deadline):
            yield

    @contextmanager
    def _reading(self, doing: str) -> Iterator[SqliteDatabase | None]:
        """Yield the database, or `None` if it does not exist."""
        with self._translated_errors(doing):
            if self._open is None and not os.path.exists(self._path):
                yield None
                return
            database = self._database()
            try:
                yield database
            finally:
                # Data that was read from a changing file may be wrong or look damaged.
                if self._read_only:
                    database.require_same_file()

    @contextmanager
    def _writing(self, doing: str) -> Iterator[SqliteDatabase]:
        with self._translated_errors(doing):
            yield self._database()

    def _database(self) -> SqliteDatabase:
        from outfall.recovery.sqlite_database import ReadOnlyDatabase, SqliteDatabase

        if self._open is None:
            kind = ReadOnlyDatabase if self._read_only else SqliteDatabase
            self._open = kind(self._path, self._step_id, self._deadline)
        self._open.require_same_file()
        return self._open

    def _require_newest(self, database: SqliteDatabase, after: int) -> None:
        (newest,) = database.connection.execute("SELECT coalesce(max(number), 0) FROM entries").fetchone()
        require_newest(newest, after, where=self._path, step_id=self._step_id)


def _numbers(database: SqliteDatabase) -> list[int]:
    return [number for (number,) in database.connection.execute("SELECT number FROM entries ORDER BY number")]
