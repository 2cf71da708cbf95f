"""What a recovery store is: where it lies, and the log that it keeps of each step.

All safety stands on one primitive, `RecoveryLog.append`: an entry created exclusively at the next number. The names of
steps and of large states are the same in every store, since logs are copied from one to another.
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
# What follows is where Kafka had it; a state keeps its name in every store that it is copied to.
_STATE = re.compile(r"g([0-9]+)-[A-Za-z0-9._-]*-[0-9a-f]{32}\.state(\.[0-9]{1,19}-[0-9]{1,9})?")
_HEARTBEAT = re.compile(r"g([0-9]+)-[A-Za-z0-9._-]*\.heartbeat(\.new)?")
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]")
_STATE_LABEL = 80


class EntryExistsError(Exception):
    """The number is taken, or a later one is: somebody else went on from where this writer stands."""

    def __init__(self, number: int) -> None:
        """Remember the number that was wanted."""
        super().__init__(f"entry {number} exists")
        self.number = number


@dataclass(frozen=True)
class LogEntry:
    """One entry: its number, from 1, and its bytes."""

    number: int
    data: bytes


class RecoveryLog(ABC):
    """The recovery data of one step: numbered entries, and large states and committables beside them.

    An entry is there whole or not at all, and durable once `append` returns. Between two calls others may append.
    """

    @abstractmethod
    def read(self, *, last: int | None = None) -> list[LogEntry]:
        """Return the kept entries in the order of their numbers; clean-up leaves gaps.

        Args:
            last: how many of the newest to return; all when `None`.
        """

    @abstractmethod
    def numbers(self) -> list[int]:
        """Return the numbers of the entries that are kept, ascending, without reading them."""

    @abstractmethod
    def append(self, data: bytes, *, after: int) -> int:
        """Create the entry numbered `after + 1`, exclusively and durably.

        Args:
            data: the entry.
            after: the number of the newest entry that the caller has read; 0 for an empty log.

        Returns:
            The entry's number.

        Raises:
            EntryExistsError: `after` is no longer the newest. Also when the number itself was free because a clean-up
                removed it: a writer that slept through many epochs must not succeed. The entry may be there all the
                same, and count if whoever came next had read it: stop, and undo nothing.
            RecordError: `after` lies behind the newest entry; the log was emptied or replaced.
            TransientError, ConfigurationError: the store failed. The entry may be there or not: read before going on.
        """

    @abstractmethod
    def clean_up(self, *, keep: Collection[int], states: Collection[str], generation: int) -> None:
        """Remove entries, states and heartbeats that no longer count.

        Args:
            keep: the numbers to keep; every other entry below the largest of them is removed.
            states: the names of states to keep.
            generation: only states and heartbeats of a lower generation are removed.
        """

    @abstractmethod
    def write_state(self, name: str, data: bytes, *, generation: int) -> str:
        """Store a large state durably, beside the log. Called in tasks; on the driver for a large committable too.

        Args:
            name: what it is for; made safe and unique by the store.
            data: the state.
            generation: the generation that writes it, for cleaning up.

        Returns:
            The name to read it back with.
        """

    @abstractmethod
    def read_state(self, name: str) -> bytes:
        """Return a large state.

        Raises:
            RecordError: it is not there.
        """

    @abstractmethod
    def restore(self, entries: Sequence[LogEntry], states: Mapping[str, bytes]) -> None:
        """Take over what another log holds, under the same numbers and names. For `outfall.recovery.copy_step` only.

        Called on a log that nobody writes and that holds nothing but, after a call that failed, some of the same. One
        that fails leaves nothing, or what cannot be taken for the log of an earlier time: where entries cannot come all
        at once, the newest come first, so that those which they build on are missing.
        """

    def set_heartbeat(self, name: str, data: bytes | None) -> None:
        """Put a heartbeat beside the log in place of the one of this name, or remove it with `None`.

        Nothing is decided by heartbeats, so they need not be durable: people read them. Clean-up removes those of older
        generations. A store without a place for them leaves this as it is. Called by a thread of its own, on a log that
        nobody else uses.

        Args:
            name: as `heartbeat_name` gives it.
            data: at most some kilobytes.
        """

    def heartbeats(self) -> list[bytes]:
        """Return the heartbeats that lie beside the log. One that is being written may be missing or torn."""
        return []

    def erase(self) -> None:
        """Remove all entries and states. For `outfall reset` only: the step's memory is lost.

        Called on a log that nobody writes, damaged or not. The oldest entries go first: what a call that fails leaves
        is still whole but for old counts, or is refused by whoever reads it, and never a log of an earlier time.

        Raises:
            ConfigurationError: this store cannot do it, or the right to is missing.
            TransientError: the store failed.
        """
        raise ConfigurationError(f"{type(self).__name__} cannot be emptied", do="remove it with the store's own means")

    def close(self) -> None:
        """Release resources."""


class RecoveryConfig(ABC):
    """Says where recovery data lives. Picklable; opens nothing until `open` is called, on the driver or in a task."""

    reaches_tasks: ClassVar[bool] = True
    """Whether tasks on any host can open the log too. Where not, only the driver does, and states travel whole with the
    ticket and the responses, as long as all of a step's together are within `outfall.recovery.entries.CARRIED`."""

    @abstractmethod
    def open(self, step_id: str) -> RecoveryLog:
        """Open the log of one step, which is made on first use.

        Raises:
            ConfigurationError: the location cannot hold a log; the text says what to use instead.
        """

    def open_read_only(self, step_id: str) -> RecoveryLog:
        """Open the log of one step for who only looks on, beside the query or without it.

        Reading makes and changes no file, and holds no lock that a driver waits for. What it returns may vanish again
        when the host loses power: nothing may be done that stands on it.

        Raises:
            ConfigurationError: as `open`.
        """
        return self.open(step_id)

    def steps(self) -> Sequence[str]:
        """Return the ids of the steps that have recovery data here, sorted; none where nothing was ever written.

        For people who look: the protocol never asks. Reads only, and may name a step whose log is empty.

        Raises:
            ConfigurationError: this store cannot list its steps, or the location cannot hold logs.
            TransientError: the store failed.
        """
        raise ConfigurationError(
            f"{type(self).__name__} cannot list the steps that it holds", do="name the step (its default is 'sink')"
        )

    @abstractmethod
    def url(self) -> str:
        """Return the location as text, free of secrets; `recovery_config(url)` gives an equal configuration."""


