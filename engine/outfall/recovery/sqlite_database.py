"""One SQLite database: opens, migrates and checks it, detects copies without the WAL, and explains its errors.

A commit is in the `-wal` file until a checkpoint copies it to the main file. A copy of only the main file lacks the
newest entries, but looks complete. The table `main_file` shows this: `behind` is 1 in the main file while commits are
only in the WAL, and 0 in the WAL's own version. If the main file of a database has 1, it must therefore have a WAL with
content. When the last connection is closed, also by the end of a process, SQLite's own checkpoint copies the 0.

While a reader has an older transaction open, no checkpoint can finish, and the main file cannot be marked. Writes then
continue with a warning, and each write retries.
"""

from __future__ import annotations

import logging
import os
import shutil
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from outfall.errors import ConfigurationError, OutfallError, RecordError, TransientError
from outfall.filesystems import make_durably
from outfall.recovery.location import translated_errors as translated_disk_errors
from outfall.retry_loop import retried
from outfall.trace_points import reached

_log = logging.getLogger(__name__)

_BUSY = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL}
_DAMAGED = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_FORMAT}
_PLACE_IS_WRONG = {sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH}

_RESTORE = "restore the database from a copy that was made with its -wal file, or start the query with a new checkpoint"

_PATIENCE = 1.0
"""Seconds to wait for other connections while an open database is marked. After a timeout, the wait is 0."""

_PAUSE = 0.005

_APPLICATION_ID = 0x4F757466
"""`Outf`, in the header of every database."""

SYNCHRONOUS = "FULL"
"""Every commit is synced. Tests that do not test power losses may disable it."""

MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        "CREATE TABLE entries (number INTEGER PRIMARY KEY, data BLOB NOT NULL)",
        "CREATE TABLE states (name TEXT PRIMARY KEY, generation INTEGER NOT NULL, data BLOB NOT NULL)",
        "CREATE TABLE main_file (behind INTEGER NOT NULL)",
        "INSERT INTO main_file VALUES (0)",
    ),
)
"""The statements from each version to the next. The version of a database is the number of applied migrations."""


