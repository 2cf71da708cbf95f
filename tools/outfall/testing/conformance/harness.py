"""The interface between a sink's author and the suite."""

from __future__ import annotations

import shutil
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from outfall.capabilities import Guarantee
from outfall.protocol.step import EpochOptions
from outfall.recovery.log import RecoveryConfig


class SinkHarness(ABC):
    """Creates sinks and reads targets for the suite. Implement `make_sink` and `read`; the rest has defaults.

    Each check uses new targets. A row is any value that the sink accepts. The suite creates rows from numbers and
    identifies them by these numbers.
    """

    claim: Guarantee | None = None
    """The tested guarantee; `None` for the guarantee that the sink declares."""

    not_claimed: Mapping[str, str] = {}
    """Excluded check → reason. Excluded checks are reported as not claimed, with the reason."""

    strict: bool | None = None
    """Whether a check that cannot run, because an optional method is missing, fails the suite.

    `None`: true if `EXACTLY_ONCE` is claimed. With `False`, such checks are reported as not tried.
    """

    deadline: float = 60.0
    """Seconds without progress after which a check counts as stalled and fails."""

    repeatable_source: bool | None = None
    """Whether the guarantee requires a replay with the same rows, as for an idempotency key or an upsert.

    If false, replays have other rows under the same epoch, and the target must contain one of the sets, never a mix.
    `None`: true if the claim is less than `EXACTLY_ONCE`.
    """

    drain_epochs: int = 0
    """Number of empty epochs that deliver all rows buffered in the writer state.

    Not required for a sink with `SupportsBufferedRows`, which the suite drains.
    """

    memory_limit: int | None = None
    """Maximum memory of one task in bytes, for any number of rows; `None` if a task may buffer an epoch."""

    secrets: Sequence[str] = ()
    """Secret strings in the options of the sinks of `make_sink`. They must not appear in any output."""

    most_cases: int | None = None
    """Maximum number of cases per check, evenly distributed, such as crash steps; `None` for all."""

    schedules: int = 100
    """Number of random schedules."""

    schedule_seed: int | None = None
    """Seed of the random schedules; `None` for the same schedules each time."""

    def new_target(self, directory: Path) -> Any:
        """Create an empty target, a different one for each call.

        Args:
            directory: an empty directory for this target.

        Returns:
            A handle for `make_sink` and `read`. Default: the directory.
        """
        return directory

    def make_recovery(self, directory: Path) -> str | RecoveryConfig | None:
        """Create the recovery location of one query, to test another store; `None` for the suite's own store.

        Args:
            directory: a directory for this query, which does not exist yet.
        """
        return None

    @abstractmethod
    def make_sink(self, target: Any) -> Any:
        """Create the sink for a target. Called for each driver, because each process creates its own sink."""

    @abstractmethod
    def read(self, target: Any) -> Iterable[Any]:
        """Return all visible rows of the target in any order, read without the sink's code."""

    def row(self, number: int) -> Any:
        """Create a distinct row for each number.

        The text is not ASCII and contains characters that often break formats.
        """
        return {"id": number, "text": f'row {number}: ä€𝄞 "quoted", \\n,\ttab'}

    def key(self, number: int) -> str:
        """Return the routing key of the row of this number, for a fixed sink."""
        return f"{number}"

    def changed_row(self, number: int) -> Any:
        """Create the row of a number as after a change of the query: other columns, or another order of them.

        Default for a mapping: its columns in reverse order.
        """
        row = self.row(number)
        if not isinstance(row, Mapping):
            raise NotImplementedError
        return dict(reversed(list(row.items())))

    def replacing_row(self, number: int, version: int) -> Any:
        """Create a row that replaces rows of this number with a smaller version, for a sink with one row per key."""
        raise NotImplementedError

    def null_key_row(self, version: int) -> Any:
        """Create a row with NULL in its key, for a sink with one row per key. All of these rows have the same key."""
        raise NotImplementedError

    def options(self) -> EpochOptions:
        """Return the options of epochs."""
        return EpochOptions()

    def lose(self, target: Any, committable: Any) -> None:
        """Remove the data of an unpublished committable, as a lifecycle rule or a lost disk does.

        Default for a directory: removes every file that the epoch created. If there is none, as in a database in a
        directory, the checks that need it are not tried.
        """
        raise NotImplementedError

    def lose_target(self, target: Any) -> None:
        """Remove all data of the target, like a deleted directory or table.

        Default for a directory: empties it.
        """
        for path in _directory(target).iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    def replace_target(self, target: Any) -> None:
        """Delete the target, and create it again under its address, empty. What the sink stores elsewhere remains.

        Only for a sink that stores something elsewhere, such as its ledger in another table.
        """
        raise NotImplementedError

    def save_target(self, target: Any) -> Callable[[], None]:
        """Copy the target, like a backup, a dump or a snapshot.

        Default for a directory: copies it.

        Returns:
            A function that restores the target from the copy, and removes everything that is newer.
        """
        directory = _directory(target)
        saved = Path(tempfile.mkdtemp(prefix=f"{directory.name}-saved-", dir=directory.parent))
        shutil.copytree(directory, saved, symlinks=True, dirs_exist_ok=True)

        def restore() -> None:
            SinkHarness.lose_target(self, directory)
            shutil.copytree(saved, directory, symlinks=True, dirs_exist_ok=True)

        return restore

    @contextmanager
    def breaking(self, target: Any) -> Iterator[None]:
        """Make all operations on the target fail in the block: unreachable, read-only, full.

        Default for a directory: replaces it with a file.
        """
        directory = _directory(target)
        away = directory.with_name(f"{directory.name}-away")
        directory.rename(away)
        directory.touch()
        try:
            yield
        finally:
            directory.unlink()
            away.rename(directory)

    def refused_row(self, number: int) -> Any:
        """Create a row that the target refuses, and the sink itself does not: no key, a value that does not fit."""
        raise NotImplementedError

    def similar_rows(self) -> Sequence[Any]:
        """Create rows of different keys whose names in the target a sink could confuse.

        Such as keys of two columns with what divides them, in other letters, or in braces where those have a meaning.
        """
        raise NotImplementedError

    def leftovers(self, target: Any) -> int:
        """Count leftovers of failed attempts in the target: staged files, tables, uploads."""
        raise NotImplementedError


def gives(harness: SinkHarness, method: str) -> bool:
    """Whether the test implements an optional method."""
    return getattr(type(harness), method) is not getattr(SinkHarness, method)


def is_directory(target: Any) -> bool:
    """Whether a target is a directory, for which the suite has default methods."""
    return isinstance(target, Path) and target.is_dir()


def _directory(target: Any) -> Path:
    if not is_directory(target):
        raise NotImplementedError
    return cast(Path, target)
