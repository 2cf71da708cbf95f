"""What SQLite's errors mean for a log."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_random_exponential

from outfall.errors import ConfigurationError, OutfallError, RecordError, TransientError

_BUSY = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL}
_DAMAGED = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_FORMAT}
_PLACE_IS_WRONG = {sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH}

RESTORE = "restore the database from a copy that was made with its -wal file, or start the query with a new checkpoint"


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
    """Turn SQLite's error of the block into one that says what was being done, where, why, and what to do.

    Raises:
        RecordError: the database is damaged.
        ConfigurationError: it cannot be opened or written where it is.
        TransientError: it is locked or its disk full, or anything else.
    """
    try:
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
        return RecordError(what, step=step_id, why=why, do=RESTORE)
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
    return RecordError(f"the recovery database {path!r} is damaged", step=step_id, why=why, do=RESTORE)
