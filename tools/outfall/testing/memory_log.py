"""Recovery data and targets in memory, for fast tests."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

from outfall.recovery.file_log import FileLog, entry_name
from outfall.recovery.log import EntryExistsError, RecoveryConfig, RecoveryLog, check_step_id
from outfall.trace_points import reached

_living: weakref.WeakValueDictionary[int, ByReference] = weakref.WeakValueDictionary()


class ByReference:
    """Base of a fake target that stays the same object in pickled copies of a sink in this process.

    Tasks use copies of the sink, as on Spark. Without this base, each copy would have its own target.
    """

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        """Pickle the address only."""
        _living[id(self)] = self
        return _find, (id(self),)

    def __deepcopy__(self, memo: dict[int, Any]) -> ByReference:
        """A target has no copies."""
        return self


def _find(address: int) -> ByReference:
    return _living[address]


class MemoryRecoveryConfig(ByReference, RecoveryConfig):
    """Recovery data of one test in this process. Copies and pickles share their data."""

    def __init__(self) -> None:
        """Hold nothing yet."""
        self.files: dict[str, bytes] = {}

    def open(self, step_id: str) -> RecoveryLog:
        return MemoryLog(self.files, f"outfall/{check_step_id(step_id)}", step_id)

    def steps(self) -> Sequence[str]:
        return sorted({path.split("/")[1] for path in self.files})

    def url(self) -> str:
        """Return a unique name. It cannot be parsed into a configuration."""
        return f"test-memory://{id(self)}"


class MemoryLog(FileLog):
    """A log whose entries are items of a dict, which are created atomically."""

    def __init__(self, files: dict[str, bytes], directory: str, step_id: str) -> None:
        """Open the log of one step in `files`."""
        super().__init__(directory, step_id, "this process's memory")
        self._files = files

    def _list(self, directory: str) -> list[str]:
        start = f"{directory}/"
        rests = [path.removeprefix(start) for path in list(self._files) if path.startswith(start)]
        return list(dict.fromkeys(rest.partition("/")[0] for rest in rests))

    def _load(self, path: str) -> bytes | None:
        return self._files.get(path)

    def _create_entry(self, number: int, data: bytes) -> None:
        path = self._path(entry_name(number))
        if self._files.setdefault(path, data) is not data:
            raise EntryExistsError(number)
        reached("log: entry created")

    def _create_state(self, name: str, data: bytes) -> None:
        self._files[self._state_path(name)] = data
        reached("log: state durable")

    def _replace(self, path: str, data: bytes) -> None:
        self._files[path] = data

    def _remove(self, path: str) -> None:
        self._files.pop(path, None)
