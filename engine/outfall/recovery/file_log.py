"""A log with one file per entry, for all filesystems."""

from __future__ import annotations

import re
import uuid
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress

from outfall.errors import TransientError
from outfall.recovery.location import translated_errors
from outfall.recovery.log import (
    EntryExistsError,
    LogEntry,
    RecoveryLog,
    check_state_name,
    heartbeat_generation,
    missing_state,
    require_newest,
    state_generation,
    state_name,
)
from outfall.trace_points import reached

STATES = "states"
"""The directory of large states, below the log's own."""

_ENTRY = re.compile(r"([0-9]{20})\.json")
# Where a file is written under a temporary name of its filesystem, a temporary file has the form of both.
_TEMPORARY = re.compile(r"(?:\.tmp-){1,2}([0-9]{20})(?:-[0-9a-f]{32}){1,2}")
_TEMPORARY_STATE = re.compile(r"\.tmp-g([0-9]+)-.*-[0-9a-f]{32}")
_ROUNDS = 20


class FileLog(RecoveryLog):
    """Implements a log with files. Subclasses provide the operations of a filesystem.

    ```
    <location>/outfall/<step_id>/00000000000000000007.json       entry 7
                                 .tmp-…                          an incomplete entry, or a probe of the store
                                 states/g5-<label>-<random>.state
                                 states/g5-task-3.heartbeat      retries of a task; no decision depends on it
    ```
    Requirements: an entry is created completely and exclusively, or not at all; a listing contains every file that
    existed before it began and is not removed meanwhile; the newest entry is never removed, except by `erase`.

    An epoch lists the log once to read it, and once for each entry, after its creation. See docs/protocol.md.
    """

    def __init__(self, directory: str, step_id: str, where: str | None = None) -> None:
        """Set the directory, and its name in error texts. Creates and reads nothing."""
        self._directory = directory
        self._where = where or directory
        self._step_id = step_id
        self._may_have_states = True
        """Whether the last listing of the log contained its directory, so that an idle step costs one listing."""
        self._names: list[str] | None = None
        """The last listing of the log; `None` if this object has created or removed entries since."""
        self._end: LogEntry | None = None
        """The newest entry that this object has read or appended."""

    def read(self, *, last: int | None = None, known: Mapping[int, bytes] | None = None) -> list[LogEntry]:
        if last is not None and last < 0:
            raise ValueError(f"last must not be negative, not {last}")
        with translated_errors("reading the recovery log", self._step_id, self._where):
            found = self._consistent(last, known or {})
        self._end = found[-1] if found else None
        return found

    def numbers(self) -> list[int]:
        with translated_errors("listing the recovery log", self._step_id, self._where):
            return self._numbers()

    def listed(self) -> list[int]:
        return self.numbers() if self._names is None else _sorted_numbers(entry_number, self._names)

    def append(self, data: bytes, *, after: int) -> int:
        number = after + 1
        with translated_errors(f"appending recovery entry {number}", self._step_id, self._where):
            # A writer that has seen this end of the log does not list it again: an older end is refused below.
            if self._names is None or max(self.listed(), default=0) != after:
                self._refuse_unless_newest(self._numbers(), after)
            reached("log: newest checked")
            self._names = None
            try:
                self._create_entry(number, data)
            except FileNotFoundError:
                self._refuse_unless_newest(self._numbers(), after)
                raise
            self._refuse_if_passed(number, after)
        self._end = LogEntry(number, data)
        return number

    def clean_up(self, *, keep: Collection[int], states: Collection[str], generation: int) -> None:
        with translated_errors("cleaning up the recovery log", self._step_id, self._where):
            self._clean_up_entries(keep)
            self._clean_up_states(states, generation)

    def write_state(self, name: str, data: bytes, *, generation: int) -> str:
        stored = state_name(name, generation)
        with translated_errors(f"writing the state {name!r}", self._step_id, self._where):
            self._create_state(stored, data)
            self._may_have_states = True
        return stored

    def read_state(self, name: str) -> bytes:
        check_state_name(name)
        with translated_errors(f"reading the state {name!r}", self._step_id, self._where):
            data = self._load(self._state_path(name))
        if data is None:
            raise missing_state(name, where=repr(self._where), step_id=self._step_id)
        return data

    def restore(self, entries: Sequence[LogEntry], states: Mapping[str, bytes]) -> None:
        with translated_errors("copying a recovery log to", self._step_id, self._where):
            for name, data in states.items():
                if self._load(self._state_path(name)) != data:
                    self._remove(self._state_path(name))
                    self._create_state(name, data)
            there = set(self._numbers())
            for entry in sorted(entries, key=lambda entry: entry.number, reverse=True):
                if entry.number not in there:
                    self._create_entry(entry.number, entry.data)
                    reached("log: entry restored")
            self._names = None

    def set_heartbeat(self, name: str, data: bytes | None) -> None:
        with translated_errors("writing a heartbeat", self._step_id, self._where):
            if data is None:
                self._remove(self._state_path(name))
            else:
                self._replace(self._state_path(name), data)
                self._may_have_states = True

    def heartbeats(self) -> list[bytes]:
        if not self._may_have_states:
            return []
        with translated_errors("reading heartbeats", self._step_id, self._where):
            names = [name for name in self._list(f"{self._directory}/{STATES}") if name.endswith(".heartbeat")]
            return [data for data in self._load_all([self._state_path(name) for name in names]) if data is not None]

    def erase(self) -> None:
        with translated_errors("erasing the recovery log", self._step_id, self._where):
            listed, self._names, self._end = self._list(self._directory), None, None
            for number in _sorted_numbers(entry_number, listed):
                self._remove(self._path(entry_name(number)))
                reached("log: entry erased")
            for name in listed:
                if _temporary_number(name) is not None:
                    self._remove(self._path(name))
            for name in self._list(f"{self._directory}/{STATES}"):
                numbers = (state_generation(name), heartbeat_generation(name), _number(_TEMPORARY_STATE, name))
                if any(number is not None for number in numbers):
                    self._remove(self._state_path(name))
            self._remove_directories()

    # Operations of a filesystem. A missing file is not an error.

    @abstractmethod
    def _list(self, directory: str) -> list[str]:
        """Return the names of files and directories in a directory; none if it does not exist."""

    @abstractmethod
    def _load(self, path: str) -> bytes | None:
        """Return the content of a file; `None` if it does not exist."""

    def _load_all(self, paths: Collection[str]) -> list[bytes | None]:
        """Return the content of each file, as in `_load`."""
        return [self._load(path) for path in paths]

    @abstractmethod
    def _create_entry(self, number: int, data: bytes) -> None:
        """Create the file of an entry, completely, durably and exclusively.

        Raises `EntryExistsError` if the number is taken.
        """

    @abstractmethod
    def _create_state(self, name: str, data: bytes) -> None:
        """Create the file of a state durably. The name is new."""

    @abstractmethod
    def _replace(self, path: str, data: bytes) -> None:
        """Replace a file in the directory of states completely. It need not be durable."""

    @abstractmethod
    def _remove(self, path: str) -> None:
        """Remove a file if it exists."""

    def _remove_directories(self) -> None:
        """Remove the directories of the log if they are empty and the filesystem has directories."""

    def _make_durable(self) -> None:
        """Make the files of the last listing durable."""

    # Common to all filesystems.

    def _path(self, name: str) -> str:
        return f"{self._directory}/{name}"

    def _state_path(self, name: str) -> str:
        return f"{self._directory}/{STATES}/{name}"

    def _numbers(self) -> list[int]:
        self._names = self._list(self._directory)
        self._may_have_states = STATES in self._names
        return _sorted_numbers(entry_number, self._names)

    def _consistent(self, last: int | None, known: Mapping[int, bytes]) -> list[LogEntry]:
        """Read entries that all existed at one moment. Entries that a clean-up removes meanwhile are omitted.

        If an entry is missing, another writer has appended, and the listing is outdated too. Entries never change, so
        each is read only once.
        """
        numbers = self._newest(last)
        found = self._still_here(known, numbers)
        if found.keys() >= set(numbers):
            return [LogEntry(number, found[number]) for number in numbers]  # durable since this process knows them
        for _ in range(_ROUNDS):
            missing = [number for number in numbers if number not in found]
            loaded = self._load_all([self._path(entry_name(number)) for number in missing])
            found |= {number: data for number, data in zip(missing, loaded, strict=True) if data is not None}
            if all(number in found for number in numbers):
                # A writer may have died before its entry was durable. The entry must not disappear after a reader
                # has acted on it.
                self._make_durable()
                return [LogEntry(number, found[number]) for number in numbers]
            numbers = self._newest(last)
        raise TransientError(
            f"the recovery log in {self._where!r} changed {_ROUNDS} times while it was read",
            step=self._step_id,
            do="check whether another query uses this recovery location",
        )

    def _newest(self, count: int | None) -> list[int]:
        numbers = self._numbers()
        return numbers if count is None else numbers[max(0, len(numbers) - count) :]

    def _still_here(self, known: Mapping[int, bytes], numbers: list[int]) -> dict[int, bytes]:
        """Return the known entries, unless another log has replaced this one.

        Entries of two logs differ from the first one on that two writers have written, so the newest decides.
        """
        newest = max(known.keys() & set(numbers), default=None)
        return dict(known) if newest is not None and self._is_here(LogEntry(newest, known[newest])) else {}

    def _refuse_unless_newest(self, numbers: list[int], after: int) -> None:
        require_newest(max(numbers, default=0), after, where=self._where, step_id=self._step_id)

    def _refuse_if_passed(self, number: int, after: int) -> None:
        """Fence a writer that was suspended before it created the entry: a clean-up may have freed the number since.

        The entry stays while the one before it does, because it may be valid: it may have been the newest for a moment,
        and the next writer may have continued from it. If a clean-up had freed its number, the entry is ignored. A
        clean-up frees only numbers below all valid ones, readers start after them, and a later clean-up removes it.

        Without the one before, no reader needs the entry, except the history for its counts: a clean-up has passed
        both, or the log was emptied or restarted. It is taken back, because readers reject entries of two logs.
        """
        numbers = self._numbers()
        if max(numbers, default=0) > number:
            with suppress(Exception):
                if self._end is not None and self._end.number == after and not self._is_here(self._end):
                    self._remove(self._path(entry_name(number)))
            raise EntryExistsError(number)
        if after and after not in numbers:
            self._remove(self._path(entry_name(number)))
            self._refuse_unless_newest(numbers[:-1], after)

    def _is_here(self, entry: LogEntry) -> bool:
        return self._load(self._path(entry_name(entry.number))) == entry.data

    def _clean_up_entries(self, keep: Collection[int]) -> None:
        # A listing that contains an entry contains each older one.
        if self._names is None or max(keep, default=0) not in self.listed():
            self._numbers()
        listed, self._names = self._names or [], None
        numbers = _sorted_numbers(entry_number, listed)
        for number in numbers:
            if number < max(keep, default=0) and number not in keep:
                self._remove(self._path(entry_name(number)))
                reached("log: entry cleaned up")
        for name in listed:
            # Their writers died, or are fenced when they resume: the number is taken, or was and is cleaned up.
            meant = _temporary_number(name)
            if meant is not None and meant <= max(numbers, default=0):
                self._remove(self._path(name))
                reached("log: temporary cleaned up")

    def _clean_up_states(self, keep: Collection[str], generation: int) -> None:
        if not self._may_have_states:
            return
        for name in self._list(f"{self._directory}/{STATES}"):
            written_by = state_generation(name)
            if written_by is not None and written_by < generation and name not in keep:
                self._remove(self._state_path(name))
                reached("log: state cleaned up")
            elif (heartbeat_generation(name) or _number(_TEMPORARY_STATE, name) or generation) < generation:
                self._remove(self._state_path(name))


def _sorted_numbers(number_of: Callable[[str], int | None], listed: Iterable[str]) -> list[int]:
    return sorted(number for name in listed if (number := number_of(name)) is not None)


def entry_name(number: int) -> str:
    """Return the file name of an entry. Names sort in the order of their numbers."""
    return f"{number:020d}.json"


def entry_number(name: str) -> int | None:
    """Return the number in the file name of an entry; `None` for any other file."""
    return _number(_ENTRY, name)


def temporary_name(number: int) -> str:
    """Return a new name for a temporary file of the writer of entry `number`. Clean-ups remove what is left of it."""
    return f".tmp-{number:020d}-{uuid.uuid4().hex}"


def _temporary_number(name: str) -> int | None:
    """Return the entry number in the name of a temporary file; `None` for any other file."""
    return _number(_TEMPORARY, name)


def _number(pattern: re.Pattern[str], name: str) -> int | None:
    match = pattern.fullmatch(name)
    return None if match is None else int(match[1])
