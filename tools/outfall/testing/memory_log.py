"""Recovery data in memory, which is gone with the test: the quickest log there is."""

from __future__ import annotations

from collections.abc import Sequence

from outfall.recovery.file_log import FileLog, entry_name
from outfall.recovery.log import EntryExistsError, RecoveryConfig, RecoveryLog, check_step_id
from outfall.testing.by_reference import ByReference
from outfall.trace_points import reached


class MemoryRecoveryConfig(ByReference, RecoveryConfig):
    """The recovery data of one test, in this process only. Copies and pickles of it share what is stored."""

    def __init__(self) -> None:
        """Hold nothing yet."""
        self.files: dict[str, bytes] = {}

    def open(self, step_id: str) -> RecoveryLog:
        return MemoryLog(self.files, f"outfall/{check_step_id(step_id)}", step_id)

    def steps(self) -> Sequence[str]:
        return sorted({path.split("/")[1] for path in self.files})

    def url(self) -> str:
        """Return a name that tells this recovery data from others. No configuration can be made of it."""
        return f"test-memory://{id(self)}"


class MemoryLog(FileLog):
    """Entries are items of a dict, which are created at once."""

    def __init__(self, files: dict[str, bytes], directory: str, step_id: str) -> None:
        """Open the log of one step in `files`."""
        super().__init__(directory, step_id, "this process's memory")
        self._files = files

    def _list(self, directory: str) -> list[str]:
        start = f"{directory}/"
        rests = [path.removeprefix(start) for path in list(self._files) if path.startswith(start)]
        return [rest for rest in rests if "/" not in rest]

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

    def _remove(self, path: str) -> None:
        self._files.pop(path, None)