class SqliteDatabase:
    """An open connection to a step's database."""

    def __init__(self, path: str, step_id: str, deadline: float) -> None:
        """Open the database, or create it.

        Raises `RecordError` if it is damaged, foreign, of a newer release, or was copied without its WAL, and the
        errors of SQLite.
        """
        make_durably(os.path.dirname(path))
        self._path = path
        self._step_id = step_id
        self._deadline = deadline
        self._marked = False
        self._patience = min(_PATIENCE, deadline)
        # Checked before SQLite creates an empty one.
        self._had_wal = _wal_size(path) > 0
        uri = f"{Path(path).as_uri()}?mode=rwc"
        self._connection = sqlite3.connect(
            uri, timeout=deadline, isolation_level=None, uri=True, check_same_thread=False
        )
        self._file = os.stat(path)
        self._synced = False
        try:
            self._prepare(deadline)
        except BaseException:
            self._connection.close()
            raise

    @property
    def connection(self) -> sqlite3.Connection:
        """SQLite's connection, in autocommit mode."""
        return self._connection

    def require_same_file(self) -> None:
        """Raise `RecordError` if the file was removed or replaced, because later readers would not find its entries."""
        try:
            same = os.path.samestat(os.stat(self._path), self._file)
        except FileNotFoundError:
            same = False
        if not same:
            raise damaged(self._path, self._step_id, "the file was removed or replaced while it was open")

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Run a block in an exclusive write transaction, which is durable afterwards."""
        connection = self._connection
        connection.execute("BEGIN IMMEDIATE")
        try:
            yield connection
            reached("log: before commit")
            connection.execute("COMMIT")
        except BaseException:
            with suppress(sqlite3.Error):
                connection.execute("ROLLBACK")
            raise
        reached("log: committed")

    def mark_behind(self) -> None:
        """Mark the main file as behind, before a commit that only the WAL will have."""
        if self._marked:
            return
        try:
            behind = False
            # Repeated if another process has opened the database meanwhile and removed the mark as left behind.
            while not behind:
                self._set_behind(1)
                if not self._moved_over():
                    return
                behind = self._is_behind()
            self._marked = True
            reached("log: main file marked")
        finally:
            self._set_behind(0)

    def checkpoint(self, above: int) -> None:
        """Run a checkpoint if the WAL has more than `above` bytes. Otherwise it would grow without limit."""
        if _wal_size(self._path) > above:
            self._marked = False
            self.mark_behind()

    def sync(self) -> None:
        """Make the read data durable, because its writer may have died before its fsync.

        Once is sufficient. While the database is open, commits of others are visible only after their fsync. Commits of
        a writer that died before its fsync are visible only to the next process that opens the database (Write-Ahead
        Logging, sqlite.org/wal.html).
        """
        if self._synced:
            return
        with suppress(FileNotFoundError), open(f"{self._path}-wal", "rb") as wal:
            os.fsync(wal.fileno())
        self._synced = True

    def close(self) -> None:
        """Close the connection. Closing the last one runs a checkpoint and removes the WAL."""
        try:
            # True only after an error during marking. A checkpoint in this state would look like a lost WAL.
            if self._is_behind():
                self._set_behind(0)
        finally:
            self._connection.close()

    def _moved_over(self) -> bool:
        """Run a checkpoint of the whole WAL, unless other connections block it until the timeout."""
        end = time.monotonic() + self._patience
        while not self._checkpoint(end - time.monotonic()):
            if time.monotonic() >= end:
                if self._patience:
                    _log.warning(
                        "The recovery database %r is read in a transaction that stays open. Until that ends, a copy"
                        " without its -wal file is an older log that looks complete. What to do: end the process that"
                        " reads it.",
                        self._path,
                    )
                self._patience = 0.0
                return False
            # SQLite itself waits for readers, but not for another checkpoint.
            time.sleep(_PAUSE)
        return True

    def _checkpoint(self, seconds: float) -> bool:
        """Return whether the whole WAL was copied to the main file within this time."""
        self._wait_for_locks(max(0.0, seconds))
        try:
            # Not TRUNCATE: an empty WAL next to a file that is behind means that the WAL was lost.
            ((busy, there, moved),) = self._connection.execute("PRAGMA wal_checkpoint(FULL)").fetchall()
        finally:
            self._wait_for_locks(self._deadline)
        return not busy and there == moved

    def _wait_for_locks(self, seconds: float) -> None:
        self._connection.execute(f"PRAGMA busy_timeout = {int(seconds * 1000)}")

    def _is_behind(self) -> bool:
        (behind,) = self._connection.execute("SELECT behind FROM main_file").fetchone()
        return bool(behind)

    def _set_behind(self, value: int) -> None:
        with self.transaction() as connection:
            connection.execute("UPDATE main_file SET behind = ?", (value,))

    def _prepare(self, deadline: float) -> None:
        reached("log: database opened")
        connection = self._connection
        # In one transaction, because another process may be creating the database.
        connection.execute("BEGIN")
        try:
            version = self._checked_version()
        finally:
            connection.execute("ROLLBACK")
        # SQLite itself waits for locks, except for the lock to change the journal mode while others read.
        mode = retried(self._use_wal, passes=_is_busy, deadline=deadline, first_wait=0.005, longest_wait=0.2)
        if mode != "wal":
            raise damaged(self._path, self._step_id, f"its filesystem does not support WAL (it is {mode})")
        connection.execute(f"PRAGMA synchronous = {SYNCHRONOUS}")
        connection.execute("PRAGMA wal_autocheckpoint = 0")
        reached("log: WAL mode set")
        if version < len(MIGRATIONS):
            self._migrate()
        self._check_whole()

    def _use_wal(self) -> str:
        (mode,) = self._connection.execute("PRAGMA journal_mode = WAL").fetchone()
        return str(mode)

    def _checked_version(self) -> int:
        (version,) = self._connection.execute("PRAGMA user_version").fetchone()
        (application,) = self._connection.execute("PRAGMA application_id").fetchone()
        (tables,) = self._connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        if (version or tables) and application != _APPLICATION_ID:
            raise damaged(self._path, self._step_id, "it is not a database of Outfall")
        if version > len(MIGRATIONS):
            raise RecordError(
                f"the recovery database {self._path!r} has version {version}; this release reads up to"
                f" {len(MIGRATIONS)}",
                step=self._step_id,
                do="run the release that wrote the database, or a newer one",
            )
        return int(version)

    def _migrate(self) -> None:
        with self.transaction() as connection:
            version = self._checked_version()
            for statements in MIGRATIONS[version:]:
                for statement in statements:
                    connection.execute(statement)
            connection.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")

    def _check_whole(self) -> None:
        found = [row[0] for row in self._connection.execute("PRAGMA quick_check(1)")]
        if found != ["ok"]:
            raise damaged(self._path, self._step_id, f"SQLite's check reports: {found[0]}")
        behind = self._is_behind()
        # A WAL that appeared since the first check belongs to another process, which is marking the file.
        if behind and not self._had_wal and _wal_size(self._path) == 0:
            raise _without_wal(self._path, self._step_id)
        if behind:
            # Its writer died while it marked the file, but the WAL exists.
            self._set_behind(0)


class ReadOnlyDatabase(SqliteDatabase):
    """A connection for monitoring: creates and changes no file, and takes no lock for which a driver waits.

    If there is a WAL, it is read with the driver's index (`-shm`). Without a WAL, all data is in the main file, which
    only a checkpoint changes; `require_same_file` detects that afterwards. A WAL without an index is in a copy that no
    driver has opened yet. SQLite would have to create the index, so it is created next to another copy.
    """

    def __init__(self, path: str, step_id: str, deadline: float) -> None:
        """Open the database, with the errors of `SqliteDatabase`.

        Raises `TransientError` if it does not have the tables of this release yet.
        """
        self._path = path
        self._step_id = step_id
        self._aside: TemporaryDirectory[str] | None = None
        self._had_wal = _wal_size(path) > 0
        self._file = os.stat(path)
        opened, how = path, "mode=ro&readonly_shm=1" if self._had_wal else "mode=ro&immutable=1"
        if self._had_wal and not os.path.exists(f"{path}-shm"):
            # A process that has the database open keeps an index. In a driver's own process, a copy would be harmful:
            # closing a file drops all POSIX locks of the process on it (fcntl(2)). SQLite's connections avoid that.
            self._aside = TemporaryDirectory(prefix="outfall-")
            opened, how = f"{self._aside.name}/copy", "mode=rw"
            for end in ("", "-wal"):
                shutil.copyfile(path + end, opened + end)
        uri = f"{Path(opened).as_uri()}?{how}"
        try:
            self._connection = sqlite3.connect(
                uri, timeout=deadline, isolation_level=None, uri=True, check_same_thread=False
            )
            self._check()
        except BaseException:
            self.close()
            raise

    def require_same_file(self) -> None:
        """Reject data that was read from a file which changed meanwhile.

        Raises `TransientError` if a driver has opened the database meanwhile.
        """
        now = os.stat(self._path)
        same = (now.st_ino, now.st_size, now.st_mtime_ns) == (
            self._file.st_ino,
            self._file.st_size,
            self._file.st_mtime_ns,
        )
        if not self._had_wal and not (same and _wal_size(self._path) == 0):
            raise TransientError(
                f"the recovery database {self._path!r} changed while it was read",
                step=self._step_id,
                do="retry",
            )

    def sync(self) -> None:
        """Do nothing, because no write depends on the read data."""

    def close(self) -> None:
        """Close the connection."""
        connection: sqlite3.Connection | None = getattr(self, "_connection", None)
        if connection is not None:
            connection.close()
        if self._aside is not None:
            self._aside.cleanup()

    def _check(self) -> None:
        if self._checked_version() < len(MIGRATIONS):
            raise TransientError(
                f"the recovery database {self._path!r} does not have the tables of this release yet",
                step=self._step_id,
                do="nothing: its query creates them at its next start",
            )
        if not self._had_wal and self._is_behind():
            raise _without_wal(self._path, self._step_id)


def _without_wal(path: str, step_id: str) -> RecordError:
    return damaged(path, step_id, "its newest entries were in its -wal file, which does not exist")


def _wal_size(path: str) -> int:
    """Return the size of a database's WAL; 0 if it does not exist."""
    try:
        return os.stat(f"{path}-wal").st_size
    except FileNotFoundError:
        return 0


