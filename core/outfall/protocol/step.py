"""One step on the driver: what is written, where it is recorded, how its epochs are run, and what this run has done."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from outfall.protocol.clock import Clock
from outfall.protocol.commit_retry import CommitPolicy
from outfall.protocol.journal import Journal
from outfall.protocol.run_registry import RunPosition, RunRegistry
from outfall.recovery.log import RecoveryConfig

MakeSourceDurable = Callable[[int | None, bool], None]
"""Takes the batch, `None` where only the tasks learn it, and whether this is the first time since the log began or was
written by another release, which may have left earlier batches as they were."""


@dataclass(frozen=True)
class EpochOptions:
    """How a step's epochs are run."""

    commit: CommitPolicy = field(default_factory=CommitPolicy)
    adopt_checkpoint: bool = False
    """Whether an empty log may begin at any batch id."""
    any_later: bool = False
    """Whether epochs may leave numbers out, as in batch jobs that name their epoch."""
    end_of_input: bool = False
    """Whether each epoch is the last for now, so that sinks that hold rows back deliver them, as in batch jobs."""
    worker_count: int = 0
    key: str | None = None
    """The column that says which part a row belongs to, where there is one: for sinks that stand on it."""
    started: float | None = None
    """When this run of the query was started, in seconds since 1970; `None` where that is not known."""
    final: bool = False
    """Whether the recovery data is thrown away after this epoch, as by batch jobs that are never resumed."""
    make_source_durable: MakeSourceDurable | None = None
    """Makes durable what the engine has recorded of a batch, so that it can bring the same one after any crash. Called
    before BEGIN, once the log was read."""


@dataclass(frozen=True)
class Step:
    """One step, as a driver holds it for one epoch."""

    sink: Any
    step_id: str
    recovery: RecoveryConfig
    """Where its log is."""
    journal: Journal
    """Its log."""
    options: EpochOptions
    clock: Clock
    run: str | None
    """Identifies this run of the query within the process; `None` where nothing is to be remembered between epochs."""
    registry: RunRegistry

    def position(self) -> RunPosition | None:
        """Return where this run stands in the log; `None` before its first epoch."""
        return None if self.run is None else self.registry.recall(self.recovery.url(), self.step_id, self.run)

    def remember(self, done: int | None) -> None:
        """Remember that this run stands at the log's end as it was last read or written.

        Args:
            done: the batch that it has completed or skipped just now.
        """
        if self.run is not None:
            position = RunPosition(self.run, self.journal.view.last, done)
            self.registry.remember(self.recovery.url(), self.step_id, position)
