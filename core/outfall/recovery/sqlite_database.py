"""One SQLite database: opened, migrated, checked, safe against being copied without its WAL, its errors explained.

A commit lies in the `-wal` file until a checkpoint moves it, so that a copy of the main file alone lacks the newest
entries and looks whole. The table `main_file` tells: `behind` is 1 in the main file whenever there are commits that
only the WAL has, and 0 in the WAL's own view of it. So whoever opens a database whose main file says 1 must find a WAL
with content. SQLite's own checkpoint when the last connection is closed, also by the end of a process, moves the 0
over.

Beside a reader whose transaction is older no checkpoint comes to its end, and the main file cannot be marked. Writing
goes on then, with a warning, and each write tries again.
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

from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_random_exponential

from outfall.errors import ConfigurationError, OutfallError, RecordError, TransientError
from outfall.filesystems import make_durably
from outfall.recovery.location import explained as disk_explained
from outfall.trace_points import reached

_log = logging.getLogger(__name__)

_BUSY = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL}
_DAMAGED = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_FORMAT}
_PLACE_IS_WRONG = {sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH}

_RESTORE = "restore the database from a copy that was made with its -wal file, or start the query with a new checkpoint"

_PATIENCE = 1.0
"""Seconds for which the marking of an open database waits for who is in its way; once they are over, for nobody."""

_PAUSE = 0.005

_APPLICATION_ID = 0x4F757466
"""`Outf`, in the header of every database."""

SYNCHRONOUS = "FULL"
"""Every commit is synced. Tests that do not ask what survives a power loss may switch it off."""

MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        "CREATE TABLE entries (number INTEGER PRIMARY KEY, data BLOB NOT NULL)",
        "CREATE TABLE states (name TEXT PRIMARY KEY, generation INTEGER NOT NULL, data BLOB NOT NULL)",
        "CREATE TABLE main_file (behind INTEGER NOT NULL)",
        "INSERT INTO main_file VALUES (0)",
    ),
)
"""What leads from each version to the next; a database's version is how many of these it has seen."""


