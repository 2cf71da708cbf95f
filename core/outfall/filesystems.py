"""Opens filesystems, explains their errors, and creates directories durably."""

from __future__ import annotations

import errno
import os
import shlex
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from typing import Any

from outfall.errors import ConfigurationError, OutfallError, TransientError
from outfall.location import HDFS, PACKAGES, Location
from outfall.trace_points import reached

# By name, because the installed clients vary and none of them is loaded here.
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
"""Programming errors, of Outfall or of the client, which a user cannot fix."""

_REMEDIES = {
    errno.ENOSPC: "free space there",
    errno.EDQUOT: "free space there, or raise the quota",
    errno.EMFILE: "raise the limit of open files (ulimit -n) of the process that writes",
    errno.ENFILE: "raise the host's limit of open files (sysctl fs.file-max)",
    errno.EFBIG: "raise the limit of the file size (ulimit -f), or use a filesystem that supports larger files",
    errno.EROFS: "mount it for writing",
    errno.EACCES: "correct its owner or mode",
    errno.EPERM: "correct its owner, mode or attributes",
}


def open_filesystem(location: Location, wanted_for: str) -> tuple[Any, str]:
    """Open the filesystem of a location that is not local, and return it with the path of the location in it.

    It caches no listings. Credentials come from its own environment or fsspec's configuration. `wanted_for` is the
    purpose, as the beginning of a sentence. Raises `ImportError`, which names the missing package, or
    `ConfigurationError` if the client cannot be created, for example without credentials.
    """
    # Imported here because the import takes longer than all others for a log on a disk.
    import fsspec

    try:
        if location.scheme == HDFS:
            # Not the one that fsspec has for this scheme: it needs a Hadoop distribution and checks before it creates.
            from outfall.hdfs import Hdfs

            return Hdfs.of(location.path.partition("/")[0]), location.child()
        # A cached listing would hide files that another process has just written.
        filesystem, path = fsspec.url_to_fs(location.url(), use_listings_cache=False)
    except ImportError as error:
        package = PACKAGES.get(location.scheme)
        needed = repr(package) if package else f"the fsspec package for {location.scheme}: ({error})"
        do = f"pip install {shlex.quote(package)}" if package else "install it on driver and executors"
        raise ImportError(
            f"{wanted_for} {location.url()} needs {needed}, which is not installed. What to do: {do}."
        ) from error
    except OutfallError:
        raise
    except Exception as error:
        why = (str(error).splitlines() or [""])[0]
        raise ConfigurationError(
            f"the filesystem of {location.url()!r} cannot be opened",
            why=f"{type(error).__name__}: {why}",
            do="provide credentials in the environment of its client, on driver and executors",
        ) from error
    return filesystem, path


def _explain_client(error: Exception, what: str) -> OutfallError:
    """Return an error with a remedy for a client's error. `what` says what failed, as the beginning of a sentence."""
    why = f"{type(error).__name__}: {error}"
    if is_unset(error):
        do = "provide credentials and region in the environment of the store's client, on driver and executors"
        return ConfigurationError(what, why=why, do=do)
    return TransientError(
        what, why=why, do="check that the store is up and reachable at the address in its client's configuration"
    )


class ExplainedClient:
    """A filesystem whose methods raise only `OSError` and `OutfallError`."""

    def __init__(self, filesystem: Any, where: str) -> None:
        """Wrap a filesystem; `where` is the location in it, for error texts."""
        self._filesystem = filesystem
        self._where = where

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """Return a method of the filesystem."""
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
    """Return whether a client reports missing or incomplete credentials."""
    return any(f"{kind.__module__}.{kind.__name__}" in _UNSET for kind in type(error).__mro__)


def remedy(error: OSError) -> str:
    """Return the remedy for an error of the operating system, as the beginning of a sentence."""
    return _REMEDIES.get(error.errno or 0, "check that filesystem")


def make_durably(directory: str) -> None:
    """Create a directory and its missing parents durably.

    The name of each level is synced before anything is created below it. If another process died while creating them,
    only the deepest existing level may not be durable, so this one is synced too.
    """
    missing = _missing_levels(directory)
    deepest = os.path.dirname(missing[0]) if missing else directory
    # A process that may not read the parent did not create this level.
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
    """Return the levels of a path that do not exist, from the top."""
    missing: list[str] = []
    while not os.path.isdir(directory):
        missing.insert(0, directory)
        directory = os.path.dirname(directory)
    return missing
