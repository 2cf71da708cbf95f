"""Opens filesystems, gives their errors a meaning, and creates directories durably."""

from __future__ import annotations

import errno
import os
import shlex
import stat
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from typing import Any

from outfall.errors import ConfigurationError, OutfallError
from outfall.location import HDFS, OBJECT_STORES, PACKAGES, Location
from outfall.store_errors import Meaning, Operation, StoreError, is_known, meaning_of, no_bucket, store_error
from outfall.trace_points import reached

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


class IrregularFileError(OSError):
    """Something else than a file stands under its name, or a file that nobody has written so large."""


def read_regular(path: str, largest: int | None = None) -> bytes:
    """Return the content of a file on a disk.

    Raises `IrregularFileError` for a pipe or a device, which could be read without end, and for a file of more than
    `largest` bytes; and `OSError`.
    """
    # Otherwise opening a pipe waits for a writer.
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise IrregularFileError(errno.EINVAL, "it is not a regular file", path)
        if largest is not None and status.st_size > largest:
            raise IrregularFileError(errno.EFBIG, f"it has {status.st_size:,} bytes", path)
        return file.read()


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


_OPERATIONS = {
    "cat_file": Operation.READ,
    "cat_ranges": Operation.READ,
    "cp_file": Operation.COPY,
    "find": Operation.LIST,
    "info": Operation.READ,
    "ls": Operation.LIST,
    "makedirs": Operation.CREATE,
    "mv": Operation.CREATE,
    "open": Operation.READ,
    "pipe_file": Operation.CREATE,
    "put_file": Operation.CREATE,
    "rm": Operation.DELETE,
    "rm_file": Operation.DELETE,
}
"""By method of fsspec, what it does."""

_MISS_A_BUCKET = ("find", "pipe_file", "put_file")
"""Methods that, in an object store, miss nothing but the bucket."""


class ExplainedClient:
    """A filesystem whose methods raise only `StoreError`, other `OSError`s and `OutfallError`.

    `FileNotFoundError` is about a file, never about a missing bucket or a missing right. Each refusal of an exclusive
    create is a `FileExistsError`.
    """

    def __init__(self, filesystem: Any, scheme: str) -> None:
        """Wrap a filesystem of a scheme of `Location`."""
        self._filesystem = filesystem
        self._scheme = scheme

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """Return a method of the filesystem."""
        method = getattr(self._filesystem, name)

        @wraps(method)
        def call(*args: Any, **options: Any) -> Any:
            try:
                return method(*args, **options)
            except (OutfallError, *_MISTAKES):
                raise
            except Exception as error:
                explained = self.explained(error, name)
                if explained is error:
                    raise
                raise explained from error

        return call

    def explained(self, error: Exception, method: str) -> Exception:
        """Return what an error of a method is raised as; the error itself if it is understood as it is."""
        if isinstance(error, FileExistsError | StoreError):
            return error
        if not is_known(error):
            if isinstance(error, FileNotFoundError) and not self._misses_bucket(error, method):
                return error
            if isinstance(error, OSError) and error.errno in _REMEDIES:
                return error
        meaning = meaning_of(error)
        if meaning is Meaning.TAKEN:
            return FileExistsError(str(error))
        if isinstance(error, FileNotFoundError) and meaning is Meaning.TRANSIENT:
            return no_bucket(error) if self._misses_bucket(error, method) else error
        return store_error(error, self._scheme, _OPERATIONS.get(method))

    def _misses_bucket(self, error: FileNotFoundError, method: str) -> bool:
        # An error of a file on this host has its name.
        return self._scheme in OBJECT_STORES and method in _MISS_A_BUCKET and error.filename is None


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
