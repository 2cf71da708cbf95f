"""A log in an object store."""

from __future__ import annotations

from collections.abc import Collection

from outfall.recovery import names
from outfall.recovery.file_log import FileLog
from outfall.recovery.log import EntryExistsError
from outfall.recovery.objects import ObjectStore
from outfall.trace_points import reached


class FsspecLog(FileLog):
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
        if not self._store.create(self._path(names.entry_name(number)), data):
            raise EntryExistsError(number)
        reached("log: object created")

    def _create_state(self, name: str, data: bytes) -> None:
        self._store.put(self._state_path(name), data)
        reached("log: state durable")

    def _remove(self, path: str) -> None:
        self._store.remove(path)
