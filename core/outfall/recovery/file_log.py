"""A log of one file per entry: what holds on every filesystem."""

from __future__ import annotations

import re
import uuid
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from outfall.errors import TransientError
from outfall.recovery.location import explained
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
_TEMPORARY = re.compile(r"\.tmp-([0-9]{20})-[0-9a-f]{32}")
_ROUNDS = 20


class FileLog(RecoveryLog):
    """The layout, and what it stands on.

    ```
    <location>/outfall/<step_id>/00000000000000000007.json       entry 7
                                 .tmp-…                          an entry that is not whole yet; local only
                                 states/g5-<label>-<random>.state
                                 states/g5-task-3.heartbeat      who tries again; nothing is decided by it
    ```
    Three facts: an entry is created whole and exclusively, or not at all; a listing holds every file that was there
    before it began and is not removed meanwhile; nobody ever removes the newest entry, but for `erase`.
    """

    def __init__(self, directory: str, step_id: str, where: str | None = None) -> None:
        """Say where, and how to call it in texts; nothing is made or read."""
        self._directory = directory
        self._where = where or directory
        self._step_id = step_id
        self._may_have_states = True
        """Whether the last listing of the log showed their directory, so that an idle step costs one listing."""

    def read(self, *, last: int | None = None) -> list[LogEntry]:
        if last is not None and last < 0:
            raise ValueError(f"last must not be negative, not {last}")
        with explained("reading the recovery log", self._step_id, self._where):
            return self._consistent(last)

    def numbers(self) -> list[int]:
        with explained("listing the recovery log", self._step_id, self._where):
            return self._numbers()

    def append(self, data: bytes, *, after: int) -> int:
        number = after + 1
        with explained(f"appending recovery entry {number}", self._step_id, self._where):
            require_newest(max(self._numbers(), default=0), after, where=self._where, step_id=self._step_id)
            reached("log: newest checked")
            self._create_entry(number, data)
            self._refuse_if_passed(number)
        return number

    def clean_up(self, *, keep: Collection[int], states: Collection[str], generation: int) -> None:
        with explained("cleaning up the recovery log", self._step_id, self._where):
            self._clean_up_entries(keep)
            self._clean_up_states(states, generation)

    def write_state(self, name: str, data: bytes, *, generation: int) -> str:
        stored = state_name(name, generation)
        with explained(f"writing the state {name!r}", self._step_id, self._where):
            self._create_state(stored, data)
        return stored

    def read_state(self, name: str) -> bytes:
        check_state_name(name)
        with explained(f"reading the state {name!r}", self._step_id, self._where):
            data = self._load(self._state_path(name))
        if data is None:
            raise missing_state(name, where=repr(self._where), step_id=self._step_id)
        return data

    def restore(self, entries: Sequence[LogEntry], states: Mapping[str, bytes]) -> None:
        with explained("copying a recovery log to", self._step_id, self._where):
            for name, data in states.items():
                if self._load(self._state_path(name)) != data:
                    self._remove(self._state_path(name))
                    self._create_state(name, data)
            there = set(self._numbers())
            for entry in sorted(entries, key=lambda entry: entry.number, reverse=True):
                if entry.number not in there:
                    self._create_entry(entry.number, entry.data)
                    reached("log: entry restored")

    def set_heartbeat(self, name: str, data: bytes | None) -> None:
        with explained("writing a heartbeat", self._step_id, self._where):
            if data is None:
                self._remove(self._state_path(name))
            else:
                self._replace(self._state_path(name), data)
                self._may_have_states = True

    def heartbeats(self) -> list[bytes]:
        if not self._may_have_states:
            return []
        with explained("reading heartbeats", self._step_id, self._where):
            names = [name for name in self._list(f"{self._directory}/{STATES}") if name.endswith(".heartbeat")]
            return [data for data in self._load_all([self._state_path(name) for name in names]) if data is not None]

    def erase(self) -> None:
        with explained("erasing the recovery log", self._step_id, self._where):
            listed = self._list(self._directory)
            for number in _sorted_numbers(entry_number, listed):
                self._remove(self._path(entry_name(number)))
                reached("log: entry erased")
            for name in listed:
                if _temporary_number(name) is not None:
                    self._remove(self._path(name))
            for name in self._list(f"{self._directory}/{STATES}"):
                if state_generation(name) is not None or heartbeat_generation(name) is not None:
                    self._remove(self._state_path(name))
            self._remove_directories()

    # What a filesystem has to say. A file that is not there is no error to any of these.

    @abstractmethod
    def _list(self, directory: str) -> list[str]:
        """Return the names in a directory; none when it is missing."""

    @abstractmethod
    def _load(self, path: str) -> bytes | None:
        """Return a file's content; `None` when it is gone."""

    def _load_all(self, paths: Collection[str]) -> list[bytes | None]:
        """Return the content of each file, as `_load` does."""
        return [self._load(path) for path in paths]

    @abstractmethod
    def _create_entry(self, number: int, data: bytes) -> None:
        """Create an entry's file: whole, durable, exclusive.

        Raises:
            EntryExistsError: the number is taken.
        """

    @abstractmethod
    def _create_state(self, name: str, data: bytes) -> None:
        """Create a state's file durably. The name is new."""

    @abstractmethod
    def _replace(self, path: str, data: bytes) -> None:
        """Write a state's directory's file whole in place of the one that is there. It need not be durable."""

    @abstractmethod
    def _remove(self, path: str) -> None:
        """Remove a file, or find it gone."""

    def _remove_directories(self) -> None:
        """Remove the log's directories where a filesystem has such, if they are empty."""

    def _make_durable(self) -> None:
        """Return when what a listing showed will survive the host."""

    # What every filesystem has in common.

    def _path(self, name: str) -> str:
        return f"{self._directory}/{name}"

    def _state_path(self, name: str) -> str:
        return f"{self._directory}/{STATES}/{name}"

    def _numbers(self) -> list[int]:
        listed = self._list(self._directory)
        self._may_have_states = STATES in listed
        return _sorted_numbers(entry_number, listed)

    def _consistent(self, last: int | None) -> list[LogEntry]:
        """Read entries that were all there at one moment; entries that a clean-up takes away meanwhile are left out.

        When one is gone, somebody appended, so the listing is out of date too. Entries never change, so each is read
        once and the second round has little to do.
        """
        found: dict[int, bytes] = {}
        for _ in range(_ROUNDS):
            numbers = self._numbers()
            numbers = numbers if last is None else numbers[max(0, len(numbers) - last) :]
            missing = [number for number in numbers if number not in found]
            loaded = self._load_all([self._path(entry_name(number)) for number in missing])
            found |= {number: data for number, data in zip(missing, loaded, strict=True) if data is not None}
            if all(number in found for number in numbers):
                # A writer may have died before it made its entry durable. Whoever acts on the entry must not see it
                # vanish afterwards.
                self._make_durable()
                return [LogEntry(number, found[number]) for number in numbers]
        raise TransientError(
            f"the recovery log in {self._where!r} changed {_ROUNDS} times while it was read",
            step=self._step_id,
            do="see whether another query uses this recovery location",
        )

    def _refuse_if_passed(self, number: int) -> None:
        """Fence a writer that slept between its look and its creation: a clean-up may have freed the number meanwhile.

        The entry stays, because it may count: it may have been the newest for a moment, and whoever passed it has then
        read it and goes on from it. If its number had been cleaned up, it is a stray. That is harmless: a clean-up
        frees only numbers below all that count, readers take nothing from there, and a later clean-up removes it.
        """
        if max(self._numbers(), default=0) > number:
            raise EntryExistsError(number)

    def _clean_up_entries(self, keep: Collection[int]) -> None:
        listed = self._list(self._directory)
        numbers = _sorted_numbers(entry_number, listed)
        for number in numbers:
            if number < max(keep, default=0) and number not in keep:
                self._remove(self._path(entry_name(number)))
                reached("log: entry cleaned up")
        for name in listed:
            # Their writers died, or wake up fenced: the number is taken, or was and is cleaned up.
            meant = _temporary_number(name)
            if meant is not None and meant <= max(numbers, default=0):
                self._remove(self._path(name))
                reached("log: temporary cleaned up")

    def _clean_up_states(self, keep: Collection[str], generation: int) -> None:
        for name in self._list(f"{self._directory}/{STATES}"):
            written_by = state_generation(name)
            if written_by is not None and written_by < generation and name not in keep:
                self._remove(self._state_path(name))
                reached("log: state cleaned up")
            elif (heartbeat_generation(name) or generation) < generation:
                self._remove(self._state_path(name))


def _sorted_numbers(number_of: Callable[[str], int | None], listed: Iterable[str]) -> list[int]:
    return sorted(number for name in listed if (number := number_of(name)) is not None)


def entry_name(number: int) -> str:
    """Name the file of an entry. Names sort as their numbers do."""
    return f"{number:020d}.json"


def entry_number(name: str) -> int | None:
    """Return the number of an entry's file; `None` for any other file."""
    return _number(_ENTRY, name)


def temporary_name(number: int) -> str:
    """Name a file that becomes entry `number` when it is whole."""
    return f".tmp-{number:020d}-{uuid.uuid4().hex}"


def _temporary_number(name: str) -> int | None:
    """Return the number of the entry that a file was to become; `None` for any other file."""
    return _number(_TEMPORARY, name)


def _number(pattern: re.Pattern[str], name: str) -> int | None:
    match = pattern.fullmatch(name)
    return None if match is None else int(match[1])
