"""Filesystems: how one is opened, what its errors mean, and how a directory's name survives the host."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from typing import Any

from outfall.errors import ConfigurationError, OutfallError, TransientError
from outfall.location import PACKAGES, Location
from outfall.trace_points import reached

# By name: which clients there are depends on what is installed, and none of them is loaded here.
_UNSET = {
    "azure.core.exceptions.ClientAuthenticationError",
    "botocore.exceptions.NoAuthTokenError",
    "botocore.exceptions.NoCredentialsError",
    "botocore.exceptions.NoRegionError",
    "botocore.exceptions.PartialCredentialsError",
    "botocore.exceptions.ProfileNotFound",
    "botocore.exceptions.SSOError",
    "google.auth.exceptions.DefaultCredentialsError",
}

_MISTAKES = (TypeError, AttributeError, NameError, AssertionError, LookupError, NotImplementedError)
"""Errors of programs, ours or the client's: nobody who operates a query can do anything about them."""

_REMEDIES = {
    errno.ENOSPC: "free space there",
    errno.EDQUOT: "free space there, or have the quota raised",
    errno.EMFILE: "raise the limit of open files (ulimit -n) of the process that writes",
    errno.ENFILE: "raise the host's limit of open files (sysctl fs.file-max)",
    errno.EFBIG: "raise the limit of a file's size (ulimit -f), or use a filesystem that takes larger files",
    errno.EROFS: "mount it for writing",
    errno.EACCES: "correct its owner or mode",
    errno.EPERM: "correct its owner, mode or attributes",
}


def open_filesystem(location: Location, wanted_for: str) -> tuple[Any, str]:
    """Open the filesystem of a location; credentials come from its own environment and fsspec's configuration.

    Args:
        location: not a local one.
        wanted_for: what needs it, as the beginning of a sentence.

    Returns:
        The filesystem, whose listings come from no cache, and the location's path in it.

    Raises:
        ImportError: a package is missing; the text names it.
        ConfigurationError: its client cannot be made, as without credentials.
    """
    # Here and not above: it takes longer to import than all that a log on a disk needs.
    import fsspec

    try:
        # A listing from a cache would hide what another process has just written.
        filesystem, path = fsspec.url_to_fs(location.url(), use_listings_cache=False)
    except ImportError as error:
        package = PACKAGES.get(location.scheme)
        needed = repr(package) if package else f"what fsspec needs for {location.scheme}: ({error})"
        raise ImportError(
            f"{wanted_for} {location.url()} needs {needed}, which is not installed."
            f" What to do: {f'pip install {package}' if package else 'install it on driver and executors'}."
        ) from error
    except OutfallError:
        raise
    except Exception as error:
        raise ConfigurationError(
            f"the filesystem of {location.url()!r} cannot be opened",
            why=f"{type(error).__name__}: {error}",
            do="give credentials where its client looks for them, for driver and executors",
        ) from error
    return filesystem, path


def _explain_client(error: Exception, what: str) -> OutfallError:
    """Make the error that says what to do about one of a client.

    Args:
        error: what the client raised.
        what: what failed, as the beginning of a sentence.
    """
    why = f"{type(error).__name__}: {error}"
    if is_unset(error):
        do = "give credentials and region where the store's client looks for them, for driver and executors"
        return ConfigurationError(what, why=why, do=do)
    return TransientError(
        what, why=why, do="see that the store is up and reachable, at the address that its client is given"
    )


class ExplainedClient:
    """A filesystem whose methods raise an OSError or an `OutfallError`, whatever its client raises."""

    def __init__(self, filesystem: Any, where: str) -> None:
        """Stand before a filesystem; `where` is the place in it, for texts."""
        self._filesystem = filesystem
        self._where = where

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """Return one of the filesystem's methods."""
        method = getattr(self._filesystem, name)

        @wraps(method)
        def call(*args: Any, **options: Any) -> Any:
            try:
                return method(*args, **options)
            except (OSError, OutfallError, *_MISTAKES):
                raise
            except Exception as error:
                raise _explain_client(error, f"the object store's client failed at {self._where}") from error

        return call


def is_unset(error: Exception) -> bool:
    """Whether a client says that it was given no credentials, or not all that it needs."""
    return any(f"{kind.__module__}.{kind.__name__}" in _UNSET for kind in type(error).__mro__)


def remedy(error: OSError) -> str:
    """Return what the reader of an operating system's error can do, as the beginning of a sentence."""
    return _REMEDIES.get(error.errno or 0, "look at that filesystem")


def make_durably(directory: str) -> None:
    """Make a directory with what is missing above it, durably.

    Each level's name is durable before anything is made below it. So of the levels found only the deepest may not be
    yet, when its maker died: it is synced even though it is there.
    """
    missing = _missing_levels(directory)
    deepest = os.path.dirname(missing[0]) if missing else directory
    # Who may not read the level above did not make this one.
    with suppress(PermissionError):
        sync_directory(os.path.dirname(deepest))
    for level in missing:
        with suppress(FileExistsError):
            os.mkdir(level)
        reached("log: directory made")
        sync_directory(os.path.dirname(level))


def sync_directory(path: str) -> None:
    """Make the names in a directory durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _missing_levels(directory: str) -> list[str]:
    """The levels of a path that do not exist, from the top."""
    missing: list[str] = []
    while not os.path.isdir(directory):
        missing.insert(0, directory)
        directory = os.path.dirname(directory)
    return missing