class SqliteDatabase:
    """An open connection to a step's database."""

    def __init__(self, path: str, step_id: str, deadline: float) -> None:
        """Open the database, or make it.

        Raises:
            RecordError: it is damaged, of something else, of a newer release, or was copied without its WAL.
            sqlite3.Error: SQLite's own.
        """
        make_durably(os.path.dirname(path))
        self._path = path
        self._step_id = step_id
        self._deadline = deadline
        self._marked = False
        self._patience = min(_PATIENCE, deadline)
        # Looked at before SQLite makes an empty one.
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
        """SQLite's own connection, in autocommit mode."""
        return self._connection

    def require_same_file(self) -> None:
        """Refuse to go on with a file that has lost its name: nobody would find what is written.

        Raises:
            RecordError: the file was removed or replaced.
        """
        try:
            same = os.path.samestat(os.stat(self._path), self._file)
        except FileNotFoundError:
            same = False
        if not same:
            raise damaged(self._path, self._step_id, "the file was removed or replaced while it was open")

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Run a block in a transaction that nobody else writes beside; it is durable afterwards."""
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
        """Let the main file say that it is behind, before anything is committed that only the WAL will have."""
        if self._marked:
            return
        try:
            behind = False
            # Again where somebody who opened it meanwhile has taken the mark for one that was left behind.
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
        """Move the WAL's content over once it has more than `above` bytes, or it would grow for as long as we live."""
        if _wal_size(self._path) > above:
            self._marked = False
            self.mark_behind()

    def sync(self) -> None:
        """Make durable what was read: whoever committed it may have died before its fsync.

        Once is enough. What others commit while the database is open is seen only after their fsync; what somebody left
        who died before his is seen only by whoever opens the database next (Write-Ahead Logging, sqlite.org/wal.html).
        """
        if self._synced:
            return
        with suppress(FileNotFoundError), open(f"{self._path}-wal", "rb") as wal:
            os.fsync(wal.fileno())
        self._synced = True

    def close(self) -> None:
        """Close the connection. The last one to be closed moves the WAL over and removes it."""
        try:
            # Only after an error in the middle of marking; moved over as it is, it would be taken for a lost WAL.
            if self._is_behind():
                self._set_behind(0)
        finally:
            self._connection.close()

    def _moved_over(self) -> bool:
        """Move the WAL's content over, unless somebody is in the way for longer than we have patience."""
        end = time.monotonic() + self._patience
        while not self._checkpoint(end - time.monotonic()):
            if time.monotonic() >= end:
                if self._patience:
                    _log.warning(
                        "The recovery database %r is read in a transaction that stays open. Until that ends, a copy of"
                        " it without its -wal file is an older log that looks whole. What to do: end what reads it.",
                        self._path,
                    )
                self._patience = 0.0
                return False
            # SQLite waits for readers itself, but not for another checkpoint.
            time.sleep(_PAUSE)
        return True

    def _checkpoint(self, seconds: float) -> bool:
        """Whether all content of the WAL could be moved over within so many seconds."""
        self._wait_for_locks(max(0.0, seconds))
        try:
            # Not TRUNCATE: a WAL without content beside a file that is behind means that the WAL was lost.
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
        # In one transaction: another process may be making the database just now.
        connection.execute("BEGIN")
        try:
            version = self._checked_version()
        finally:
            connection.execute("ROLLBACK")
        mode = waiting(deadline)(self._use_wal)
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
            raise damaged(self._path, self._step_id, "it is not a database of Outfall's")
        if version > len(MIGRATIONS):
            raise RecordError(
                f"the recovery database {self._path!r} has version {version}; this release reads up to"
                f" {len(MIGRATIONS)}",
                step=self._step_id,
                do="run the release that wrote it, or a newer one",
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
            raise damaged(self._path, self._step_id, f"SQLite's check says: {found[0]}")
        behind = self._is_behind()
        # A WAL that has come since we looked is that of another process, which marks the file just now.
        if behind and not self._had_wal and _wal_size(self._path) == 0:
            raise _without_wal(self._path, self._step_id)
        if behind:
            # Its writer died while it marked the file; the WAL is there.
            self._set_behind(0)


class ReadOnlyDatabase(SqliteDatabase):
    """A connection for who only looks on: it makes and changes no file and holds no lock that a driver waits for.

    Where there is a WAL, it is read with what the driver keeps beside it. Without one all is in the main file, which
    only a checkpoint changes: that is noticed afterwards. A WAL without its index lies in a copy that no driver has
    opened yet; SQLite would have to make the index, so it is made beside another copy.
    """

    def __init__(self, path: str, step_id: str, deadline: float) -> None:
        """Open the database.

        Raises:
            RecordError: it is damaged, of something else, of a newer release, or was copied without its WAL.
            TransientError: it has no tables yet, or not yet those of this release.
            sqlite3.Error: SQLite's own.
        """
        self._path = path
        self._step_id = step_id
        self._aside: TemporaryDirectory[str] | None = None
        self._had_wal = _wal_size(path) > 0
        self._file = os.stat(path)
        opened, how = path, "mode=ro&readonly_shm=1" if self._had_wal else "mode=ro&immutable=1"
        if self._had_wal and not os.path.exists(f"{path}-shm"):
            # Whoever has it open keeps an index. In a driver's own process a copy would be worse than wrong: to close a
            # file drops all POSIX locks that the process has on it (fcntl(2)); SQLite's own connections see to that.
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
        """Refuse what was read of a file that changed meanwhile.

        Raises:
            TransientError: a driver has opened the database since.
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
                do="look again",
            )

    def sync(self) -> None:
        """Leave it as it is: nothing is done that stands on what was read."""

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
                do="nothing: its query makes them at its next start",
            )
        if not self._had_wal and self._is_behind():
            raise _without_wal(self._path, self._step_id)


def _without_wal(path: str, step_id: str) -> RecordError:
    return damaged(path, step_id, "its newest entries were in the -wal file beside it, which is not there")


def _wal_size(path: str) -> int:
    """Return the length of a database's WAL; 0 when there is none."""
    try:
        return os.stat(f"{path}-wal").st_size
    except FileNotFoundError:
        return 0


def waiting(deadline: float) -> Retrying:
    """Return what calls again while another process is in the way, for so many seconds: for what SQLite does not wait.

    It waits for a lock itself, but not for the one that a change of the journal's mode needs while others read.
    """
    return Retrying(
        retry=retry_if_exception(_is_busy),
        stop=stop_after_delay(deadline),
        wait=wait_random_exponential(multiplier=0.005, max=0.2),
        reraise=True,
    )


@contextmanager
def explained(doing: str, step_id: str, path: str, deadline: float) -> Iterator[None]:
    """Turn SQLite's error of the block, or its disk's, into one that says what was done, where, why, and what to do.

    Raises:
        RecordError: the database is damaged.
        ConfigurationError: it cannot be opened or written where it is.
        TransientError: it is locked or its disk full, or anything else.
    """
    try:
        with disk_explained(doing, step_id, path):
            yield
    except sqlite3.Error as error:
        raise _explanation(error, f"{doing} in {path!r} failed", step_id, deadline) from error


def _explanation(error: sqlite3.Error, what: str, step_id: str, deadline: float) -> OutfallError:
    # The extended code's low byte is the primary one (https://www.sqlite.org/rescode.html).
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
    why = f"{getattr(error, 'sqlite_errorname', type(error).__name__)}: {error}"
    if code in _BUSY:
        why = f"{why}; it was waited for {deadline:g} seconds"
        return TransientError(what, step=step_id, why=why, do="end the process that holds the database locked")
    if code in _DAMAGED:
        return RecordError(what, step=step_id, why=why, do=_RESTORE)
    if code in _PLACE_IS_WRONG:
        do = "make the database, its directory and the -wal and -shm files beside it writable for the driver"
        return ConfigurationError(what, step=step_id, why=why, do=do)
    if code == sqlite3.SQLITE_FULL:
        do = "free space there; the next run goes on from what the log holds"
        return TransientError(what, step=step_id, why=why, do=do)
    return TransientError(what, step=step_id, why=why, do="look at that disk; the next run goes on from what it holds")


def _is_busy(error: BaseException) -> bool:
    return isinstance(error, sqlite3.Error) and getattr(error, "sqlite_errorcode", 0) & 0xFF in _BUSY


def damaged(path: str, step_id: str, why: str) -> RecordError:
    """Make the error for a database that must not be gone on from."""
    return RecordError(f"the recovery database {path!r} is damaged", step=step_id, why=why, do=_RESTORE)
