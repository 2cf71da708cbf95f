"""What a step's last epochs counted."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from outfall.recovery.entries import Completed, Entry, Skipped, decode_entry
from outfall.recovery.log import RecoveryConfig
from outfall.recovery.url import recovery_config

KEPT_EPOCHS = 100
"""Epochs whose counts are kept."""


@dataclass(frozen=True)
class EpochSummary:
    """The counts of one epoch, or of one time that Spark brought a completed epoch again."""

    epoch: int
    batch: int | None
    """Spark's batch id, or a batch job's own number: the epoch's less the drains before it. `None` for a drain."""
    completed_at: datetime
    """UTC."""
    seconds: float
    """From BEGIN to COMPLETED."""
    task_seconds: float
    """From BEGIN to PREPARED: what the tasks took. The rest of `seconds` is committing."""
    rows: int
    bytes: int
    retries: int
    """Requests and commits that were sent again after a failure. Failed attempts of tasks are `task_retries` in
    `counts`."""
    dead_letters: int
    skipped: int
    """Rows that were read again and dropped, since their epoch was completed."""
    dropped: int
    """Rows among `rows` that the target refused and that were thrown away, as the query's `CommitPolicy` said."""
    rows_held: int
    """Rows that the sink holds back after this epoch."""
    held_since: datetime | None
    """When the oldest of them was written, where the sink says so."""
    counts: dict[str, int]
    """All counters of the epoch, those of the sink among them."""

    @property
    def commit_seconds(self) -> float:
        """From PREPARED to COMPLETED."""
        return max(0.0, self.seconds - self.task_seconds)


def history(recovery: str | RecoveryConfig, step_id: str = "sink") -> list[EpochSummary]:
    """Return the last hundred epochs of a step, oldest first. Reads only; safe while the query runs.

    Args:
        recovery: where the log is: the query's checkpoint location, or what was given as `recovery`.
        step_id: the step's id.

    Raises:
        RecordError: an entry is damaged or of a newer format.
    """
    log = recovery_config(recovery).open(step_id)
    try:
        entries = [decode_entry(raw, step_id) for raw in log.read()]
    finally:
        log.close()
    return summaries(entries)


def summaries(entries: Iterable[Entry]) -> list[EpochSummary]:
    """Return the counts in a log's entries, of the last hundred epochs, oldest first."""
    return [_summary(entry) for entry in entries if isinstance(entry, Completed | Skipped)][-KEPT_EPOCHS:]


def _summary(entry: Completed | Skipped) -> EpochSummary:
    counts = entry.counts
    return EpochSummary(
        epoch=entry.epoch,
        batch=None if isinstance(entry, Completed) and entry.drain else entry.epoch - entry.drains,
        completed_at=entry.time,
        seconds=entry.seconds if isinstance(entry, Completed) else 0.0,
        task_seconds=entry.task_seconds if isinstance(entry, Completed) else 0.0,
        rows=counts.get("rows", 0),
        bytes=counts.get("bytes", 0),
        retries=counts.get("retries", 0),
        dead_letters=counts.get("dead_letters", 0),
        skipped=counts.get("skipped", 0),
        dropped=counts.get("dropped_rows", 0),
        rows_held=counts.get("rows_held", 0),
        held_since=entry.held_since if isinstance(entry, Completed) else None,
        counts=counts,
    )
