"""What the author of a sink gives to the suite."""

from __future__ import annotations

import shutil
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from outfall.capabilities import Guarantee
from outfall.protocol.step import EpochOptions
from outfall.recovery.log import RecoveryConfig


class SinkHarness(ABC):
    """How the suite makes a sink and reads its target. Implement `make_sink` and `read`; the rest has defaults.

    Each check works on targets of its own. A row is any value that the sink takes; the suite tells rows apart by the
    numbers they were made of.
    """

    claim: Guarantee | None = None
    """What the sink claims; `None` for what it declares itself."""

    not_claimed: Mapping[str, str] = {}
    """Checks that the sink gives up, each with the reason; they are reported as not claimed, with the reason."""

    strict: bool | None = None
    """Whether a check that cannot be tried, for want of something that the author could give, fails the run.

    `None`: where `EXACTLY_ONCE` is claimed. With `False` such checks are reported as not tried.
    """

    deadline: float = 60.0
    """Seconds after which a check in which nothing happens any more is taken for stalled, and fails."""

    repeatable_source: bool | None = None
    """Whether the claim stands only where a replay brings the same rows again, as for an idempotency key or an upsert.

    If not, replays bring other rows under the same epoch, of which one set must be found and never a mix. `None`: such
    sinks are those that claim less than `EXACTLY_ONCE`.
    """

    drain_epochs: int = 0
    """How many epochs without rows bring to light what the sink held back in its writer state.

    Not needed for a sink with `SupportsBufferedRows`, which is drained.
    """

    memory_limit: int | None = None
    """Bytes that one task may hold however many rows it writes; `None` when it holds the rows of an epoch."""

    secrets: Sequence[str] = ()
    """Secret texts among the options of the sinks that `make_sink` makes. They must not come out anywhere."""

    most_cases: int | None = None
    """How many cases of a check are tried, such as steps to die at, spread over all of them; `None` for each."""

    schedules: int = 100
    """How many random schedules are played."""

    schedule_seed: int | None = None
    """Chooses the random schedules; `None` for the same ones each time."""

    def new_target(self, directory: Path) -> Any:
        """Make an empty target, another one each time.

        Args:
            directory: an empty directory for this target alone.

        Returns:
            Whatever `make_sink` and `read` find it by. The default is the directory.
        """
        return directory

    def make_recovery(self, directory: Path) -> str | RecoveryConfig | None:
        """Make the recovery location of one query, where the suite is to hold a store too; `None` for the suite's own.

        Args:
            directory: not made yet, and for this query alone.
        """
        return None

    @abstractmethod
    def make_sink(self, target: Any) -> Any:
        """Make the sink that writes to the target. Called for each driver, as each process makes its own."""

    @abstractmethod
    def read(self, target: Any) -> Iterable[Any]:
        """Return all rows that a reader of the target finds, in any order, without the help of the sink's code."""

    def row(self, number: int) -> Any:
        """Make a row; a different one for each number.

        Its text is not ASCII, and holds what often breaks formats.
        """
        return {"id": number, "text": f'row {number}: ä€𝄞 "quoted", \\n,\ttab'}

    def key(self, number: int) -> str:
        """Return the key by which a fixed sink routes the row of this number."""
        return f"{number}"

    def options(self) -> EpochOptions:
        """Return how epochs are run."""
        return EpochOptions()

    def lose(self, target: Any, committable: Any) -> None:
        """Remove the data behind a committable that is not published, as a lifecycle rule or a lost disk does.

        Left out: of a target that is a directory, every file that the epoch made in it is removed.
        """
        raise NotImplementedError

    def lose_target(self, target: Any) -> None:
        """Remove all that the target holds, as somebody does who deletes the directory or the table's rows.

        The default empties a target that is a directory.
        """
        for path in _directory(target).iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    @contextmanager
    def breaking(self, target: Any) -> Iterator[None]:
        """Have the target refuse everything within the block: unreachable, read-only, full.

        The default has a target that is a directory give way to a file.
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

    def leftovers(self, target: Any) -> int:
        """Count what lost attempts left in the target: staged files, tables, uploads."""
        raise NotImplementedError


def gives(harness: SinkHarness, method: str) -> bool:
    """Whether the author implements an optional method."""
    return getattr(type(harness), method) is not getattr(SinkHarness, method)


def is_directory(target: Any) -> bool:
    """Whether a target is a directory, so that the suite can do by itself what authors of others must give."""
    return isinstance(target, Path) and target.is_dir()


def _directory(target: Any) -> Path:
    if not is_directory(target):
        raise NotImplementedError
    return cast(Path, target)