def check_step_id(step_id: str) -> str:
    """Return a step id that can be the name of a directory or of a table.

    Raises:
        ConfigurationError: it cannot.
    """
    # Refused rather than escaped: two ids must never meet in one directory, and people look for theirs with `ls`.
    if not isinstance(step_id, str) or not _STEP_ID.fullmatch(step_id):
        raise ConfigurationError(
            f"{step_id!r} cannot be a step id",
            why="its recovery data is kept under that name",
            do="give up to 200 letters, digits, '.', '_' or '-' of ASCII, the first a letter or digit",
        )
    return step_id


def is_step_id(name: str) -> bool:
    """Whether a name can be that of a step's directory or database."""
    return _STEP_ID.fullmatch(name) is not None


def state_name(label: str, generation: int) -> str:
    """Name the file of a large state. Never the same twice."""
    return f"g{generation}-{_UNSAFE.sub('_', label)[:_STATE_LABEL]}-{uuid.uuid4().hex}.state"


def heartbeat_name(who: str, generation: int) -> str:
    """Name the heartbeat of a task or a driver of one generation."""
    return f"g{generation}-{_UNSAFE.sub('-', who)[:_STATE_LABEL]}.heartbeat"


def heartbeat_generation(name: str) -> int | None:
    """Return the generation of a heartbeat's file, or of one that was to become such; `None` for any other."""
    match = _HEARTBEAT.fullmatch(name)
    return None if match is None else int(match[1])


def state_generation(name: str) -> int | None:
    """Return the generation that wrote a state's file; `None` for any other file."""
    match = _STATE.fullmatch(name)
    return None if match is None else int(match[1])


def check_state_name(name: str) -> str:
    """Return the name of a state that was read in a record.

    Raises:
        RecordError: it is none that `state_name` gives, and might lead out of the directory.
    """
    if state_generation(name) is None:
        raise RecordError(f"{name!r} is not the name of a state", do="restore the recovery data from a copy")
    return name


def require_newest(newest: int, after: int, *, where: str, step_id: str) -> None:
    """Check, for an append, that nobody went on from where the writer stands. For stores.

    Args:
        newest: the number of the newest entry that is there.
        after: the number of the newest one that the writer has read.
        where: the store, for texts.
        step_id: the step.

    Raises:
        EntryExistsError: there is a later one.
        RecordError: there are fewer; the log was emptied or replaced.
    """
    if newest > after:
        raise EntryExistsError(after + 1)
    if newest < after:
        raise RecordError(
            f"recovery entry {after} is gone from {where!r}, where the newest is now {newest}",
            step=step_id,
            why="what lay there was emptied or replaced while the query ran",
            do="restore the recovery data from a copy, or start the query with a new checkpoint",
        )


def missing_state(name: str, *, where: str, step_id: str) -> RecordError:
    """Make the error for a state that is not in a store, which `where` names as texts show it."""
    return RecordError(
        f"the state {name!r} is not in {where}",
        step=step_id,
        why="a record names it, and no clean-up removes what is recorded",
        do="restore the recovery data from a copy, large states with it",
    )
