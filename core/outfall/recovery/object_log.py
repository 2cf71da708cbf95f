"""A log in an object store, through fsspec reduced to what a log needs of it."""

from __future__ import annotations

import posixpath
import threading
import uuid
from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Any

from fsspec.spec import AbstractFileSystem

from outfall.errors import ConfigurationError, OutfallError
from outfall.filesystems import open_filesystem
from outfall.location import PACKAGES, Location
from outfall.recovery.file_log import FileLog, entry_name
from outfall.recovery.location import USE_INSTEAD, StoreClientError
from outfall.recovery.log import EntryExistsError
from outfall.trace_points import reached

_memory = threading.Lock()
_proved: set[str] = set()


class ObjectLog(FileLog):
    """Entries are objects, created with the store's own condition that there be none; durable when created."""

    def __init__(self, store: ObjectStore, directory: str, step_id: str) -> None:
        super().__init__(directory, step_id, f"{store.scheme}://{directory}")
        self._store = store

    def _list(self, directory: str) -> list[str]:
        return self._store.names(directory)

    def _load(self, path: str) -> bytes | None:
        return self._store.load([path])[0]

    def _load_all(self, paths: Collection[str]) -> list[bytes | None]:
        return self._store.load(list(paths))

    def _create_entry(self, number: int, data: bytes) -> None:
        self._store.prove_exclusive_create()
        if not self._store.create(self._path(entry_name(number)), data):
            raise EntryExistsError(number)
        reached("log: object created")

    def _create_state(self, name: str, data: bytes) -> None:
        self._store.put(self._state_path(name), data)
        reached("log: state durable")

    def _replace(self, path: str, data: bytes) -> None:
        self._store.put(path, data)

    def _remove(self, path: str) -> None:
        self._store.remove(path)


class ObjectStore:
    """Lists, reads, removes, and creates exclusively. What is missing is no error.

    A failure is an OSError, or a `StoreClientError`: what a client raises by itself depends on the store.
    """

    def __init__(self, location: Location) -> None:
        """Open the filesystem of a location; credentials come from its own environment and fsspec's configuration.

        Raises:
            ImportError: a package is missing; the text names it.
            ConfigurationError: its client cannot be made, as without credentials.
        """
        self._location = location
        self._fs, _ = open_filesystem(location, "recovery in")
        # fsspec's memory looks and then writes; it lives in this process, so that a lock makes one step of it.
        self._guard: AbstractContextManager[Any] = _memory if location.scheme == "memory" else nullcontext()

    @property
    def scheme(self) -> str:
        """What URLs of its objects begin with."""
        return self._location.scheme

    def names(self, directory: str) -> list[str]:
        """Return the names in a directory, as they are now."""
        return [name for name, _ in self._listed(directory)]

    def directories(self, directory: str) -> list[str]:
        """Return the names of what has something below it in a directory, as they are now."""
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
        """Return the content of each object, `None` for one that is gone."""
        with self._calling():
            found = self._fs.cat_ranges(list(paths), None, None, on_error="return") if paths else []
            return [_content(result) for result in found]

    def create(self, path: str, data: bytes) -> bool:
        """Create an object exclusively.

        A client that hears no answer sends its request again and is then refused because of itself. So a refusal is
        believed only when something else lies there; no two callers may bring the same bytes.

        Returns:
            Whether it lies there now because of this call.
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
        """Write an object, in place of one of the same name."""
        with self._calling():
            self._fs.pipe_file(path, data)

    def remove(self, path: str) -> None:
        """Remove an object, or find it gone."""
        with self._calling(), self._guard, suppress(FileNotFoundError):
            self._fs.rm_file(path)

    def prove_exclusive_create(self) -> None:
        """Create an object twice, once per process and location: the second must be refused.

        Older releases of the packages and some servers accept the condition and ignore it.

        Raises:
            ConfigurationError: it was not refused.
        """
        if self._location.url() in _proved:
            return
        # fsspec's default passes a probe, but looks first and writes later.
        if not self._fs.async_impl and type(self._fs).pipe_file is AbstractFileSystem.pipe_file:
            raise self._no_exclusive_create("it looks first and writes later")
        probe = self._location.child("outfall", f".probe-{uuid.uuid4().hex}")
        try:
            with self._calling():
                self._probe(probe)
        finally:
            self.remove(probe)
        _proved.add(self._location.url())

    def _probe(self, path: str) -> None:
        try:
            exclusive = self._create(path, b"first") and not self._create(path, b"second")
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
        return ConfigurationError(
            f"the filesystem of {self._location.url()!r} has no exclusive create",
            why=f"{why}, so that two drivers could write the same entry",
            do=f"upgrade {PACKAGES.get(self._location.scheme, 'it')} or the server behind it, or {USE_INSTEAD}",
        )


def _is_taken(error: Exception) -> bool:
    """Whether an object was refused because there is one."""
    # Where the server's answer does not name the condition that failed (MinIO), s3fs raises a plain OSError.
    answer = getattr(error.__cause__, "response", None)
    status = answer.get("ResponseMetadata", {}).get("HTTPStatusCode") if isinstance(answer, dict) else None
    return isinstance(error, FileExistsError) or status == 412


def _content(result: bytes | Exception) -> bytes | None:
    if isinstance(result, FileNotFoundError):
        return None
    if isinstance(result, Exception):
        raise result
    return result
