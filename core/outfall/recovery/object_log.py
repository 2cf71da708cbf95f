"""A log in an object store or in HDFS, through a minimal subset of fsspec."""

from __future__ import annotations

import posixpath
import threading
from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Any

from fsspec.spec import AbstractFileSystem

from outfall.errors import ConfigurationError, OutfallError
from outfall.filesystems import open_filesystem
from outfall.location import PACKAGES, Location
from outfall.recovery.file_log import STATES, FileLog, entry_name, temporary_name
from outfall.recovery.location import StoreClientError, unsuitable
from outfall.recovery.log import EntryExistsError
from outfall.trace_points import reached

_memory = threading.Lock()
_proved: set[str] = set()


class ObjectLog(FileLog):
    """Stores entries as objects, created with the store's condition that no object of the name exists."""

    def __init__(self, store: ObjectStore, directory: str, step_id: str) -> None:
        super().__init__(directory, step_id, f"{store.url}/outfall/{step_id}")
        self._store = store

    def _list(self, directory: str) -> list[str]:
        return self._store.names(directory)

    def _load(self, path: str) -> bytes | None:
        return self._store.load([path])[0]

    def _load_all(self, paths: Collection[str]) -> list[bytes | None]:
        return self._store.load(list(paths))

    def _create_entry(self, number: int, data: bytes) -> None:
        self._prove_exclusive_create(number)
        if not self._store.create(self._path(entry_name(number)), data):
            raise EntryExistsError(number)
        reached("log: object created")

    def _prove_exclusive_create(self, number: int) -> None:
        """Probe the store under a name that a clean-up knows, in case that this process dies meanwhile."""
        try:
            self._store.prove_exclusive_create(self._path(temporary_name(number)))
        except ConfigurationError:
            # A clean-up removed the probe, which happens only if the number is not above the newest.
            if max(self._numbers(), default=0) >= number:
                raise EntryExistsError(number) from None
            raise

    def _create_state(self, name: str, data: bytes) -> None:
        self._store.put(self._state_path(name), data)
        reached("log: state durable")

    def _replace(self, path: str, data: bytes) -> None:
        self._store.put(path, data)

    def _remove(self, path: str) -> None:
        self._store.remove(path)

    def _remove_directories(self) -> None:
        for directory in (self._path(STATES), self._directory):
            self._store.remove_directory(directory)


class ObjectStore:
    """Lists, reads, removes, and creates objects exclusively. A missing object is not an error.

    Failures are raised as OSError or `StoreClientError`, because the errors of a client depend on the store.
    """

    def __init__(self, location: Location) -> None:
        """Open the filesystem of a location, with credentials and errors as in `open_filesystem`."""
        self._location = location
        self._fs, _ = open_filesystem(location, "recovery in")
        # fsspec's memory filesystem checks and then writes. It is local to the process, so a lock makes this atomic.
        self._guard: AbstractContextManager[Any] = _memory if location.scheme == "memory" else nullcontext()

    @property
    def url(self) -> str:
        """The URL of the location."""
        return self._location.url().rstrip("/")

    def names(self, directory: str) -> list[str]:
        """Return the current names in a directory."""
        return [name for name, _ in self._listed(directory)]

    def directories(self, directory: str) -> list[str]:
        """Return the current names of subdirectories in a directory."""
        return [name for name, kind in self._listed(directory) if kind == "directory"]

    def _listed(self, directory: str) -> list[tuple[str, str]]:
        self._fs.invalidate_cache(directory)
        try:
            with self._calling(), self._guard:
                found = self._fs.ls(directory, detail=True)
        except FileNotFoundError:
            return []
        return [(posixpath.basename(item["name"].rstrip("/")), item["type"]) for item in found]

    def load(self, paths: Sequence[str]) -> list[bytes | None]:
        """Return the content of each object, `None` for a missing one."""
        with self._calling():
            found = self._fs.cat_ranges(list(paths), None, None, on_error="return") if paths else []
            return [_content(result) for result in found]

    def create(self, path: str, data: bytes) -> bool:
        """Create an object exclusively, and return whether this call has created it.

        A client that receives no response retries its request, and the retry is then rejected because of the first one.
        A rejection therefore counts only if the object has other content. Two callers must not pass the same bytes.
        """
        with self._calling():
            return self._create(path, data)

    def _create(self, path: str, data: bytes) -> bool:
        try:
            with self._guard:
                self._fs.pipe_file(path, data, mode="create")
        except Exception as error:
            if not _is_taken(error):
                raise
            return self.load([path]) == [data]
        return True

    def put(self, path: str, data: bytes) -> None:
        """Write an object, and replace one of the same name."""
        with self._calling():
            self._fs.pipe_file(path, data)

    def remove(self, path: str) -> None:
        """Remove an object if it exists."""
        with self._calling(), self._guard, suppress(FileNotFoundError):
            self._fs.rm_file(path)

    def remove_directory(self, directory: str) -> None:
        """Remove an empty directory of a filesystem that has directories; another one is kept."""
        if getattr(self._fs, "has_directories", False):
            with suppress(OSError):
                self._fs.rmdir(directory)

    def prove_exclusive_create(self, probe: str) -> None:
        """Create an object twice, once per process and location, and check that the second attempt is rejected.

        Older releases of the packages and some servers accept the condition and ignore it. `probe` is the path of the
        object, which is new and is removed again. Raises `ConfigurationError` if the second attempt was not rejected.
        """
        if self._location.url() in _proved:
            return
        # fsspec's default implementation passes the probe, but checks first and writes later.
        if not self._fs.async_impl and type(self._fs).pipe_file is AbstractFileSystem.pipe_file:
            raise self._no_exclusive_create("it checks first and writes later")
        try:
            with self._calling():
                self._probe(probe)
        finally:
            self.remove(probe)
        _proved.add(self._location.url())

    def _probe(self, path: str) -> None:
        try:
            exclusive = self._create(path, b"first")
            reached("log: probe created")
            exclusive = exclusive and not self._create(path, b"second")
        except (TypeError, ValueError, NotImplementedError) as error:
            raise self._no_exclusive_create(f"{type(error).__name__}: {error}") from error
        except FileNotFoundError as error:
            raise ConfigurationError(
                f"nothing can be written to {self._location.url()!r}",
                why=str(error),
                do="create its bucket or container",
            ) from error
        if not exclusive:
            raise self._no_exclusive_create("an object was created twice")

    @contextmanager
    def _calling(self) -> Iterator[None]:
        try:
            yield
        except (OSError, OutfallError, StoreClientError):
            raise
        except Exception as error:
            raise StoreClientError(error) from error

    def _no_exclusive_create(self, why: str) -> ConfigurationError:
        return unsuitable(
            f"the filesystem of {self._location.url()!r} has no exclusive create",
            why=f"{why}, so that two drivers could write the same entry",
            place=f"upgrade {PACKAGES.get(self._location.scheme, 'it')} or the server behind it, or ",
        )


def _is_taken(error: Exception) -> bool:
    """Return whether an object was rejected because one of the name exists."""
    # If the server's response does not name the failed condition (MinIO), s3fs raises a plain OSError.
    answer = getattr(error.__cause__, "response", None)
    status = answer.get("ResponseMetadata", {}).get("HTTPStatusCode") if isinstance(answer, dict) else None
    return isinstance(error, FileExistsError) or status == 412


def _content(result: bytes | Exception) -> bytes | None:
    if isinstance(result, FileNotFoundError):
        return None
    if isinstance(result, Exception):
        raise result
    return result
