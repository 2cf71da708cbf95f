"""The interface of a recovery store: its location, and the log of each step in it.

All guarantees rest on one primitive, `RecoveryLog.append`, which creates an entry exclusively at the next number. The
names of steps and of large states are the same in every store, because logs are copied between stores.
"""

from __future__ import annotations

import re
import uuid
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from outfall.errors import ConfigurationError, RecordError

_STEP_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
# Kafka appends the position of a state. A state keeps its name in every store that it is copied to.
_STATE = re.compile(r"g([0-9]+)-[A-Za-z0-9._-]*-[0-9a-f]{32}\.state(\.[0-9]{1,19}-[0-9]{1,9})?")
_HEARTBEAT = re.compile(r"g([0-9]+)-[A-Za-z0-9._-]*\.heartbeat(\.new)?")
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]")
_STATE_LABEL = 80


class EntryExistsError(Exception):
    """The number or a later one is taken: another writer has continued from the position of this writer."""

    def __init__(self, number: int) -> None:
        """Keep the number that is taken."""
        super().__init__(f"entry {number} exists")
        self.number = number


@dataclass(frozen=True)
class LogEntry:
    """One entry: its number, from 1, and its bytes."""

    number: int
    data: bytes


@dataclass(frozen=True)
class ServerChange:
    """The newest entry was written on another server than the one that answers now.

    A standby that was promoted, or a copy, may lack the newest entries together with the newest rows.
    """

    entry: int
    """The number of the newest entry."""
    recorded: str
    """The server that wrote it."""
    now: str
    """The server that answers."""


class RecoveryLog(ABC):
    """The recovery data of one step: numbered entries, and large states and committables next to them.

    An entry is complete or does not exist, and is durable when `append` returns. Other writers may append between two
    calls.
    """

    @abstractmethod
    def read(self, *, last: int | None = None, known: Mapping[int, bytes] | None = None) -> list[LogEntry]:
        """Return the kept entries in the order of their numbers. Clean-ups leave gaps.

        Args:
            last: The number of newest entries to return; `None` for all.
            known: Entries that the caller has read or appended, by number. A store need not load them again, if the
                newest of them that is kept has not changed. It otherwise belongs to another log.
        """

    @abstractmethod
    def numbers(self) -> list[int]:
        """Return the numbers of the kept entries in ascending order, without reading the entries."""

    def listed(self) -> list[int]:
        """Return the numbers as the last call has seen them, for a clean-up after an append.

        Entries of other writers may be missing. A store whose listings cost little inherits this method.
        """
        return self.numbers()

    @abstractmethod
    def append(self, data: bytes, *, after: int) -> int:
        """Create the entry numbered `after + 1`, exclusively and durably.

        Args:
            data: The entry.
            after: The number of the newest entry that the caller has read; 0 for an empty log.

        Returns:
            The number of the entry.

        Raises:
            EntryExistsError: `after` is no longer the newest number. Also raised if a clean-up has freed the number
                meanwhile: a writer that was suspended for many epochs must not succeed. The entry may exist
                nevertheless, and is valid if the next writer has read it. The caller must stop and undo nothing.
            RecordError: `after` is larger than the newest number: the log was emptied or replaced.
            TransientError, ConfigurationError: The store failed. The entry may exist: read the log before continuing.
        """

    @abstractmethod
    def clean_up(self, *, keep: Collection[int], states: Collection[str], generation: int) -> None:
        """Remove obsolete entries, states and heartbeats.

        Args:
            keep: The numbers to keep. Every other entry below the largest of them is removed.
            states: The names of states to keep.
            generation: Only states and heartbeats of a lower generation are removed.
        """

    @abstractmethod
    def write_state(self, name: str, data: bytes, *, generation: int) -> str:
        """Store a large state durably next to the log. Called in tasks, and on the driver for a large committable.

        Args:
            name: A label. The store makes it safe and unique.
            data: The state.
            generation: The generation that writes it, for clean-ups.

        Returns:
            The name for `read_state`.
        """

    @abstractmethod
    def read_state(self, name: str) -> bytes:
        """Return a large state.

        Raises:
            RecordError: The state does not exist.
        """

    @abstractmethod
    def restore(self, entries: Sequence[LogEntry], states: Mapping[str, bytes]) -> None:
        """Store the entries and states of another log, with the same numbers and names. Only for `copy_step`.

        Called on a log without writers. It is empty, or contains a part of the same data after a failed call. A failed
        call must not leave data that a reader takes for an older log. A store without transactions therefore writes the
        newest entries first, so that the entries before them are missing.
        """

    def set_heartbeat(self, name: str, data: bytes | None) -> None:
        """Replace the heartbeat of this name, or remove it if `data` is `None`.

        No decision depends on heartbeats, so they need not be durable. Clean-ups remove those of older generations. A
        store that cannot keep heartbeats inherits this method, which does nothing. Called in a separate thread on its
        own log object.

        Args:
            name: The result of `heartbeat_name`.
            data: A few kilobytes at most.
        """

    def heartbeats(self) -> list[bytes]:
        """Return the heartbeats next to the log. One that is being written may be missing or incomplete."""
        return []

    def erase(self) -> None:
        """Remove all entries and states, and with them the progress of the step. Only for `outfall reset`.

        Called on a log without writers, which may be damaged. The oldest entries are removed first: after a failed call
        the log is complete except for old counts, or rejected by its readers, but never an older log.

        Raises:
            ConfigurationError: The store does not support it, or the permission is missing.
            TransientError: The store failed.
        """
        raise ConfigurationError(f"{type(self).__name__} cannot be emptied", do="remove it with the tools of the store")

    def server_change(self) -> ServerChange | None:
        """Return the change of the server since the newest entry was written; `None` if it is the same.

        A store on a server that may be replaced by a copy of itself refuses reads and appends until `accept_server`.
        Other stores inherit this method.
        """
        return None

    def accept_server(self, change: ServerChange) -> None:
        """Continue this log on the server that answers now. Only for `outfall accept`.

        Raises:
            RecordError: The log or its server is no longer the one of `change`.
            ConfigurationError: The store does not record its server.
            TransientError: The store failed.
        """
        raise ConfigurationError(f"{type(self).__name__} does not record its server")

    def close(self) -> None:
        """Release resources."""


