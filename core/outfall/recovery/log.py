"""The one primitive that all recovery stores share: an entry created exclusively at the next number."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from outfall.errors import ConfigurationError


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
    """The recovery data of one step: numbered entries, and large states beside them.

    An entry is there whole or not at all, and durable once `append` returns. Between two calls others may append.
    """

    @abstractmethod
    def read(self, *, last: int | None = None) -> list[LogEntry]:
        """Return the entries that are kept, in the order of their numbers, which may have gaps where they were swept.

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
            EntryExistsError: `after` is no longer the newest. Also when the number itself was free because a sweep
                removed it: a writer that slept through many epochs must not succeed. The entry may be there all the
                same, and count if whoever came next had read it: stop, and undo nothing.
            RecordError: `after` lies behind the newest entry; the log was emptied or replaced.
            TransientError, ConfigurationError: the store failed. The entry may be there or not: read before going on.
        """

    @abstractmethod
    def sweep(self, *, keep: Collection[int], states: Collection[str], generation: int) -> None:
        """Remove entries and states that no longer count.

        Args:
            keep: the numbers to keep; every other entry below the largest of them is removed.
            states: the names of states to keep.
            generation: only states of a lower generation are removed.
        """

    @abstractmethod
    def write_state(self, name: str, data: bytes, *, generation: int) -> str:
        """Store a large state durably, beside the log. Called in tasks.

        Args:
            name: what it is for; made safe and unique by the store.
            data: the state.
            generation: the generation that writes it, for sweeping.

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
