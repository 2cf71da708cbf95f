"""Where a log can lie, and what the errors of such a place mean."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from outfall.errors import ConfigurationError, OutfallError, TransientError
from outfall.filesystems import is_unset, remedy
from outfall.location import OBJECT_STORES, Location, Purpose
from outfall.plugins import RECOVERY

USE_INSTEAD = (
    "give recovery= an absolute path on a POSIX filesystem that driver and executors share and that has hard links"
    " (NFS does), or a URL of an object store: "
    f"{', '.join(f'{scheme}://' for scheme in OBJECT_STORES if scheme != 'memory')}"
)

_PLACE_IS_WRONG = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG}

_RECOVERY = Purpose(
    "recovery location",
    OBJECT_STORES,
    "is not known for creating a file exclusively, which all safety stands on; no installed distribution registers a"
    f" store for it in {RECOVERY}",
    USE_INSTEAD,
)


def recovery_location(text: str) -> Location:
    """Understand an absolute path or a URL.

    Raises:
        ConfigurationError: it is relative, carries credentials, or no log can lie there.
    """
    return Location.parse(text, _RECOVERY)


class StoreClientError(Exception):
    """A store's own client failed, and not with an OSError. For `explained`."""

    def __init__(self, error: Exception) -> None:
        """Remember what it raised."""
        super().__init__(str(error))
        self.error = error


@contextmanager
def explained(doing: str, step_id: str | None, where: str) -> Iterator[None]:
    """Turn an error of the block into one that says what was being done, where, why, and what to do.

    Raises:
        ConfigurationError: the place will not do until somebody changes it or its rights, or gives credentials.
        TransientError: anything else. What was being written may or may not be there.
    """
    try:
        yield
    except OSError as error:
        raise _explanation(error, f"{doing} in {where!r} failed", step_id) from error
    except StoreClientError as error:
        raise _client_explanation(error.error, f"{doing} in {where!r} failed", step_id) from error.error


def _explanation(error: OSError, what: str, step_id: str | None) -> OutfallError:
    why = f"{type(error).__name__}: {error}"
    if error.errno in _PLACE_IS_WRONG or isinstance(error, PermissionError):
        do = f"make every level of it a directory that driver and executors may write to, or {USE_INSTEAD}"
        return ConfigurationError(what, step=step_id, why=why, do=do)
    do = f"{remedy(error)}; the next run goes on from what the log holds"
    return TransientError(what, step=step_id, why=why, do=do)


def _client_explanation(error: Exception, what: str, step_id: str | None) -> OutfallError:
    why = f"{type(error).__name__}: {error}"
    if is_unset(error):
        do = "provide credentials and region in the environment of that client, on driver and executors"
        return ConfigurationError(what, step=step_id, why=why, do=do)
    do = "see that the store is up and reachable; the next run goes on from what the log holds"
    return TransientError(what, step=step_id, why=why, do=do)
