"""What a filesystem's errors mean for a log."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from outfall.disk_errors import remedy
from outfall.errors import ConfigurationError, OutfallError, TransientError
from outfall.recovery.location import USE_INSTEAD

_PLACE_IS_WRONG = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG}


@contextmanager
def explained(doing: str, step_id: str | None, where: str) -> Iterator[None]:
    """Turn an OSError of the block into an error that says what was being done, where, why, and what to do.

    Raises:
        ConfigurationError: the place will not do until somebody changes it or its rights.
        TransientError: anything else. What was being written may or may not be there.
    """
    try:
        yield
    except OSError as error:
        raise _explanation(error, f"{doing} in {where!r} failed", step_id) from error


def _explanation(error: OSError, what: str, step_id: str | None) -> OutfallError:
    why = f"{type(error).__name__}: {error}"
    if error.errno in _PLACE_IS_WRONG or isinstance(error, PermissionError):
        do = f"make every level of it a directory that driver and executors may write to, or {USE_INSTEAD}"
        return ConfigurationError(what, step=step_id, why=why, do=do)
    do = f"{remedy(error)}; the next run goes on from what the log holds"
    return TransientError(what, step=step_id, why=why, do=do)
