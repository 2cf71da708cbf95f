"""A log in an object store or in HDFS, through a minimal subset of fsspec."""

from __future__ import annotations

import posixpath
import threading
from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any

from fsspec.spec import AbstractFileSystem

from outfall.errors import ConfigurationError
from outfall.filesystems import ExplainedClient, open_filesystem
from outfall.location import PACKAGES, Location
from outfall.recovery.file_log import STATES, FileLog, entry_name, temporary_name
from outfall.recovery.location import unsuitable
from outfall.recovery.log import EntryExistsError
from outfall.store_errors import Meaning, StoreError
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

    Failures are raised as `StoreError` or another `OSError`.
    """

    def __init__(self, location: Location) -> None:
        """Open the filesystem of a location, with credentials and errors as in `open_filesystem`."""
        self._location = location
        self._filesystem, _ = open_filesystem(location, "recovery in")
        self._fs = ExplainedClient(self._filesystem, location.scheme)
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
            with self._guard:
                found = self._fs.ls(directory, detail=True)
        except FileNotFoundError:
            return []
        return [(posixpath.basename(item["name"].rstrip("/")), item["type"]) for item in found]

    def load(self, paths: Sequence[str]) -> list[bytes | None]:
        """Return the content of each object, `None` for a missing one."""
        found = self._fs.cat_ranges(list(paths), None, None, on_error="return") if paths else []
        return [self._content(result) for result in found]

    def _content(self, result: bytes | Exception) -> bytes | None:
        if not isinstance(result, Exception):
            return result
        error = self._fs.explained(result, "cat_ranges")
        if isinstance(error, FileNotFoundError):
            return None
        raise error from result

    def create(self, path: str, data: bytes) -> bool:
        """Create an object exclusively, and return whether this call has created it.

        A client that receives no response retries its request, and the retry is then rejected because of the first one.
        A rejection therefore counts only if the object has other content. Two callers must not pass the same bytes.
        """
        try:
            with self._guard:
                self._fs.pipe_file(path, data, mode="create")
        except FileExistsError:
            return self.load([path]) == [data]
        return True

    def put(self, path: str, data: bytes) -> None:
        """Write an object, and replace one of the same name."""
        self._fs.pipe_file(path, data)

    def remove(self, path: str) -> None:
        """Remove an object if it exists."""
        with self._guard, suppress(FileNotFoundError):
            self._fs.rm_file(path)

    def remove_directory(self, directory: str) -> None:
        """Remove an empty directory of a filesystem that has directories; another one is kept."""
        if getattr(self._filesystem, "has_directories", False):
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
        if not self._filesystem.async_impl and type(self._filesystem).pipe_file is AbstractFileSystem.pipe_file:
            raise self._no_exclusive_create("it checks first and writes later")
        try:
            self._probe(probe)
        finally:
            with suppress(PermissionError):  # nothing depends on its removal
                self.remove(probe)
        _proved.add(self._location.url())

    def _probe(self, path: str) -> None:
        try:
            exclusive = self.create(path, b"first")
            reached("log: probe created")
            exclusive = exclusive and not self.create(path, b"second")
        except (TypeError, NotImplementedError) as error:
            raise self._no_exclusive_create(f"{type(error).__name__}: {error}") from error
        except StoreError as error:
            if error.meaning is Meaning.TRANSIENT and isinstance(error.__cause__, ValueError):
                raise self._no_exclusive_create(str(error)) from error
            raise
        if not exclusive:
            raise self._no_exclusive_create("an object was created twice")

    def _no_exclusive_create(self, why: str) -> ConfigurationError:
        return unsuitable(
            f"the filesystem of {self._location.url()!r} has no exclusive create",
            why=f"{why}, so that two drivers could write the same entry",
            place=f"upgrade {PACKAGES.get(self._location.scheme, 'it')} or the server behind it, or ",
        )