class RecoveryConfig(ABC):
    """The location of recovery data. Picklable. Opens nothing before `open`, which runs on the driver or in a task."""

    reaches_tasks: ClassVar[bool] = True
    """Whether tasks on any host can open the log. If not, only the driver does, and the content of states travels with
    the ticket and the task results. Its total size per step is limited by `outfall.recovery.entries.CARRIED`."""

    @abstractmethod
    def open(self, step_id: str) -> RecoveryLog:
        """Open the log of one step, which is created on first use.

        Raises:
            ConfigurationError: The location cannot store a log. The text names alternatives.
        """

    def open_read_only(self, step_id: str) -> RecoveryLog:
        """Open the log of one step for monitoring, while the query runs or without it.

        Reading creates and changes no file, and takes no lock for which a driver waits. Entries that it returns may
        disappear after a power loss, so no write may depend on them.

        Raises:
            ConfigurationError: As in `open`.
        """
        return self.open(step_id)

    def steps(self) -> Sequence[str]:
        """Return the sorted ids of the steps with recovery data in this location. Empty if nothing was written.

        For monitoring only. May name a step whose log is empty.

        Raises:
            ConfigurationError: The store cannot list its steps, or the location cannot store logs.
            TransientError: The store failed.
        """
        raise ConfigurationError(
            f"{type(self).__name__} cannot list its steps", do="name the step (its default is 'sink')"
        )

    @abstractmethod
    def url(self) -> str:
        """Return the location as text, without secrets. `recovery_config(url)` returns an equal configuration."""


def check_step_id(step_id: str) -> str:
    """Return the step id if it is a valid name of a directory and of a table. Raises `ConfigurationError` otherwise."""
    # Rejected rather than escaped: two ids must not share a directory, and users search for theirs with `ls`.
    if not isinstance(step_id, str) or not _STEP_ID.fullmatch(step_id):
        raise ConfigurationError(
            f"{step_id!r} is not a valid step id",
            why="its recovery data is stored under that name",
            do="use up to 200 ASCII letters, digits, '.', '_' or '-', beginning with a letter or digit",
        )
    return step_id


def is_step_id(name: str) -> bool:
    """Return whether a name is a valid step id."""
    return _STEP_ID.fullmatch(name) is not None


def state_name(label: str, generation: int) -> str:
    """Return a unique file name for a large state."""
    return f"g{generation}-{_UNSAFE.sub('_', label)[:_STATE_LABEL]}-{uuid.uuid4().hex}.state"


def heartbeat_name(who: str, generation: int) -> str:
    """Return the name of the heartbeat of a task or a driver of one generation."""
    return f"g{generation}-{_UNSAFE.sub('-', who)[:_STATE_LABEL]}.heartbeat"


def heartbeat_generation(name: str) -> int | None:
    """Return the generation in the file name of a heartbeat or its temporary file; `None` for any other file."""
    match = _HEARTBEAT.fullmatch(name)
    return None if match is None else int(match[1])


def state_generation(name: str) -> int | None:
    """Return the generation in the file name of a state; `None` for any other file."""
    match = _STATE.fullmatch(name)
    return None if match is None else int(match[1])


def check_state_name(name: str) -> str:
    """Return the name of a state from a record, if it is valid.

    Raises `RecordError` if it is not of the form of `state_name`, and could lead out of the directory.
    """
    if state_generation(name) is None:
        raise RecordError(f"{name!r} is not a valid name of a state", do="restore the recovery data from a copy")
    return name


def require_newest(newest: int, after: int, *, where: str, step_id: str) -> None:
    """Check, before an append, that the writer has read the newest entry, numbered `newest` in the store. For stores.

    `after` is the number of the newest entry that the writer has read, and `where` is the store, for error texts.
    Raises `EntryExistsError` if there is a newer entry, and `RecordError` if the newest entry is older: the log was
    emptied or replaced.
    """
    if newest > after:
        raise EntryExistsError(after + 1)
    if newest < after:
        raise RecordError(
            f"recovery entry {after} is missing in {where!r}, where the newest one is now {newest}",
            step=step_id,
            why="the recovery data was emptied or replaced while the query ran",
            do="restore the recovery data from a copy, or start the query with a new checkpoint",
        )


def missing_state(name: str, *, where: str, step_id: str) -> RecordError:
    """Return the error for a state that is not in the store `where`."""
    return RecordError(
        f"the state {name!r} is not in {where}",
        step=step_id,
        why="a record names it, and clean-ups never remove a recorded state",
        do="restore the recovery data from a copy, including large states",
    )