@contextmanager
def translated_errors(doing: str, step_id: str, path: str, deadline: float) -> Iterator[None]:
    """Convert an error of SQLite or its disk in the block into one that states operation, path, cause and remedy.

    Raises `RecordError` if the database is damaged, `ConfigurationError` if it cannot be opened or written at this
    path, and `TransientError` if it is locked, its disk is full, or for any other error.
    """
    try:
        with translated_disk_errors(doing, step_id, path):
            yield
    except sqlite3.Error as error:
        raise _explanation(error, f"{doing} in {path!r} failed", step_id, deadline) from error


def _explanation(error: sqlite3.Error, what: str, step_id: str, deadline: float) -> OutfallError:
    # The primary code is the low byte of the extended code (https://www.sqlite.org/rescode.html).
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
    why = f"{getattr(error, 'sqlite_errorname', type(error).__name__)}: {error}"
    if code in _BUSY:
        why = f"{why}; the driver waited {deadline:g} seconds"
        return TransientError(what, step=step_id, why=why, do="end the process that has locked the database")
    if code in _DAMAGED:
        return RecordError(what, step=step_id, why=why, do=_RESTORE)
    if code in _PLACE_IS_WRONG:
        do = "make the database, its directory and its -wal and -shm files writable for the driver"
        return ConfigurationError(what, step=step_id, why=why, do=do)
    if code == sqlite3.SQLITE_FULL:
        do = "free space there; the next run continues from the recorded state"
        return TransientError(what, step=step_id, why=why, do=do)
    return TransientError(
        what, step=step_id, why=why, do="check that disk; the next run continues from the recorded state"
    )


def _is_busy(error: BaseException) -> bool:
    return isinstance(error, sqlite3.Error) and getattr(error, "sqlite_errorcode", 0) & 0xFF in _BUSY


def damaged(path: str, step_id: str, why: str) -> RecordError:
    """Return the error for a database from which no driver may continue."""
    return RecordError(f"the recovery database {path!r} is damaged", step=step_id, why=why, do=_RESTORE)
