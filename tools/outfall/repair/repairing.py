"""Reads the logs of a query, and moves the files of a plan aside.

```
plan      read the logs, then the checkpoint: what to move
REPAIRED  append to each step's log, which fences a running driver
move      torn files and files that depend on them, newest first, so that an interrupted repair can be repeated
REPAIRED  append again; if a driver began an epoch in the meantime, move everything back
```
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime

from outfall.errors import ConfigurationError, FencedError
from outfall.filesystems import make_durably, sync_directory
from outfall.protocol.clock import SystemClock
from outfall.protocol.journal import Journal
from outfall.recovery.entries import Entry, Repaired, Skipped
from outfall.recovery.location import translated_errors
from outfall.recovery.log import EntryExistsError, RecoveryConfig
from outfall.recovery.spark_checkpoint import SparkCheckpoint, checksum_of
from outfall.repair.plan import Plan, Progress, examine
from outfall.trace_points import reached

ASIDE = "outfall-repair"
"""Directory below the checkpoint for moved files."""


class _Step:
    """A step's log, read completely: its journal has read the entries."""

    def __init__(self, name: str, journal: Journal, entries: Sequence[Entry]) -> None:
        self.name = name
        self.journal = journal
        self._last = next((entry for entry in reversed(entries) if not isinstance(entry, Repaired)), None)

    @property
    def completed(self) -> int | None:
        view = self.journal.view
        return None if view.completed is None else view.completed - view.drains

    @property
    def recorded(self) -> int | None:
        view = self.journal.view
        if view.unfinished is None or view.drain_unfinished:
            return self.completed
        return view.unfinished.epoch - view.drains

    def begun(self) -> int | None:
        """Return the last begun batch. Drains have no batch, and a skipped epoch belongs to the previous one."""
        view = self.journal.view
        is_drain = view.begin is not None and view.begin.drain
        if view.unfinished is not None or not view.begun_since or is_drain or isinstance(self._last, Skipped):
            return self.recorded
        if view.open_epoch is None and view.completed is None:
            # Only the tasks had the batch id: `adopt_checkpoint` with an empty log.
            raise ConfigurationError(
                "the first epoch was begun but not recorded, and its number is unknown",
                step=self.name,
                do="run outfall reset for the step, which has no recorded epoch to lose, and then repair again",
            )
        return self.completed if view.open_epoch is None else view.open_epoch - view.drains


class CheckpointRepair:
    """The repair of one query's checkpoint, from `opened`. The logs of the steps are open and read."""

    def __init__(self, checkpoint: SparkCheckpoint, steps: Sequence[_Step]) -> None:
        self.checkpoint = checkpoint
        self.progress = _progress(steps)
        self._steps = steps

    def plan(self) -> Plan:
        """Read the checkpoint, and decide. Writes nothing.

        Raises `TransientError` or `ConfigurationError` if the disk failed, or cannot be read.
        """
        with translated_errors("reading Spark's checkpoint", None, self.checkpoint.root):
            return examine(self.checkpoint, self.progress)

    def carry_out(self, plan: Plan) -> None:
        """Fence running drivers, and move the files of the plan aside. Deletes nothing.

        Raises `FencedError` if a driver has written since the logs were read, and `TransientError` or
        `ConfigurationError` if a store or the disk failed. In each case, no file was moved, or all were moved back.
        """
        if plan.moves:
            with translated_errors("repairing Spark's checkpoint", None, self.checkpoint.root):
                self._move(plan.moves)

    def _move(self, names: Sequence[str]) -> None:
        aside = f"{ASIDE}/{datetime.now(UTC):%Y%m%dT%H%M%S.%fZ}"
        self._record(names, aside, done=False)
        reached("repair: fenced")
        moved: list[tuple[str, str]] = []
        try:
            for name in names:
                for part in (name, checksum_of(name)):
                    source, target = self.checkpoint.path(part), self.checkpoint.path(f"{aside}/{part}")
                    if os.path.exists(source):
                        _rename(source, target)
                        moved.append((source, target))
                reached("repair: moved")
            self._record(names, aside, done=True)
        except Exception:
            for source, target in reversed(moved):
                _rename(target, source)
            raise

    def _record(self, names: Sequence[str], aside: str, *, done: bool) -> None:
        for step in self._steps:
            entry = Repaired(
                step=step.name,
                incarnation=step.journal.view.incarnation or "",
                checkpoint=self.checkpoint.root,
                files=list(names),
                aside=aside,
                done=done,
            )
            try:
                step.journal.append(entry)
            except EntryExistsError:
                raise FencedError(
                    "another driver writes this step, so its query is running",
                    step=step.name,
                    do="stop the query, then repair",
                ) from None


@contextmanager
def opened(location: str, recovery: Sequence[RecoveryConfig], steps: Sequence[str] = ()) -> Iterator[CheckpointRepair]:
    """Read the logs of a query, and keep them open, so that its drivers are fenced from there on.

    Steps can have their own recovery locations. If no steps are given, these are all steps recorded for the query.
    Raises `ConfigurationError` if the location is not a checkpoint or the recovery locations have no step of the query,
    `RecordError` if a log is damaged, and `TransientError` if a store failed.
    """
    checkpoint = SparkCheckpoint.at(location)
    if checkpoint is None:
        raise ConfigurationError(
            f"{location!r} is not the checkpoint of a query on a local disk",
            do="give the query's checkpointLocation; in object stores and HDFS, a power loss tears no file",
        )
    with ExitStack() as stack:
        yield CheckpointRepair(checkpoint, _read(checkpoint, recovery, steps, stack))


def _read(
    checkpoint: SparkCheckpoint, recovery: Sequence[RecoveryConfig], steps: Sequence[str], stack: ExitStack
) -> list[_Step]:
    """Read the log of each step of the query."""
    query, found = checkpoint.query_id(), []
    places = [store.url() for store in recovery]
    for store in recovery:
        for name in steps or store.steps():
            journal = Journal(store.open(name), name, SystemClock())
            stack.callback(journal.log.close)
            step, view = _Step(name, journal, journal.read_all()), journal.view
            if view.begin is None or (query and view.query_id and view.query_id != query):
                continue
            if view.moved_to in places:
                continue
            if view.moved_to is not None:
                raise ConfigurationError(
                    f"the step was moved to {view.moved_to}",
                    step=name,
                    do="give that location with --recovery, and this one too if it still has other steps",
                )
            found.append(step)
    if not found:
        raise ConfigurationError(
            f"no step of the query {query or 'with an unreadable id'} has begun an epoch in {', '.join(places)}",
            why="without a log, the completed batches are unknown",
            do="give the location of the recovery data with --recovery. If the query never began an epoch, start it"
            " with a new checkpoint: no row was written",
        )
    return found


def _progress(steps: Sequence[_Step]) -> Progress:
    completed = {step.name: step.completed for step in steps}
    known = [batch for batch in completed.values() if batch is not None]
    least = min(known) if len(known) == len(completed) else None
    begun = max((batch for step in steps if (batch := step.begun()) is not None), default=None)
    recorded = max((batch for step in steps if (batch := step.recorded) is not None), default=None)
    return Progress(begun, least, recorded, sorted(step for step, batch in completed.items() if batch != begun))


def _rename(source: str, target: str) -> None:
    make_durably(os.path.dirname(target))
    os.rename(source, target)
    sync_directory(os.path.dirname(target))
    sync_directory(os.path.dirname(source))
