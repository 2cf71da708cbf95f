"""Locations that can store a log, and explanations of their errors."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from outfall.errors import ConfigurationError, OutfallError, RecordError, TransientError
from outfall.filesystems import IrregularFileError, remedy
from outfall.location import HDFS, PACKAGES, REMOTE, Location, Purpose, UnsupportedSchemeError
from outfall.plugins import RECOVERY
from outfall.store_errors import StoreError, translated

_OTHERS = (
    "an absolute path on a POSIX filesystem that driver and executors share and that has hard links"
    " (NFS does), or to a URL of an object store or of HDFS: "
    f"{', '.join(f'{scheme}://' for scheme in REMOTE if scheme != 'memory')}"
    f" (hdfs:// needs pip install '{PACKAGES[HDFS]}')"
)
_ANY = (
    f"set recovery= to {_OTHERS}, or to a database, such as that of the sink:"
    ' recovery="postgresql://user@host/database" or recovery="mysql://user@host/database"'
)


class UnsuitableLocationError(ConfigurationError):
    """A location cannot store a log, so that another one is proposed."""

    place = ""
    """What can be done about the location itself."""


def unsuitable(
    what: str, why: str | None, *, step: str | None = None, place: str = "", database: str | None = None
) -> UnsuitableLocationError:
    """Return an error that proposes a database, given as a URL, or any location."""
    do = _ANY
    if database is not None:
        sure = " (env:NAME in it is a variable of each host that connects)" if "=env:" in database else ""
        do = f'set recovery="{database}", which is the database of the sink{sure}; or set it to {_OTHERS}'
    error = UnsuitableLocationError(what, step=step, why=why, do=place + do)
    error.place = place
    return error


@contextmanager
def proposing(database: Callable[[], str | None]) -> Iterator[None]:
    """Let errors about an unsuitable location in the block suggest the database of the sink.

    `database` returns a recovery location in it, or `None` if the sink has none.
    """
    try:
        yield
    except UnsuitableLocationError as error:
        found = None
        # A sink whose own options are wrong is reported later.
        with suppress(OutfallError):
            found = database()
        if found is None:
            raise
        raise unsuitable(error.what, error.why, step=error.step, place=error.place, database=found) from error.__cause__


_PLACE_IS_WRONG = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG}

_THEN = "the next run continues from the recorded state"

_RECOVERY = Purpose(
    "recovery location",
    REMOTE,
    "is not known to create files exclusively, which all guarantees require; no installed distribution registers a"
    f" store for it in {RECOVERY}",
    _ANY,
)


def recovery_location(text: str) -> Location:
    """Parse an absolute path or a URL.

    Raises `ConfigurationError` if the location is relative, contains credentials, or cannot store a log.
    """
    try:
        return Location.parse(text, _RECOVERY)
    except UnsupportedSchemeError as error:
        raise unsuitable(error.what, error.why) from None


@contextmanager
def translated_errors(doing: str, step_id: str | None, where: str) -> Iterator[None]:
    """Convert an error of the block into one that states operation, location, cause and remedy.

    Raises `ConfigurationError` if the location or its permissions must be changed, or credentials are missing. Any
    other error becomes `TransientError`: the written data may or may not exist.
    """
    try:
        yield
    except (IrregularFileError, MemoryError) as error:
        raise RecordError(
            f"{doing} in {where!r} failed",
            step=step_id,
            why="it does not fit into memory" if isinstance(error, MemoryError) else str(error),
            do="restore the recovery data from a copy, or start the query with a new checkpoint",
        ) from error
    except StoreError as error:
        what = f"{doing} in {where!r} failed"
        raise translated(error, what, then=_THEN, refused=ConfigurationError, step=step_id) from error.__cause__
    except OSError as error:
        raise _explanation(error, f"{doing} in {where!r} failed", step_id) from error


def _explanation(error: OSError, what: str, step_id: str | None) -> OutfallError:
    why = f"{type(error).__name__}: {error}"
    if error.errno in _PLACE_IS_WRONG or isinstance(error, PermissionError):
        place = "make every level of the path a directory that driver and executors can write, or "
        return unsuitable(what, why, step=step_id, place=place)
    return TransientError(what, step=step_id, why=why, do=f"{remedy(error)}; {_THEN}")
